"""A module of a few lines with one user needs a reason to stand apart from it; here they are."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"kvstore_mpi": "kvstore_mpi", "launcher": "mpilaunch"}
LINES = 60

STARTED = "started or imported by name: a command, a process of its own, or for users"
PURE = "a decision apart from the shell that carries it out, with tests of its own"
ADAPTERS = "for adapters of any framework, of which one is here"
APART = "a mechanism of the system, apart from what it is used for"
FULL = "a responsibility of its own, and its user is as long as a file may be"

REASONS = {
    STARTED: (
        *("kvstore_mpi.mxnet", "kvstore_mpi.adapters.mxnet.bridge.tensors"),
        *("kvstore_mpi.planner.placement.trace", "mpilaunch.library_runner"),
        *("mpilaunch.rank.exec_rank", "mpilaunch.seeing.inspect_job"),
    ),
    PURE: (
        *("kvstore_mpi.esgd.stagger", "kvstore_mpi.scheduler.barriers"),
        *(
            "kvstore_mpi.server.retired_keys",
            "mpilaunch.outcome.client_deadlines",
            "mpilaunch.outcome.service_exit",
        ),
        *("mpilaunch.seeing.inspection", "mpilaunch.hosts.lsf"),
        *("kvstore_mpi.adapters.mxnet.parameters", "mpilaunch.slices", "kvstore_mpi.transport.outgoing"),
    ),
    ADAPTERS: ("kvstore_mpi.adapters.collected_errors", "kvstore_mpi.adapters.in_place"),
    APART: (
        *("kvstore_mpi.transport.local", "mpilaunch.signals", "mpilaunch.planning.plan_picture"),
        "mpilaunch.rank.passed_over",
        "kvstore_mpi.adapters.mxnet.exchange.counts_before",
    ),
    FULL: (
        *("kvstore_mpi.server.kept_copies", "kvstore_mpi.transport.refusals"),
        "kvstore_mpi.wire.dropped_frames",
    ),
}


def module_names():
    """Return the modules that users install, by name, packages and entry points left out."""
    return {
        ".".join((name, *path.relative_to(ROOT / folder).with_suffix("").parts)): path
        for folder, name in PACKAGES.items()
        for path in (ROOT / folder).rglob("*.py")
    }


def imported(path):
    """Return what a module imports: modules, and names in them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def test_small_modules_with_one_user_have_a_reason():
    """Or their user has them; a reason of a module that has grown, or has more users, goes."""
    modules = module_names()
    users = defaultdict(set)
    for name, path in modules.items():
        for each in imported(path):
            users[each].add(name)
    small = {
        name
        for name, path in modules.items()
        if path.stem not in {"__init__", "__main__"}
        and len(users[name] - {name}) <= 1
        and len(path.read_text(encoding="utf-8").splitlines()) < LINES
    }
    assert sorted(small) == sorted(name for names in REASONS.values() for name in names)
