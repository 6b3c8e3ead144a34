"""Collectives on tensors: the vectors of one key on all devices of a worker, reduced as one object.

Schedules are data: ``rings``, ``trees`` and ``hosts`` compute what each rank does as a list of ``steps``;
``cost`` counts and predicts what that takes; ``executor`` carries it out, with ``local_reduce`` for what
happens within a worker. MXNET-MPI (Mamidala et al., 2018), sections 6 and 7.3.
"""
