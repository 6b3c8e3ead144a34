"""A training of a simulated job, and what must be true of it whatever the network does.

Run ``python -m support.simulated_training FIRST [END] [--crash]`` to repeat the runs of seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore_mpi.errors import PeerLostError
from kvstore_mpi.records import SCHEDULER, NodeId, Role, parameter_of
from kvstore_mpi.server_optimizers import HyperParameters, OptimizerSpec
from support.seeds import carry_out, check, parser, run_range
from support.simulated_key import KeyRun
from support.simulated_plan import SLICE_ELEMENTS, Plan, plan_of
from support.simulated_tables import TableRun
from support.simulation import Simulation

if TYPE_CHECKING:
    from support.simulated_shells import Program, SimulatedWorker

Array = np.ndarray[Any, Any]

CALM_AFTER = 20.0
"""Virtual time at which the network stops to fail, so that every run must end."""

LIMIT = 60.0
"""Virtual time by which every run must have ended."""

HEARTBEAT = 0.1
"""Short against the time that a process gives its last messages to arrive, for many of them may be lost."""

PEER_TIMEOUT = 5.0
"""Silence after which a process counts as dead, in runs in which one dies."""

SURVIVAL = 6 * PEER_TIMEOUT
"""Virtual time after a death by which the rest must have ended: the death has to be noticed, and then the
end of the workers that it ends."""

SPEC = OptimizerSpec(name="sgd", hyper=HyperParameters(lr=1.0)).to_dict()
"""weight -= sum of gradients."""


class Training:
    """One run of a plan."""

    def __init__(self, plan: Plan, **config: Any) -> None:
        """Make the job, with ``config`` instead of defaults of ``NodeConfig``; ``run`` runs it."""
        self.plan = plan
        defaults = {
            "slice_elements": SLICE_ELEMENTS,
            "heartbeat": HEARTBEAT,
            "peer_timeout": 60.0 if plan.victim is None else PEER_TIMEOUT,
        }
        self.simulation = Simulation(plan.topology, plan.seed, **{**defaults, **config})
        self.victims: list[NodeId] = []
        self._died_at = 0.0
        self._key_runs: list[KeyRun] = []
        self._finished: set[NodeId] = set()

    def run(self) -> None:
        """Run the job to its end and check everything.

        Raises:
            AssertionError: Something that must be true is not.
        """
        simulation = self.simulation
        simulation.disturb(self.plan.faults, CALM_AFTER, breaks=self.plan.breaks)
        for worker in simulation.workers:
            worker.spawn(self._script(worker))
        simulation.run(LIMIT)
        if self.victims:
            self._check_survivors()
        else:
            self._check_all()

    # --- what a worker does ---

    def _script(self, worker: SimulatedWorker) -> Program:
        plan = self.plan
        yield worker.joined
        if plan.victim is not None and all(other.joined() for other in self.simulation.workers):
            self.simulation.later(plan.death, self._kill)
        worker.open_store(plan.mode)
        if plan.updates:
            worker.set_optimizer(0, SPEC)
            yield worker.answered
        keys = self.simulation.random.sample(plan.keys, len(plan.keys))
        runs = [(TableRun if key.partitions else KeyRun)(worker, key, plan) for key in keys]
        self._key_runs += runs
        under_way = set(runs)
        for run in runs:
            worker.spawn(self._train(run, under_way))
        yield lambda: not under_way
        if plan.looks_back:
            worker.barrier()
            yield worker.answered
            for run in runs:
                yield from run.last_look(plan.rounds)
        if worker.failure() is None:
            self._finished.add(worker.node)

    def _train(self, run: KeyRun, under_way: set[KeyRun]) -> Program:
        yield from run.init()
        for number in range(self.plan.rounds):
            if self.simulation.random.choice([True, False, False]):
                yield self.simulation.random.uniform(0.0, 0.1)
            yield from run.round(number)
        under_way.discard(run)

    def _kill(self) -> None:
        plan, topology = self.plan, self.plan.topology
        if plan.victim is Role.WORKER:  # MPI ends the whole client with it
            nodes = [NodeId(Role.WORKER, rank) for rank in topology.members_of(plan.victim_index)]
        else:
            nodes = [NodeId(Role.SERVER, plan.victim_index) if plan.victim is Role.SERVER else SCHEDULER]
        if all(map(self.simulation.is_running, nodes)):
            self.victims = nodes
            self._died_at = self.simulation.network.now
            self.simulation.crash(nodes)

    # --- what must be true in the end ---

    def _check_all(self) -> None:
        """Everything has ended once, without an error, and the servers' books balance."""
        plan, simulation = self.plan, self.simulation
        for worker in simulation.workers:
            check(worker.node in self._finished, f"{worker.node} has not finished: {worker.failure()!r}")
        for run in self._key_runs:
            check(all(ending == [None] for ending in run.endings), f"{run}: ended with {run.endings}")
        for service in (*simulation.servers, simulation.scheduler):
            if service is not None and service.error is not None:
                raise AssertionError("a server or the scheduler has failed") from service.error
        updates = plan.rounds * (plan.topology.num_clients if plan.mode == "async" else 1)
        first_rounds = {run.key.name: run.first_round for run in self._key_runs}
        for server in simulation.servers:
            for unit in server.units(0):
                pushes = plan.rounds - first_rounds[parameter_of(unit.key.key)]
                clients = [pushes] * plan.topology.num_clients
                good = unit.applied == unit.pushed == clients and unit.updates == updates
                check(
                    good, f"{server.node}, key {unit.key.key!r}: {unit.applied} in {unit.updates} updates"
                )

    def _check_survivors(self) -> None:
        """Every operation has ended once; whoever could not go on says that a process is lost."""
        took = self.simulation.network.now - self._died_at
        check(took <= SURVIVAL, f"the survivors took {took:.0f} s to end")
        for run in self._key_runs:
            if run.worker.node not in self.victims:
                check(all(len(ending) == 1 for ending in run.endings), f"{run}: ended with {run.endings}")
        for worker in self.simulation.workers:
            if worker.node not in self.victims and worker.node not in self._finished:
                error = worker.failure()
                check(isinstance(error, PeerLostError), f"{worker.node} ended with {error!r}")
                may_go_on = self.plan.mode == "async" and NodeId(Role.WORKER, 0) not in self.victims
                needed = self.plan.victim is not Role.WORKER
                check(needed or not may_go_on, f"{worker.node} need not have ended with {error}")


def run_seed(seed: int, *, crash: bool = False, leaders: str = "one") -> Training:
    """Run the training of a seed.

    Raises:
        AssertionError: Something went wrong; the message tells how to repeat it.
    """
    command = f"{__spec__.name} {seed}{' --crash' if crash else ''} --leaders {leaders}"
    return carry_out(Training(plan_of(seed, crash=crash), leaders=leaders), seed, command)


def main() -> None:
    """Run the seeds that the command line names, and say how fast."""
    arguments = parser(__doc__)
    arguments.add_argument("--crash", action="store_true")
    arguments.add_argument("--leaders", default="one")
    run_range(arguments.parse_args(), run_seed)


if __name__ == "__main__":
    main()
