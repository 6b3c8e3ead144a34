"""DLPlacer: which device computes which operation of a net, in which order, and over which links. Pure.

Pal et al., "Optimizing multi-GPU parallelization strategies for deep learning training" (IEEE Micro 2019),
whose equations (7) to (13) are checked and solved here::

    graph           the net: operations with times and memory, edges with bytes
    devices         devices, routers and links
    placement       the answer: device, order, route; predicted time, bound, gap
    place           finds it: from a graph and a cluster to a checked placement
    problem         what solvers are given, in whole nanoseconds
    decompose       cuts it at operations through which everything passes
    cp              solves a piece by CP-SAT
    search          solves a piece without it
    list_schedule   times for tasks whose devices are known
    baselines       HEFT and m-ETF
    simulate        runs and checks a placement; shares nothing with the solvers
    trace           a predicted step for viewers
    stages          pipelines of stages, and what each device has to do
    ideals          what a prefix of stages can hold
    load_table      what devices take to go on from one to another
    max_load        the best stages for a stream of samples
    in_turn         the best ones for a single sample
    formats         reads published graphs
"""
