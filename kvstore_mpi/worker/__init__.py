"""A worker: the pure state of its operations, and beside it the threads that own sockets and MPI."""
