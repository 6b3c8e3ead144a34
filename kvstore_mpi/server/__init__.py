"""A server: the pure state of its rounds, and beside it the arrays, replies and snapshots."""
