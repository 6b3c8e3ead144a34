"""Whether a job can train with a server optimizer: the bounds, from both sides."""

from __future__ import annotations

import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.esgd import Elastic
from kvstore_mpi.esgd.terms import check_terms
from kvstore_mpi.records import Mode


@pytest.mark.paper("EASGD section 3")
@pytest.mark.parametrize("clients", [1, 2, 3, 12])
def test_alpha_is_bounded_where_clients_are_added_up(clients):
    """At 2 / (p + 1) a round of p clients keeps their distance; beyond, it grows."""
    bound = 2 / (clients + 1)
    check_terms(Elastic(bound).spec(), Mode.SYNC, clients)
    if clients > 1:  # for one the bound is 1, as it is for all
        with pytest.raises(UsageError, match=f"diverges on sync-mpi with {clients} clients"):
            check_terms(Elastic(bound + 1e-6).spec(), Mode.SYNC, clients)
    assert check_terms(Elastic(1.0).spec(), Mode.ASYNC, clients) == []


@pytest.mark.parametrize("clients", [2, 3, 12])
def test_a_center_that_leaves_the_clients_is_warned_of(clients):
    """Above 1 / p it moves past their mean."""
    assert check_terms(Elastic(1 / clients).spec(), Mode.SYNC, clients) == []
    [warning] = check_terms(Elastic(1 / clients + 1e-3).spec(), Mode.SYNC, clients)
    assert "past the mean" in warning
