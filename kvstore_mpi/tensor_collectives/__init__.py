"""Collectives of the ranks of a client: on exchange buffers, and on tensors, the vectors of all devices.

Schedules are data: ``rings``, ``trees``, ``hosts`` and ``hierarchical`` compute what each rank does as a
list of ``steps``; ``cost`` predicts what that takes, ``choice`` chooses. ``driver`` carries them out for
``group``, which the MPI thread of a store calls, and for ``blocking``, which the thread of a
``tensor_group`` calls. MXNET-MPI (Mamidala et al., 2018), sections 6 and 7.3.
"""
