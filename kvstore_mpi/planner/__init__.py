"""When to add model parallelism, and how many clients, servers and devices to give to a training. Pure.

After Pal et al., "Optimizing Multi-GPU Parallelization Strategies for Deep Learning Training" (2019):
beyond some number of devices a larger batch costs more epochs than it saves time, and workers of several
devices each win. What a training costs is C = T x S x E: seconds of a step, steps of an epoch, epochs.

::

    speedup          equations (1) to (6) of the paper
    epochs           E(B), epochs against the global batch, measured
    net              what a step computes and sends
    cluster          hosts, devices and links
    store_costs      what the store's processes take besides
    cuts             which rank of a worker has which parts of a net
    workers          divides a net among the devices of a worker
    tables           numbers of pieces of tables to compare, and what the busiest server has
    sending          what layers cost between hosts, of links and of processors
    row_costs        what rows cost the processors, from measured steps
    communication    T: the length of a step for a number of workers
    planning         ranks configurations
    explanation      says why, for people
    plan_file        a plan as JSON
    placement        which device computes which operation of a net
    pipelines        nets in segments: where to cut, in which order to compute, how long it takes
"""

from kvstore_mpi.planner.cluster import Cluster, Device, Link, Roofline, read_cluster
from kvstore_mpi.planner.epochs import EpochsCurve, read_curve
from kvstore_mpi.planner.net import Net, NetLayer, read_net
from kvstore_mpi.planner.plan_file import read_plan
from kvstore_mpi.planner.planning import Plan, plan
from kvstore_mpi.planner.store_costs import Rows, ServedRows
from kvstore_mpi.planner.workers import ModelParallel

__all__ = [
    "Cluster",
    "Device",
    "EpochsCurve",
    "Link",
    "ModelParallel",
    "Net",
    "NetLayer",
    "Plan",
    "Roofline",
    "Rows",
    "ServedRows",
    "plan",
    "read_cluster",
    "read_curve",
    "read_net",
    "read_plan",
]
