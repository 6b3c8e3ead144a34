"""What a client does with its center, over a store that hands out a known one."""

from __future__ import annotations

import json

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

# Below the skip, because they import mxnet.
from support.elastic_client import adopt, elastic_step  # noqa: E402

from kvstore_mpi.adapters.mxnet import ElasticCallback, ElasticTrainer  # noqa: E402
from kvstore_mpi.adapters.mxnet.centers import Centers  # noqa: E402
from kvstore_mpi.errors import UsageError  # noqa: E402
from kvstore_mpi.esgd import DiLoCo, Elastic, LocalSGD  # noqa: E402
from kvstore_mpi.esgd.stagger import exchange_offset  # noqa: E402

pytestmark = pytest.mark.mxnet

SIZE = 1_001


class KnownCenter:
    """A store of one client whose center is what ``centers`` says; it keeps what was pushed."""

    type = "dist_sync_mpi"
    num_servers, num_clients, client, mpi_size = 1, 1, 0, 1
    goes_on = False

    def __init__(self):
        self.server_optimizer = None
        self.centers = {}
        self.pushed = []

    def set_optimizer(self, optimizer, **terms):
        self.server_optimizer = optimizer.spec()

    def broadcast(self, key, value, out, priority):
        self.centers.setdefault(key, value.asnumpy())
        for target in out:
            target[:] = self.centers[key]

    def pushpull_staged(self, key, values, priority):
        self.pushed.append((key, values[0].asnumpy()))
        return mx.nd.array(self.centers[key], dtype=self.centers[key].dtype)

    def pull(self, key, out, priority):
        for target in out:
            target[:] = self.centers[key]


def no_masters(_key, _dtype):
    """Return what the local optimizer has of a key: no copy on any device."""
    return [None, None]


def draw(seed, dtype):
    return np.random.RandomState(seed).standard_normal(SIZE).astype(dtype)


@pytest.mark.paper("MXNET-MPI eq. 3", "DiLoCo algorithm 1")
@pytest.mark.parametrize("devices", [[mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]], ids=["one", "two"])
@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("rule", [Elastic(0.0), Elastic(0.3), Elastic(1.0), LocalSGD()], ids=repr)
def test_a_center_is_applied_to_the_weights_as_they_are_then(rule, dtype, overlap, devices):
    """What was learnt between push and answer stays: the step is from what was pushed."""
    store, learnt = KnownCenter(), draw(3, dtype)
    centers = Centers(store, rule, 4, no_masters, overlap=overlap)
    arrays = [mx.nd.zeros(SIZE, ctx=device, dtype=dtype) for device in devices]
    centers.join(0, arrays)
    pushed, store.centers[0] = draw(1, dtype), draw(2, dtype)
    for array in arrays:
        array[:] = pushed
    for _ in range(4):
        centers.step(1)
    expected = pushed.copy()
    if overlap:
        for array in arrays:
            array[:] = array + mx.nd.array(learnt, ctx=array.context, dtype=dtype)
        expected += learnt
        centers.step(1)
        np.testing.assert_array_equal(arrays[0].asnumpy(), expected)  # it is not due yet
        centers.step(1)
    then = pushed if overlap else None
    if isinstance(rule, Elastic):
        elastic_step(expected, store.centers[0], rule.spec().params["alpha"], then)
    else:
        adopt(expected, store.centers[0], then)
    exact = rule.spec().params.get("alpha") == 0.0 or (not overlap and isinstance(rule, LocalSGD))
    tolerance = 0 if exact else 4 * np.finfo(dtype).eps
    for array in arrays:
        np.testing.assert_allclose(array.asnumpy(), expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(store.pushed[0][1], pushed)


@pytest.mark.parametrize("rule", [Elastic(0.5), LocalSGD()], ids=repr)
def test_no_steps_between_are_no_overlap(rule):
    """With nothing learnt meanwhile a center that is applied later does the same."""
    ended = []
    for overlap in (0, 2):
        store = KnownCenter()
        centers = Centers(store, rule, 4, no_masters, overlap=overlap)
        array = mx.nd.zeros(SIZE)
        centers.join(0, [array])
        array[:], store.centers[0] = draw(1, "float32"), draw(2, "float32")
        for _ in range(4 + overlap):
            centers.step(1)
        ended.append(array.asnumpy())
    np.testing.assert_allclose(*ended, rtol=1e-6, atol=1e-6)


def make_trainer(store, *, interval=1, **options):
    """A trainer with momentum over a layer with normalisation."""
    mx.random.seed(7)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(3, in_units=4), mx.gluon.nn.BatchNorm(in_channels=3))
    net.initialize(mx.init.Xavier())
    hyper = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = ElasticTrainer(
        net.collect_params(), "sgd", hyper, kvstore=store, interval=interval, **options
    )
    return net, trainer


def learn(net, step):
    """Run forward and backward."""
    with mx.autograd.record():
        loss = (net(mx.nd.array(np.random.RandomState(step).randn(8, 4))) ** 2).sum()
    loss.backward()


def momenta(trainer):
    return {key: state.asnumpy() for key, state in trainer._updaters[0].states.items()}


def weights(trainer):
    return [param.data().asnumpy() for param in trainer._params]


def test_the_exchange_comes_after_the_step():
    """What is pushed has this step's gradient in it."""
    store, alone = KnownCenter(), KnownCenter()
    net, trainer = make_trainer(store, server_optimizer=LocalSGD())
    other, plain = make_trainer(alone, interval=50)
    for each, its_trainer in ((net, trainer), (other, plain)):
        learn(each, 0)
        its_trainer.step(8)
    assert [key for key, _ in store.pushed] == list(range(6))
    for (_, pushed), stepped in zip(store.pushed, weights(plain)):
        np.testing.assert_array_equal(pushed, stepped)
    assert alone.pushed == []


