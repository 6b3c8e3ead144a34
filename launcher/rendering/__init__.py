"""A job as a text that runs it: a shell script, a script for ``sbatch``, an ``MPIJob``."""
