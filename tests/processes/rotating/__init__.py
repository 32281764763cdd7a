"""A database engine whose credentials rotate, as those of a cloud's token service do."""
