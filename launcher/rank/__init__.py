"""What runs inside a rank, and what it leaves for the launcher."""
