"""What the adapter raises is an error of the package and an ``mx.MXNetError``, too."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest

mx = pytest.importorskip("mxnet")

from support.held_arrays import held  # noqa: E402

from kvstore_mpi import errors  # noqa: E402
from kvstore_mpi.adapters.mxnet import ElasticCallback, ElasticTrainer, KVStoreMPI  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge import engine  # noqa: E402
from kvstore_mpi.adapters.mxnet.bridge.mxnet_errors import in_mxnet  # noqa: E402
from kvstore_mpi.testing.fake_worker import local_groups  # noqa: E402

pytestmark = pytest.mark.mxnet


@pytest.fixture
def group():
    """Give one worker and a server."""
    with local_groups() as make:
        yield make(num_servers=1)
    assert engine.wait_until_idle(60)


def caught(kind, call, *args, **kwargs):
    """Return the error of a call, which must be both MXNet's and one of this kind."""
    with pytest.raises(mx.MXNetError) as found:
        call(*args, **kwargs)
    assert isinstance(found.value, kind)
    return found.value


def test_what_a_call_refuses(group):
    """``except mx.MXNetError`` and ``except UsageError`` both catch it; the name is the package's."""
    kv = KVStoreMPI("sync", group.workers[0])
    error = caught(errors.UsageError, kv.pull, "never", out=mx.nd.zeros(2))
    assert "key 'never' has not been initialised" in str(error)
    assert f"{type(error).__module__}.{type(error).__name__}" == "kvstore_mpi.errors.UsageError"
    assert error.exit_code == errors.UsageError.exit_code
    assert error.__context__ is None or error.__suppress_context__
    for wrong in ({"type": "1bit"}, {"typ": "2bit"}, {}, None, "float16"):
        caught(errors.UnsupportedError, kv.set_gradient_compression, wrong)
    caught(errors.UnsupportedError, kv.client_store().barrier)


def test_what_the_worker_refuses(group):
    """Errors of the core get the second base where they leave the adapter."""
    with local_groups() as make:
        caught(errors.ConfigurationError, KVStoreMPI, "async", make().workers[0])
    trainer = {"params": mx.gluon.ParameterDict(), "optimizer": "sgd"}
    kv = KVStoreMPI("sync", group.workers[0])
    caught(errors.UsageError, ElasticTrainer, **trainer, kvstore=kv, interval=0)


def test_what_an_exchange_ends_with(group):
    """An array that carries the error raises both, and so does the store's next call."""
    kv = KVStoreMPI("sync", group.workers[0])
    value, out = mx.nd.ones(2), mx.nd.zeros(2)
    kv.init("w", value)
    group.fail(lambda call: call.name == "pushpull", errors.PeerLostError("server0 is gone"))
    with held(value):  # or the call itself may raise what its exchange has ended with
        kv.pushpull("w", value, out=out)
    caught(errors.PeerLostError, out.wait_to_read)
    assert str(caught(errors.PeerLostError, kv.pull, "w", out=out)) == "server0 is gone"


def test_an_error_of_any_text_ends_its_operation():
    """The name of a file, in an error, may have been written in another encoding."""
    out = mx.nd.zeros(1)
    error = OSError("cannot open r\udce9sum")
    engine.push_async(lambda done: done(error), mutable=[out], on_error=lambda _: None)
    assert engine.wait_until_idle(60)
    with pytest.raises(mx.MXNetError, match=r"cannot open r\\udce9sum"):
        out.wait_to_read()


def test_an_operation_ends_though_nobody_can_be_told_why():
    """Whoever is to note its error may fail, and the array's readers must not wait for ever."""

    def note(_):
        raise ZeroDivisionError

    out = mx.nd.zeros(1)
    engine.push_async(lambda done: done(RuntimeError("broken")), mutable=[out], on_error=note)
    assert engine.wait_until_idle(60)
    with pytest.raises(mx.MXNetError, match="broken"):
        out.wait_to_read()


def test_errors_travel_between_processes():
    """A copy and an unpickled error are of both kinds and say the same."""
    error = in_mxnet(errors.DeadlineError("no answer"))
    assert in_mxnet(error) is error
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert isinstance(other, mx.MXNetError)
        assert isinstance(other, errors.DeadlineError)
        assert other.args == ("no answer",)


@pytest.mark.parametrize("num_servers", [0, 1])
def test_compression_where_no_server_updates(num_servers):
    """A Trainer that updates by itself would push its gradients as they are, and say nothing."""
    with local_groups() as make:
        kv = KVStoreMPI("sync", make(num_servers=num_servers).workers[0])
        kv.init("a", mx.nd.zeros(2))
        kv.set_gradient_compression({"type": "float16"})
        error = caught(errors.UsageError, kv.pushpull, "a", mx.nd.ones(2))
        assert "gradients are to be compressed (compression_params, 'float16'), and only servers" in str(
            error
        )


class OfTheUsers(mx.optimizer.SGD):
    """One that servers do not have."""


@pytest.mark.parametrize("num_servers", [0, 1])
def test_terms_where_workers_update(num_servers):
    """The error says which term, and why not here."""
    with local_groups() as make:
        kv = KVStoreMPI("sync", make(num_servers=num_servers).workers[0])
        optimizer = OfTheUsers() if num_servers else mx.optimizer.SGD()
        error = caught(errors.UsageError, kv.set_optimizer, optimizer, compress="float16")
        assert "compress='float16' is for servers that update, and " in str(error)
        expected = "in this store the workers do, with OfTheUsers" if num_servers else "this job has none"
        assert expected in str(error)


def test_callbacks_are_for_plain_modules(group):
    """Those with several have their arrays in other orders."""
    elastic = ElasticCallback(KVStoreMPI("sync", group.workers[0]))
    bucketing = mx.mod.BucketingModule(lambda key: (mx.sym.var("data"), ["data"], []), 5)
    error = caught(errors.UnsupportedError, elastic, SimpleNamespace(locals={"self": bucketing}))
    assert "ElasticCallback is for mx.mod.Module, and this is a BucketingModule" in str(error)


@pytest.mark.parametrize("num_servers", [0, 1])
def test_a_store_is_for_one_module(num_servers):
    """The optimizer of another one would take the place of the first one's."""
    with local_groups() as make:
        kv = KVStoreMPI("sync", make(num_servers=num_servers).workers[0])
        kv.set_optimizer(mx.optimizer.SGD(param_idx2name={0: "first_weight"}))
        kv.init("first_weight", mx.nd.zeros(2))
        other = mx.optimizer.SGD(param_idx2name={0: "second_weight"})
        error = caught(errors.UsageError, kv.set_optimizer, other)
        assert "'second_weight', than those that it has, such as 'first_weight'" in str(error)
        kv.set_optimizer(mx.optimizer.SGD())  # by hand, for whatever keys there are
