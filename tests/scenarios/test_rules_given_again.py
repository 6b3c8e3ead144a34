"""Stores with a center whose rule is given again, while clients come to that at unequal times."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
from support.exchange_job import SIZE, open_center, params_of, spec_of, start

from kvstore_mpi.errors import UsageError
from kvstore_mpi.esgd import Elastic
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec


def test_workers_are_told_the_rule_that_they_give_together():
    """Whoever comes to its second call first waits for rank 0's second one."""
    with start(2, servers=2) as job:

        def run(worker):
            store = open_center(worker, Elastic(0.5), "async")
            worker.barrier()
            for _ in range(0 if worker.rank else 50):
                store.pull("w")  # meanwhile the other has asked
            told = worker.set_optimizer(store.number, spec_of(Elastic(0.25 if worker.rank else 0.75)))
            assert told["params"] == {"alpha": 0.75}

        job.on_all(run)


def test_a_rule_that_is_refused_leaves_nobody_waiting():
    """Who gives another one together with rank 0 goes on with the one before."""
    with start(2, servers=2) as job:

        def run(worker):
            store = open_center(worker, Elastic(0.5), "async")
            worker.barrier()
            if worker.rank == 0:
                with pytest.raises(UsageError, match="takes either gradients or parameters"):
                    worker.set_optimizer(
                        store.number, OptimizerSpec(name="sgd", hyper=HyperParameters(lr=0.5)).to_dict()
                    )
            else:
                told = worker.set_optimizer(store.number, spec_of(Elastic(0.25)))
                assert told["params"] == {"alpha": 0.5}
            worker.barrier()

        job.on_all(run)


@pytest.mark.parametrize("compress", [None, "int8", "int4"])
def test_a_client_that_has_not_heard_of_the_next_rule(compress):
    """Pushes differences to what it was sent, which is not the center as it was when the rule came."""
    with start(2, transport="tcp") as job:
        center = Future()

        def run(worker):
            store = open_center(worker, Elastic(0.5), "async", compress=compress)
            store.pushpull("w", params_of(1))
            worker.barrier()
            if worker.rank == 0:
                for _ in range(5):
                    store.pushpull("w", np.full(SIZE, 100, np.float32))
                worker.set_optimizer(store.number, spec_of(Elastic(0.25), compress=compress))
                center.set_result(store.pull("w"))
            else:
                expected = center.result(20)
                told = store.pushpull("w", params_of(1))
                np.testing.assert_allclose(told, expected, atol=8)
                np.testing.assert_allclose(store.pull("w"), 0.75 * told + 0.25 * params_of(1), atol=8)
            worker.barrier()

        job.on_all(run)
