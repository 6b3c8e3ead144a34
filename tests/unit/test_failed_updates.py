"""What a server's log has of updates that could not be made."""

import logging

from support.one_server import Server, only

from kvstore_mpi.errors import UsageError
from kvstore_mpi.server.failures import FailedUpdates
from kvstore_mpi.server.records import Update
from kvstore_mpi.wire.instructions import Log


def updates(server, sequence):
    """Return the updates of the two slices of a key by a client's push."""
    return only(Update, server.push(0, sequence, slices=[(0, 5), (5, 8)]))


def test_one_line_for_each_failure_of_a_key():
    """Not for each slice; the next update that fails has its own."""
    server, failed, error = Server(1, optimizer="lr"), FailedUpdates(), UsageError("it is no number")
    first, second = updates(server, 1), updates(server, 2)
    assert len(first) == len(second) == 2
    told = [failed.log(update, error) for update in (*first, *second)]
    lines = [f"update {number} of key 'w' by sgd failed: it is no number" for number in (1, 2)]
    assert told == [[Log(logging.ERROR, lines[0])], [], [Log(logging.ERROR, lines[1])], []]
    assert len(failed.log(second[0], UsageError("for another reason"))) == 1
