"""What trainers of parts read of a plan, and what they write for one, on one rank."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

mx = pytest.importorskip("mxnet")

from support import model_parts  # noqa: E402
from support.model_parts import OPTIONS, distance, loss_of, make_chain, make_towers, train_alone  # noqa: E402

from kvstore_mpi.adapters.mxnet.parts import part_trainer  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.mxnet import PartTrainer, PipelineTrainer  # noqa: E402
from kvstore_mpi.planner.cuts import PIPELINE, PLACEMENT, Cut, read_parts  # noqa: E402

pytestmark = pytest.mark.mxnet


@pytest.fixture
def store(monkeypatch):
    """Return what stands for the store of rank 1 of a worker of two, which nothing is sent to."""
    monkeypatch.setattr(part_trainer, "own_links", lambda: None)
    return SimpleNamespace(model_parallel=2, model_rank=1)


def pipeline(net, kvstore, **options):
    """Make a trainer, as a script does that leaves the cut to the plan."""
    return PipelineTrainer(net, loss_of, "sgd", OPTIONS, kvstore=kvstore, **options)


def towers(net, kvstore, **options):
    """Make a trainer of the towers, all of which are on rank 0 for all that the script knows."""
    return PartTrainer(net.parts([0] * 6), loss_of, "sgd", OPTIONS, kvstore=kvstore, **options)


def asked(monkeypatch, tmp_path, make_trainer, net, inputs=1):
    """Train as under ``mpilaunch plan``; return the parts that were written."""
    path = tmp_path / "parts.json"
    monkeypatch.setenv("KVMPI_PARTS_FILE", str(path))
    trainer = make_trainer(net, "local", micro_batches=2)
    model_parts.train_parts(trainer, inputs=inputs)
    monkeypatch.delenv("KVMPI_PARTS_FILE")
    return read_parts(path.read_bytes())


def test_a_pipeline_says_what_its_layers_cost_and_is_cut_as_planned(monkeypatch, tmp_path, store):
    """What is measured changes nothing that is trained; explicit stages come before the plan."""
    net = make_chain()
    parts = asked(monkeypatch, tmp_path, pipeline, net)
    assert distance(model_parts.values_of(net), train_alone(make_chain())) <= 1e-6
    names = tuple(layer.name for layer in net)
    assert (parts.kind, parts.micro_batches, parts.graph.order()) == (PIPELINE, 2, names)
    first = parts.graph.by_name()[names[0]]
    assert min(first.forward_seconds, first.backward_seconds) > 0
    assert min(parts.handling.byte_s, parts.handling.message_s) > 0
    assert first.parameter_bytes == 3 * 4 * (8 * 9 + 8)
    assert first.activation_bytes == parts.graph.edges[0].num_bytes == 8 * 8 * 64 * 4
    cut = Cut(PIPELINE, parts.graph.structure, (names[:1], names[1:]), (names[:1], names[:0:-1]))
    monkeypatch.setenv("KVMPI_CUT", cut.to_json())
    trainer = pipeline(net, store)
    assert trainer.stages.bounds == (1,)
    assert [param.name for param in trainer._net.parameters(1)] == [
        name for each in parts.graph.operations[1:] for name in each.weights
    ]
    assert pipeline(net, store, stages=[3]).stages.bounds == (3,)
    with pytest.raises(UsageError, match="the plan is for another net"):
        pipeline(make_chain(), store)  # whose layers have other names
    with pytest.raises(UsageError, match="for a PipelineTrainer and not for a PartTrainer"):
        towers(make_towers(), store)


def test_parts_say_what_they_cost_and_are_where_and_when_the_plan_says(monkeypatch, tmp_path, store):
    """Ranks and order; a schedule that is given comes before the plan, and so do its ranks."""
    net = make_towers()
    parts = asked(monkeypatch, tmp_path, towers, net, inputs=2)
    assert parts.kind == PLACEMENT
    assert {(each.source, each.target) for each in parts.graph.edges} == {
        *(("stem", "left"), ("stem", "right"), ("left", "top"), ("right", "top")),
        *(("top", "last"), ("gate", "last")),
    }
    forward = (("stem", "left", "top", "last"), ("gate", "right"))
    backward = (("last", "top", "left", "stem"), ("gate", "right"))
    cut = Cut(PLACEMENT, parts.graph.structure, forward, backward)
    monkeypatch.setenv("KVMPI_CUT", cut.to_json())
    trainer = towers(net, store)
    names = [part.name for part in trainer._net.parts]
    told = [(names[action.segment], action.forward) for action in trainer._actions]
    assert told == [("gate", True), ("right", True), ("gate", False), ("right", False)]
    given = PartTrainer(
        net.parts([0, 1, 0, 0, 0, 0]),
        loss_of,
        "sgd",
        OPTIONS,
        kvstore=store,
        schedule=cut_schedule(net.parts([0, 1, 0, 0, 0, 0])),
    )
    assert [part.name for part in given._net.parts if part.rank == 1] == ["left"]


def cut_schedule(parts):
    """Return the usual order for parts on these ranks."""
    return part_trainer.fill_drain(part_trainer.Net(parts, 2).graph, 1)
