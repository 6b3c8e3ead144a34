"""When rank 0 knows the norm of a step: by the keys that each server's part has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvstore_mpi.records import KeySpec, NodeId, Role, StoreTerms
from kvstore_mpi.wire import messages as m
from kvstore_mpi.worker.step_norms import StepNorms

A, B = (NodeId(Role.SERVER, index) for index in range(2))


class Keys(list):
    """Keys of a store that clips to 1."""

    def terms_of(self, _store):
        return StoreTerms(clip_norm=1.0, unpushed=("frozen",))

    def put(self, name, *servers, shape=(4,)):
        self.append(SimpleNamespace(spec=KeySpec(0, name, shape, "float32"), servers=frozenset(servers)))


@pytest.fixture
def keys():
    keys = Keys()
    keys.put("w", A, B)
    keys.put("v", B)
    return keys


def test_all_servers_are_told_the_factor_of_all_parts(keys):
    norms = StepNorms(keys)
    assert norms.add(A, m.StepNorm(0, 9.0, 1)) == []
    told = norms.add(B, m.StepNorm(0, 16.0, 2))
    assert [(send.peer, send.message.value) for send in told] == [(A, 0.2), (B, 0.2)]
    assert norms.add(B, m.StepNorm(0, 16.0, 2)) == []  # of the next step


def test_a_part_without_a_key_that_has_come_since_does_not_count(keys):
    """The server tells it again, with that key."""
    norms = StepNorms(keys)
    norms.add(A, m.StepNorm(0, 9.0, 1))
    keys.put("t", A)
    assert norms.add(B, m.StepNorm(0, 16.0, 2)) == []
    assert [send.message.value for send in norms.add(A, m.StepNorm(0, 20.0, 2))] == [1 / 6, 1 / 6]


def test_keys_that_are_not_pushed_are_in_no_part(keys):
    """Those that are frozen, and those without elements."""
    keys.put("frozen", A, B)
    keys.put("empty", A, shape=(0, 3))
    norms = StepNorms(keys)
    norms.add(A, m.StepNorm(0, 0.25, 1))
    assert [send.message.value for send in norms.add(B, m.StepNorm(0, 0.25, 2))] == [1.0, 1.0]


def test_a_step_stays_open_while_a_table_of_it_has_no_place(keys):
    """It is being cut anew: the servers' parts are complete without its rows, and the step is not."""
    norms = StepNorms(keys)
    keys.put("t")
    assert norms.add(A, m.StepNorm(0, 9.0, 1)) == []
    assert norms.add(B, m.StepNorm(0, 16.0, 2)) == []
    keys[-1].servers = frozenset([B])
    assert [send.message.value for send in norms.add(B, m.StepNorm(0, 40.0, 3))] == [1 / 7, 1 / 7]
