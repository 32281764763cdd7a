"""Which jobs this worker takes next, and how many."""
