"""What processes count and tell, who is said to hold up a job, and what a report's figures come to."""

from __future__ import annotations

from mutants.table import Mutant

_VIEW = ("unit/test_job_view.py",)
_METRICS = ("unit/test_metrics.py",)
_VERDICT = ("unit/test_verdict.py",)
_OBSERVER = ("unit/test_observer.py",)
_STACKS = ("unit/test_stacks.py",)

MUTANTS = [
    Mutant(
        "a wait for another rank of the worker is not seen",
        "kvstore_mpi/comm/links.py",
        "            for future, called in list(self._called.items())",
        "            for future, called in ()",
        ("unit/test_links.py",),
    ),
    Mutant(
        "a wait for another rank of the worker is not said",
        "kvstore_mpi/comm/links.py",
        "            if now >= tells:",
        "            if False:",
        ("unit/test_links.py",),
    ),
    Mutant(
        "a process that has failed is shown as ended",
        "launcher/seeing/job_view.py",
        '            self._processes[name].ended = FAILED if failed else "ended"',
        '            self._processes[name].ended = "ended"',
        ("unit/test_job_view.py",),
    ),
    Mutant(
        "who is on a host that says nothing is blamed",
        "launcher/seeing/diagnosis.py",
        "if name not in joining and name not in unheard]",
        "if name not in joining]",
        _VIEW,
    ),
    Mutant(
        "who waits himself is blamed",
        "launcher/seeing/diagnosis.py",
        "culprits = [name for name in awaited if name in silent or name not in waiting]",
        "culprits = list(awaited)",
        _VIEW,
    ),
    Mutant(
        "a coordinator at its own barrier is blamed",
        "launcher/seeing/diagnosis.py",
        "waiting = {edge.waiter for edge in edges if edge.awaited != edge.waiter}",
        "waiting = {edge.waiter for edge in edges if len(edges) > 9}",
        _VIEW,
    ),
    Mutant(
        "stacks come after the deadline",
        "launcher/seeing/job_view.py",
        "return max(limit / 2, limit - MOST_BEFORE)",
        "return limit + MOST_BEFORE",
        _VIEW,
    ),
    Mutant(
        "rates are over the last second alone",
        "launcher/seeing/job_view.py",
        "(since, first), (until, last) = told[0], told[-1]",
        "(since, first), (until, last) = told[-2], told[-1]",
        _VIEW,
    ),
    Mutant(
        "time under way begins with the job",
        "kvstore_mpi/worker/worker.py",
        "self._pending_since = since",
        "self._pending_since = 0.0",
        _METRICS,
    ),
    Mutant(
        "a process goes on telling a launcher that is gone",
        "kvstore_mpi/metrics/telling.py",
        "if self._pipe < 0:",
        "if self._pipe is None:",
        _METRICS,
    ),
    Mutant(
        "a long line is not made shorter",
        "kvstore_mpi/metrics/status.py",
        "while len(line) > LINE_BYTES and (status.waits or status.threads):",
        "while False:",
        _METRICS,
    ),
    Mutant(
        "a worker that is a little slower is blamed",
        "kvstore_mpi/tracing/verdict.py",
        "return slow if slow.computing >= STRAGGLER * others else None",
        "return slow if slow.computing > others else None",
        _VERDICT,
    ),
    Mutant(
        "a faster run counts as slower",
        "launcher/seeing/compare.py",
        "return second.time / first.time - 1",
        "return abs(second.time / first.time - 1) + 0.01",
        _VERDICT,
    ),
    Mutant(
        "arguments are taken for a mark-up",
        "launcher/seeing/top.py",
        'title = Text(_heading(answer), "table.title")',
        "title = _heading(answer)",
        _OBSERVER,
    ),
    Mutant(
        "a heading has the line breaks of arguments",
        "launcher/seeing/observer.py",
        "each if each.isprintable() else repr(each)[1:-1] for each",
        "each for each",
        _OBSERVER,
    ),
    Mutant(
        "without marks what was not waited is said to be computing",
        "kvstore_mpi/tracing/report.py",
        "computed = iteration.computing if marked else 0",
        "computed = iteration.computing",
        ("unit/test_tracing_report.py",),
    ),
    Mutant(
        "a hang is looked for again and again",
        "launcher/seeing/observer.py",
        "if why and not self._is_due:",
        "if why:",
        _OBSERVER,
    ),
    Mutant(
        "stacks of a process that hangs are not asked for",
        "kvstore_mpi/metrics/stacks.py",
        "faulthandler.register(STACK_SIGNAL, file=pipe, all_threads=False, chain=True)",
        "_ = faulthandler.register",
        _STACKS,
    ),
    Mutant(
        "stacks of threads that run are read in a signal's handler",
        "kvstore_mpi/metrics/stacks.py",
        "file=pipe, all_threads=False, chain=True",
        "file=pipe, all_threads=True, chain=True",
        _STACKS,
    ),
    Mutant(
        "only the main thread's stack is written",
        "kvstore_mpi/metrics/stacks.py",
        "all_threads=False, chain=True",
        "all_threads=False",
        _STACKS,
    ),
    Mutant(
        "native calls are interrupted for good by the second inspection",
        "kvstore_mpi/metrics/stacks.py",
        "signal.siginterrupt(STACK_SIGNAL, False)",
        "signal.siginterrupt(STACK_SIGNAL, True)",
        _STACKS,
    ),
    Mutant(
        "a forked helper writes its stacks, too",
        "kvstore_mpi/metrics/stacks.py",
        "os.register_at_fork(after_in_child=_stop)",
        "_ = _stop",
        _STACKS,
    ),
    Mutant(
        "a process that ends can still be asked for stacks, which ends it",
        "kvstore_mpi/metrics/stacks.py",
        "atexit.register(_stop)",
        "_ = atexit",
        _STACKS,
    ),
    Mutant(
        "a stack that a handler has written alone is not shown",
        "launcher/seeing/stacks.py",
        "return [Thread(MAIN, interrupted)] if interrupted else []",
        "return []",
        _VIEW,
    ),
    Mutant(
        "who has pushed a part is not waited for",
        "kvstore_mpi/server/status.py",
        "if pusher not in pushed or len(pushed[pusher].payloads) < num_slices",
        "if pusher not in pushed",
        _METRICS,
    ),
    Mutant(
        "a step that waits for other servers is said to wait for nobody",
        "kvstore_mpi/server/status.py",
        "        if state.rounds.held.is_complete(unit):",
        "        if False:",
        _METRICS,
    ),
    Mutant(
        "silent connections to the metrics stay until they go by themselves",
        "launcher/seeing/metrics_server.py",
        "            for oldest in self._open:",
        "            for oldest in ():",
        ("unit/test_metrics_endpoint.py",),
    ),
    Mutant(
        "metrics answer to the name of any site",
        "launcher/seeing/metrics_server.py",
        "        return name in self.names or name == socket.getfqdn().lower()",
        "        return True",
        ("unit/test_metrics_endpoint.py",),
    ),
    Mutant(
        "another user's launcher is believed",
        "launcher/seeing/control.py",
        "    if user != os.geteuid():",
        "    if False:",
        _OBSERVER,
    ),
    Mutant(
        "jobs are looked for behind another user's link",
        "launcher/seeing/control.py",
        "            if path.parent.lstat().st_uid == os.geteuid():",
        "            if path.parent.stat().st_uid == os.geteuid():",
        _OBSERVER,
    ),
]
