"""Where the processes of a job run: one interface, and a file for each kind of host."""
