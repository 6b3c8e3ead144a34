"""Keys of which only rows travel: lookups, pieces, and where the tables are."""