@pytest.mark.parametrize("server_optimizer", [Elastic(0.5), DiLoCo()], ids=repr)
def test_momentum_stays_local(server_optimizer):
    """An exchange moves the parameters and leaves the local optimizer's states as they are, to the bit."""
    store = KnownCenter()
    net, trainer = make_trainer(store, interval=3, server_optimizer=server_optimizer)
    for step in range(2):
        learn(net, step)
        trainer.step(8)
    before, held = weights(trainer), momenta(trainer)
    assert any(momentum.any() for momentum in held.values())
    trainer._centers.step(6)
    assert len(store.pushed) == 6
    assert any((old != new).any() for old, new in zip(before, weights(trainer)))
    for key, momentum in momenta(trainer).items():
        np.testing.assert_array_equal(momentum, held[key])


def test_a_loaded_counter_goes_on(tmp_path):
    """The next exchange comes when it would have come."""
    net, trainer = make_trainer(KnownCenter(), interval=5)
    for step in range(3):
        learn(net, step)
        trainer.step(8)
    trainer.save_states(str(tmp_path / "states"))
    assert json.loads((tmp_path / "states").read_bytes().rpartition(b"kvstore_mpi ")[2]) == {"steps": 3}
    store = KnownCenter()
    net, trainer = make_trainer(store, interval=5)
    learn(net, 3)
    trainer.load_states(str(tmp_path / "states"))
    trainer.step(8)
    assert store.pushed == []
    learn(net, 4)
    trainer.step(8)
    assert len(store.pushed) == 6


def test_what_is_under_way_is_applied_before_states_are_loaded(tmp_path):
    """With the counter set back a parameter may be due again at once."""
    store = KnownCenter()
    net, trainer = make_trainer(store, interval=2, overlap=1, alpha=0.5)
    trainer.save_states(str(tmp_path / "states"))
    for step in range(2):
        learn(net, step)
        trainer.step(8)
    before = weights(trainer)
    trainer.load_states(str(tmp_path / "states"))
    for key, (array, old) in enumerate(zip(weights(trainer), before)):
        np.testing.assert_allclose(array, (old + store.centers[key]) / 2, rtol=1e-5, atol=1e-6)


def test_the_halves_of_a_step_are_a_step():
    """``allreduce_grads`` and ``update`` instead of ``step``, as for clipping in between."""
    ended = []
    for halves in (False, True):
        store = KnownCenter()
        net, trainer = make_trainer(store, interval=2)
        for step in range(4):
            learn(net, step)
            if halves:
                trainer.allreduce_grads()
                trainer.update(8)
            else:
                trainer.step(8)
        ended.append((weights(trainer), [pushed for _, pushed in store.pushed]))
    for one, other in zip(*ended):
        for array, twin in zip(one, other):
            np.testing.assert_array_equal(array, twin)
    assert len(ended[0][1]) == 12


def test_the_clients_own_weights_come_back(tmp_path):
    """Within ``center`` the center can be saved; afterwards, also after an error, all is as before."""
    store = KnownCenter()
    net, trainer = make_trainer(store, interval=50)
    learn(net, 0)
    trainer.step(8)
    own = weights(trainer)
    with trainer.center():
        net.save_parameters(str(tmp_path / "center"))
        for array, center in zip(weights(trainer), store.centers.values()):
            np.testing.assert_array_equal(array, center)
    with pytest.raises(RuntimeError), trainer.center():
        raise RuntimeError
    for array, before in zip(weights(trainer), own):
        np.testing.assert_array_equal(array, before)
    assert any((array != center).any() for array, center in zip(own, store.centers.values()))
    net.load_parameters(str(tmp_path / "center"))
    for array, center in zip(weights(trainer), store.centers.values()):
        np.testing.assert_array_equal(array, center)


def test_before_the_first_step_the_center_is_there_as_well():
    """Who asks for it begins with it; and what has none is named."""
    store = KnownCenter()
    net, trainer = make_trainer(store)
    center = np.full((3, 4), 7.0, np.float32)
    store.centers[trainer._params.index(net[0].weight)] = center
    with trainer.center():
        np.testing.assert_array_equal(net[0].weight.data().asnumpy(), center)
    net.add(mx.gluon.nn.Dense(1, prefix="late_"))
    net.initialize()
    trainer = ElasticTrainer(net[2].collect_params(), "sgd", kvstore=KnownCenter())
    with pytest.raises(UsageError, match=r"parameter late_weight has no shape yet: call net\(data\) once"):
        trainer.center()
    store.client_store = lambda: None
    with pytest.raises(UsageError, match="no center before the first batch"):
        ElasticCallback(store).center()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_exchanges_are_spread_in_asynchronous_stores_only(mode):
    """There by keys and clients; in a synchronous store all keys go at once, since rounds wait for all."""
    store = KnownCenter()
    store.type, store.client, store.num_clients = f"dist_{mode}_mpi", 1, 2
    centers = Centers(store, LocalSGD(), 4, no_masters)
    for key in range(2):
        centers.join(key, [mx.nd.zeros(SIZE)])
    found = []
    for _ in range(4):
        before = len(store.pushed)
        centers.step(2)
        found.append([key for key, _ in store.pushed[before:]])
    spread = [
        [key for key in range(2) if exchange_offset(1, 2, key, 2, 4) == step % 4] for step in range(1, 5)
    ]
    assert found == (spread if mode == "async" else [[], [], [], [0, 1]])
    assert spread.count([]) == 2
