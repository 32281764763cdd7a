"""What the end of an attempt means, and how it reaches the database."""
