"""Marks of a net's parts on the trace of a job that trains them."""

from __future__ import annotations

import itertools
import threading

import pytest

mx = pytest.importorskip("mxnet")

from support import model_parts  # noqa: E402
from support.model_parts import OPTIONS, STEPS, loss_of, make_towers  # noqa: E402

from kvstore_mpi.adapters.mxnet.bridge.engine import push_async, wait_until_idle  # noqa: E402
from kvstore_mpi.adapters.mxnet.parts.part_marks import PartMarks  # noqa: E402
from kvstore_mpi.mxnet import PartTrainer  # noqa: E402
from kvstore_mpi.planner.pipelines.schedules import Action  # noqa: E402
from kvstore_mpi.records import NodeId, Role  # noqa: E402
from kvstore_mpi.tracing import annotation, parts  # noqa: E402
from kvstore_mpi.tracing.iterations import boundaries, computing  # noqa: E402
from kvstore_mpi.tracing.linking import link  # noqa: E402
from kvstore_mpi.tracing.recorder import Recorder  # noqa: E402

pytestmark = pytest.mark.mxnet

NAMES = ("stem", "left", "right", "gate", "top", "last")


@pytest.fixture
def recorder(tmp_path):
    """Return one that records a worker."""
    return Recorder(NodeId(Role.WORKER), str(tmp_path))


def timeline_of(recorder, tmp_path):
    """Return what was recorded, once the engine has nothing to do."""
    mx.nd.waitall()
    assert wait_until_idle(20)
    recorder.write()
    [timeline] = link(parts.read_parts(tmp_path))
    return timeline


def test_every_part_of_every_step_is_marked(recorder, tmp_path, monkeypatch):
    """Each once for a micro-batch and direction, one after the other, on the track of who trains."""
    monkeypatch.setattr(annotation, "_recorder", recorder)
    trainer = PartTrainer(
        make_towers().parts([0] * 6), loss_of, "sgd", OPTIONS, kvstore="local", micro_batches=2
    )
    model_parts.train_parts(trainer, inputs=2)
    timeline = timeline_of(recorder, tmp_path)
    spans = [span for span in timeline.spans if span.name != "iteration"]
    expected = sorted(
        f"{kind} {name} {batch}" for kind in ("forward", "backward") for name in NAMES for batch in range(2)
    )
    assert sorted(span.name for span in spans) == sorted(expected * STEPS)
    assert {span.thread for span in timeline.spans} == {threading.get_ident()}
    assert all(one.until <= other.since for one, other in itertools.pairwise(spans))
    assert len(boundaries(timeline)) == STEPS
    assert sum(end - begin for begin, end in computing(timeline)) > 0


def test_a_rank_that_waits_while_it_computes_does_not_wait(recorder, tmp_path):
    """A wait begins when nothing is computed any more, and is none if something is until its end."""
    marks = PartMarks(recorder, ["part"])
    array, held = mx.nd.zeros(2), []
    push_async(held.append, mutable=[array], on_error=lambda _: None)
    marks.begins(Action(0, 0, forward=True))
    marks.asked(Action(0, 0, forward=True), lambda: [array])
    with marks.waiting(lambda: "what comes before it is computed"):
        pass
    while not held:
        mx.nd.zeros(1).wait_to_read()
    with marks.waiting(lambda: "what comes after it"):
        held[0](None)
        mx.nd.waitall()
        assert wait_until_idle(20)
    spans = timeline_of(recorder, tmp_path).spans
    assert [span.name for span in spans] == ["forward part 0", "wait for what comes after it"]
    assert spans[0].until <= spans[1].since
