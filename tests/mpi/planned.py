"""A script that is planned and then run by its plan; run by ``test_model_parallel.py``.

``planned.py chain|towers|operations|symbol``. Under ``mpilaunch plan`` one worker trains alone. With a
plan, each worker is two ranks: the cut must be the plan's, and every rank compares all parameters with
those of one process. ``planned.py export PREFIX`` writes the symbol of the net that ``symbol`` trains.
"""

import os
import sys
from itertools import pairwise
from pathlib import Path

import mxnet as mx

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import model_parts
from support.model_parts import OPTIONS, distance, loss_of, make_chain, make_towers, train_alone

from kvstore_mpi.mxnet import PartTrainer, PipelineTrainer, parts_of
from kvstore_mpi.planner.cuts import read_cut

kind = sys.argv[1]
if kind == "export":
    net = make_towers()
    net.hybridize()
    net(*model_parts.batches(inputs=2)[0][0])
    Path(f"{sys.argv[2]}-symbol.json").write_text(
        net(mx.sym.var("data"), mx.sym.var("data1")).tojson(), encoding="utf-8"
    )
    sys.exit(0)
kv = mx.kv.create("sync-mpi")
inputs = 1 if kind == "chain" else 2
net = make_chain() if kind == "chain" else make_towers()
if kind == "chain":
    trainer = PipelineTrainer(net, loss_of, "sgd", OPTIONS, kvstore=kv, micro_batches=4)
else:
    parts = net.parts([0] * 6) if kind == "towers" else parts_of(net, num_inputs=2)
    trainer = PartTrainer(parts, loss_of, "sgd", OPTIONS, kvstore=kv, micro_batches=2)
model_parts.train_parts(trainer, kv.rank, kv.num_workers, inputs=inputs)
if kv.model_parallel > 1:
    cut = read_cut(os.environ["KVMPI_CUT"])
    if kind == "chain":
        ran = [len(stage) for stage in cut.forward]
        bounds = (0, *trainer.stages.bounds, len(net))
        assert ran == [end - first for first, end in pairwise(bounds)], (ran, bounds)
        names = [layer.name for layer in net][bounds[kv.model_rank] : bounds[kv.model_rank + 1]]
        assert tuple(names) == cut.forward[kv.model_rank]
    else:
        mine = [part.name for part in trainer._net.parts if part.rank == kv.model_rank]
        assert sorted(mine) == sorted(cut.forward[kv.model_rank]), (mine, cut)
    model_parts_alone = train_alone(make_chain() if kind == "chain" else make_towers(), inputs=inputs)
    assert distance(model_parts.values_of(net), model_parts_alone) <= 1e-6
    sys.stdout.write(f"rank {kv.model_rank} of worker {kv.rank} of {kv.num_workers}: as planned, as one\n")
    sys.stdout.flush()
