"""Ranks of a worker that do not compute the same step are told so, and none waits for what never comes."""

from __future__ import annotations

import queue
from hashlib import sha256

import pytest

mx = pytest.importorskip("mxnet")

from kvstore_mpi.adapters.mxnet.parts.agreement import Agreement  # noqa: E402
from kvstore_mpi.adapters.mxnet.parts.segments import Form  # noqa: E402
from kvstore_mpi.errors import MismatchError  # noqa: E402

pytestmark = pytest.mark.mxnet

FORMS = [Form((2, 3), "float32"), Form((2,), "float32")]
OTHER_LABEL = [FORMS[0], Form((2,), "int32")]


what_is_awaited = object()


def describe(forms):
    """As of a net that is equal on all ranks."""
    return sha256(repr(forms).encode()).digest()


class Links:
    """Those of a rank, to which rank 0 sends."""

    def __init__(self, rank, sent):
        """Take messages from a queue, or fill it."""
        self.rank, self._sent = rank, sent

    def share(self, array, root):
        """Send, or receive."""
        assert root == 0
        if self.rank == root:
            self._sent.put(array.copy())
        else:
            array[:] = self._sent.get_nowait()
        return [what_is_awaited]

    def wait(self, future, what):
        """Wait for nothing."""
        assert future is what_is_awaited
        assert what() == "rank 0's word on this step"


@pytest.fixture
def pair():
    """The agreements of two ranks, with equal nets."""
    sent = queue.Queue()
    return [Agreement(Links(rank, sent), describe) for rank in range(2)]


def begin(agreement, value=0.0, forms=FORMS, batch_size=None):
    """Begin a step with a batch of one value."""
    return agreement.begin(forms, [mx.nd.full((2, 3), 1.0), mx.nd.full(2, value)], batch_size)


def test_ranks_with_the_same_batches_agree(pair):
    """However often it is asked."""
    for step in range(10):
        for agreement in pair:
            check = begin(agreement, step)
            check()
            check()


def test_values_are_compared_in_the_first_steps_and_ever_more_rarely(pair):
    """A copy of each batch would cost too much, and a script that shuffles wrongly always does."""
    told = []
    for step in range(1, 18):
        begin(pair[0], 0.0)()
        try:
            begin(pair[1], 1.0)()
        except MismatchError as error:
            told.append((step, str(error)))
    assert [step for step, _ in told] == [1, 2, 4, 8, 16]
    assert all("have batches of one shape with different values" in text for _, text in told)


@pytest.mark.parametrize("other", [{"forms": OTHER_LABEL}, {"batch_size": 8}])
def test_labels_of_another_type_and_other_divisors_are_told(pair, other):
    """Also where both ranks have had such batches before, which is told before anything is updated."""
    for options in ({}, other):
        for agreement in pair:
            begin(agreement, **options)()
    begin(pair[0])
    check = begin(pair[1], **other)
    with pytest.raises(MismatchError, match="different nets, plans, optimizers or batches"):
        check()


def test_a_shape_that_is_new_to_one_rank_alone_is_told_at_once(pair):
    """The others go on, and do not know that it would wait."""
    for agreement in pair:
        begin(agreement)()
    begin(pair[0])
    with pytest.raises(MismatchError, match="give all of them the same batch and batch_size"):
        begin(pair[1], forms=OTHER_LABEL)
