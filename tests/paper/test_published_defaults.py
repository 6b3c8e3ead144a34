"""The numbers that server optimizers have when users give none: those of the papers, or a stated departure.

Each is looked at as it travels to the servers.
"""

from __future__ import annotations

import inspect

import pytest

from kvstore_mpi import BMUF, DCASGD, DelayedNesterov, DiLoCo, Elastic, LocalSGD, SlowMo
from kvstore_mpi.errors import UsageError
from kvstore_mpi.esgd.terms import check_terms
from kvstore_mpi.records import Mode


def inner(optimizer):
    """Return name, learning rate and hyper-parameters of the rule on the pseudo-gradient."""
    spec = optimizer.spec()
    assert spec.name == "outer"
    assert spec.hyper.wd == 0.0  # the center is not decayed: the clients' optimizers do that
    return spec.params["inner"]["name"], spec.hyper.lr, spec.params["inner"]["params"]


@pytest.mark.paper("DiLoCo algorithm 1")
def test_diloco_has_nesterov_with_0_7_and_0_9():
    """Douillard et al. 2023: outer Nesterov with learning rate 0.7 and momentum 0.9."""
    assert inner(DiLoCo()) == ("nag", 0.7, {"momentum": 0.9})


@pytest.mark.paper("FedAvg algorithm 1")
def test_local_sgd_takes_the_mean_as_it_is():
    """McMahan et al. 2017, Stich 2019: the mean of the clients, so SGD at rate 1 without momentum."""
    name, lr, params = inner(LocalSGD())
    assert (name, lr, params.get("momentum", 0.0)) == ("sgd", 1.0, 0.0)


@pytest.mark.paper("SlowMo algorithm 1")
def test_slowmo_has_rate_1_and_a_momentum_that_its_authors_used():
    """Wang et al. 2020: slow learning rate 1, slow momentum from 0.4 to 0.8 by task; ours is 0.7."""
    name, lr, params = inner(SlowMo())
    assert (name, lr, params) == ("sgd", 1.0, {"momentum": 0.7})
    assert 0.4 <= params["momentum"] <= 0.8


@pytest.mark.paper("BMUF equations 4 to 7")
@pytest.mark.parametrize("clients", [1, 2, 4, 16])
def test_bmuf_takes_its_momentum_from_the_number_of_clients(clients):
    """Chen and Huo 2016: block momentum 1 - 1 / N and block learning rate 1."""
    name, lr, params = inner(BMUF(clients))
    assert (name, lr) == ("sgd", 1.0)
    assert params["momentum"] == pytest.approx(1 - 1 / clients)


@pytest.mark.paper("Async Local-SGD algorithm 3")
def test_delayed_nesterov_has_the_numbers_of_diloco():
    """Liu et al. 2024 continue DiLoCo; the momentum moves with every N-th push, N the number of clients."""
    spec = DelayedNesterov(8).spec()
    assert (spec.hyper.lr, spec.params) == (0.7, {"momentum": 0.9, "num_clients": 8})


def test_the_compensation_of_delays_is_that_of_mxnets_optimizer():
    """MXNet's own DCASGD (optimizer/dcasgd.py) has lamda 0.04; Zheng et al. 2017 tune it by task."""
    assert DCASGD(learning_rate=0.1).spec().params["lamda"] == 0.04


@pytest.mark.paper("EASGD")
@pytest.mark.parametrize("clients", [2, 6, 12])
def test_elastic_departs_from_the_authors_rate_and_says_so_where_that_matters(clients):
    """Zhang et al. 2015 use alpha = 0.9 / p. Ours is 0.5, stable one client at a time; where the clients of
    a round are added up, an error or a warning names the authors' number, which is taken without a word."""
    assert Elastic().spec().params == {"alpha": 0.5}
    assert check_terms(Elastic().spec(), Mode.ASYNC, clients) == []
    usual = f"0.9 / clients = {0.9 / clients:.3g}"
    if clients > 3:
        with pytest.raises(UsageError, match=usual):
            check_terms(Elastic().spec(), Mode.SYNC, clients)
    [warning] = check_terms(Elastic(1.01 / clients).spec(), Mode.SYNC, clients)
    assert usual in warning
    assert check_terms(Elastic(0.9 / clients).spec(), Mode.SYNC, clients) == []


@pytest.mark.mxnet
@pytest.mark.paper("MXNET-MPI figure 8")
def test_trainers_exchange_every_64_steps():
    """The figure's INTERVAL, for trainer and callback alike; their alpha is that of ``Elastic()``."""
    pytest.importorskip("mxnet")
    from kvstore_mpi.adapters.mxnet import ElasticCallback, ElasticTrainer, elastic  # noqa: PLC0415  imports mxnet

    for each in (ElasticTrainer, ElasticCallback):
        parameters = inspect.signature(each).parameters
        assert parameters["interval"].default == 64
        assert parameters["alpha"].default is None  # so that it is known whether a user gave one
    assert elastic._server_optimizer(None, None) == Elastic()
