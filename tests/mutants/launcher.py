"""``mpilaunch``: what is started, what is done about what happens, and whose fault it was."""

from __future__ import annotations

from mutants.table import Mutant

_POLICY = ("unit/test_launcher_policy.py",)
_RESTARTS = ("unit/test_launcher_restarts.py",)
_EXIT = ("unit/test_launcher_client_exit.py",)
_GUARDS = ("unit/test_launcher_guards.py",)
_PLAN = ("unit/test_launcher_plan.py",)
_SPEC = ("unit/test_launcher_jobspec.py",)
_LEADERS = ("unit/test_launcher_leaders.py",)

MUTANTS = [
    Mutant(
        "all ranks lead where the busiest link gains nothing",
        "launcher/leaders.py",
        "> MARGIN * busiest(placement, all_push=False)",
        "> busiest(placement, all_push=False)",
        _LEADERS,
    ),
    Mutant(
        "all ranks lead where servers have no core",
        "launcher/leaders.py",
        "for host in ranks) + Counter(placement.servers)",
        "for host in ranks)",
        _LEADERS,
    ),
    Mutant(
        "what several leaders share goes out once",
        "launcher/leaders.py",
        "pushes * max(1, len(pushed) - 1)",
        "pushes",
        _LEADERS,
    ),
    Mutant(
        "the last failure explains the others",
        "launcher/root_cause.py",
        "first = min(failures, key=lambda failure: failure.when)",
        "first = max(failures, key=lambda failure: failure.when)",
        _POLICY,
    ),
    Mutant(
        "who reports a death is blamed for it",
        "launcher/root_cause.py",
        "    if not first.is_secondary:",
        "    if True:",
        _POLICY,
    ),
    Mutant(
        "any later failure explains an earlier one",
        "launcher/root_cause.py",
        "own = [each for each in failures if not each.is_secondary and each.when <= first.when + grace]",
        "own = [each for each in failures if not each.is_secondary]",
        _POLICY,
    ),
    Mutant(
        "a rank that slept too long only reports",
        "launcher/root_cause.py",
        "return code == PeerError.exit_code and error != LeaseExpiredError.__name__",
        "return code == PeerError.exit_code",
        _RESTARTS,
    ),
    Mutant(
        "a rank that saved without being told has done well",
        "launcher/client_exit.py",
        "if record.code == 0 or (record.code == SAVED and signal.SIGUSR1 in self.signals):",
        "if record.code in (0, SAVED):",
        _EXIT,
    ),
    Mutant(
        "a rank that vanished after our SIGKILL has failed",
        "launcher/client_exit.py",
        "if (self._lost or not self.failed) and not self.signals & _FORCED:",
        "if self._lost or not self.failed:",
        _EXIT,
    ),
    Mutant(
        "the first that was gone is blamed for another's crash",
        "launcher/client_exit.py",
        "lost = next((each for each in ended if told_of[each.rank] in _CRASHED), ended[0])",
        "lost = ended[0]",
        _POLICY,
    ),
    Mutant(
        "clients need not wait for the scheduler",
        "launcher/policy.py",
        'return self._start(["scheduler"], now)',
        'return self._start(["scheduler"], now) + self._start_rest(now)',
        _POLICY,
    ),
    Mutant(
        "one restart more than allowed",
        "launcher/policy.py",
        "return self.stage is Stage.RUNNING and len(self._restarts) < self._limits.max_restarts",
        "return self.stage is Stage.RUNNING and len(self._restarts) <= self._limits.max_restarts",
        _RESTARTS,
    ),
    Mutant(
        "who only reports is restarted",
        "launcher/policy.py",
        "own = any(not each.is_secondary for each in failures)",
        "own = bool(failures)",
        _RESTARTS,
    ),
    Mutant(
        "a restarted client has the number of the one before",
        "launcher/policy.py",
        "incarnation = 1 + sum(1 for each in self._restarts if each.name == name)",
        "incarnation = 1 + len(self._restarts)",
        _RESTARTS,
    ),
    Mutant(
        "records of an old run count",
        "launcher/policy.py",
        "        if event.name.incarnation != client.incarnation:",
        "        if event.name.incarnation > client.incarnation:",
        _RESTARTS,
    ),
    Mutant(
        "a timeout is a success",
        "launcher/policy.py",
        "            return DeadlineError.exit_code",
        "            return 0",
        _POLICY,
    ),
    Mutant(
        "there is no time to save",
        "launcher/policy.py",
        "        self.stage = Stage.SAVING",
        "        self.stage = Stage.TERMINATING",
        _POLICY,
    ),
    Mutant(
        "output waits for ever in memory",
        "launcher/outlet.py",
        "is_full = self._writing + len(self._held) + len(data) > HELD_BYTES",
        "is_full = self._writing > HELD_BYTES",
        ("unit/test_launcher_outlet.py",),
    ),
    Mutant(
        "a guard keeps from MPI what the launcher knows",
        "launcher/rank/guard.py",
        "if code and not reporter.has_recorded and signal.SIGTERM not in signal.sigpending():",
        "if code and not reporter.has_recorded:",
        _GUARDS,
    ),
    Mutant(
        "a client whose rank only waits to be ended is left to MPI",
        "launcher/client_exit.py",
        "self.ending = self.ending or record.code not in (SAVED, PeerError.exit_code)",
        "self.ending = self.ending or self.failed",
        _GUARDS,
    ),
    Mutant(
        "a client in MPI_Init has time to save",
        "launcher/policy.py",
        "if client.failed and may_end and not client.met else []",
        "if client.failed and may_end and client.ending else []",
        _GUARDS,
    ),
    Mutant(
        "who has failed is told to save",
        "launcher/policy.py",
        "if name in self._clients and not self._clients[name].ending]",
        "if name in self._clients]",
        _POLICY,
    ),
    Mutant(
        "a second SIGINT does not kill",
        "launcher/policy.py",
        "return self._kill(now) if signum == signal.SIGINT else []",
        "return []",
        _POLICY,
    ),
    Mutant(
        "a service that we ended has failed",
        "launcher/policy.py",
        "        if event.name in self._told:",
        "        if event.name in ():",
        _POLICY,
    ),
    Mutant(
        "workers that never joined have done well",
        "launcher/client_exit.py",
        "if code == 0 and not self._wrapped and self.not_joined and not self.signals:",
        "if False:",
        _EXIT,
    ),
    Mutant(
        "the job file is for pure MPI, too",
        "launcher/plan.py",
        'job_file=paths.job_file if node.num_servers else "",',
        "job_file=paths.job_file,",
        _PLAN,
    ),
    Mutant(
        "a lease has one sign of life",
        "launcher/plan.py",
        "heartbeat=min(node.heartbeat, node.peer_timeout / 5),",
        "heartbeat=node.heartbeat,",
        _PLAN,
    ),
    Mutant(
        "another job's variables are inherited",
        "launcher/plan.py",
        "        if name not in FORBIDDEN_VARIABLES and not name.startswith(PREFIX)",
        "        if name not in FORBIDDEN_VARIABLES",
        _PLAN,
    ),
    Mutant(
        "all services are server 0",
        "launcher/plan.py",
        "replace(shared, role=Role.SERVER, index=index)",
        "replace(shared, role=Role.SERVER, index=0)",
        _PLAN,
    ),
    Mutant(
        "snapshots in pure MPI",
        "launcher/jobspec.py",
        "            not node.snapshot_dir or node.num_servers > 0,",
        "            True,",
        _SPEC,
    ),
    Mutant(
        "restarts where all ranks push",
        "launcher/jobspec.py",
        '            not spec.max_restarts or node.leaders != "all",',
        "            True,",
        _SPEC,
    ),
    Mutant(
        "each rank computes with all processors",
        "launcher/jobspec.py",
        "str(max(1, cores // (spec.node.num_workers * spec.node.model_parallel)))",
        "str(cores)",
        _SPEC,
    ),
    Mutant(
        "workers need not be dealt to clients",
        "kvstore_mpi/config.py",
        "        if workers % clients:",
        "        if workers < clients:",
        _SPEC,
    ),
    Mutant(
        "pure MPI with several clients",
        "kvstore_mpi/config.py",
        "        if self.num_servers == 0 and clients != 1:",
        "        if self.num_servers < 0 and clients != 1:",
        _SPEC,
    ),
]
