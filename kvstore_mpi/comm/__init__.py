"""Communicators: the ranks of one client over MPI, or as threads of one process."""
