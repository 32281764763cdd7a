"""What an attempt's end means, and how it reaches the database."""
