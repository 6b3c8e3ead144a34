"""MPI clients and ZeroMQ parameter servers behind MXNet's KVStore.

Importing this package imports none of mxnet, mpi4py, zmq and cupy. ``import kvstore_mpi.mxnet`` registers
the store types ``sync-mpi`` and ``async-mpi``; under ``mpilaunch`` that has happened already.
"""

from __future__ import annotations

from .tracing.annotation import annotate

__all__ = ["__version__", "annotate"]

__version__ = "0.1.0"
