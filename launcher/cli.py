"""``mpilaunch``: reads the command line and runs the job. Thin: decisions are elsewhere."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kvstore_mpi import __version__
from kvstore_mpi.config import AUTO, COLLECTIVES, LEADERS, PLACEMENTS, SCHEDULES, TRANSPORTS
from kvstore_mpi.errors import ConfigurationError, KVStoreError, UsageError
from mpilaunch.hosts.run_dir import RunDir
from mpilaunch.jobspec import JobSpec, Target, parse_env, validate, with_threads
from mpilaunch.mpi import find_mpi
from mpilaunch.plan import Paths, inherited, make_plan, render
from mpilaunch.printer import LogFiles, Printer, make_log_folder
from mpilaunch.report import describe
from mpilaunch.supervise import Supervisor
from mpilaunch.trace import finish_trace, make_trace_folder, trace_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = """mpilaunch [options] SCRIPT.py ARGS...
       mpilaunch [options] -m MODULE ARGS...
       mpilaunch [options] -- PROGRAM ARGS...
       mpilaunch doctor"""

EPILOG = """exit codes: 0 success; 1-255 that of the process that failed first (128+n: signal n);
64 wrong use; 69 timeout or lost process; 70 defect of kvstore_mpi; 75 told to end, has saved;
76 workers disagree; 78 the installation or the environment cannot work"""

_FLAGS = ("--dry-run", "--take-over", "--resume", "--report", "--help", "-h", "--version")


class _Parser(argparse.ArgumentParser):
    """A parser that ends with the exit code of wrong use."""

    def error(self, message: str) -> NoReturn:
        self.exit(UsageError.exit_code, f"mpilaunch: {message}\nusage: {USAGE}\n")


def make_parser() -> argparse.ArgumentParser:
    """Describe the options that come before the command."""
    parser = _Parser("mpilaunch", usage=USAGE, epilog=EPILOG, allow_abbrev=False)
    add = parser.add_argument
    add("--clients", type=int, default=1, metavar="N", help="MPI jobs that meet the servers (default 1)")
    add("--servers", type=int, default=0, metavar="M", help="parameter servers; 0 is pure MPI (default 0)")
    add("--workers", type=int, metavar="W", help="processes over all clients (default: one per client)")
    add("--env", action="append", default=[], metavar="K=V", help="set a variable for the ranks")
    add("--dry-run", action="store_true", help="print every process that would be started, and start none")
    add("--timeout", type=float, metavar="S", help="end the job after S seconds (default: never)")
    add("--grace", type=float, default=25.0, metavar="S", help="time for ranks to save (default 25)")
    add(
        "--log-dir",
        default="mpilaunch-logs",
        metavar="DIR",
        help="one folder per run (default mpilaunch-logs)",
    )
    add(
        "--transport",
        choices=TRANSPORTS,
        default="auto",
        help="between processes (default auto); direct: as auto, without ZeroMQ",
    )
    add("--slice-elements", type=_elements, default=50_000, metavar="N", help="or auto (default 50000)")
    add("--schedule", choices=SCHEDULES, default="p3", help="in which order slices leave (default p3)")
    add(
        "--window-bytes", type=int, default=0, metavar="N", help="under way to one peer (default: find out)"
    )
    add("--placement", choices=PLACEMENTS, default=PLACEMENTS[0], help="of slices on servers")
    add(
        "--leaders", choices=LEADERS, default=LEADERS[0], help="ranks of a client that speak to the servers"
    )
    add("--collective", choices=COLLECTIVES, default="auto", help="how the ranks of a client sum")
    add(
        "--collective-profile",
        default="",
        metavar="FILE",
        help="what kvstore_mpi.calibrate has measured; or measure, to find out at the start",
    )
    add(
        "--start-with",
        type=int,
        default=0,
        metavar="K",
        help="begin when K clients are there, client 0 among them; the others join when they come",
    )
    add(
        "--max-restarts",
        type=int,
        default=0,
        metavar="K",
        help="start clients and servers that fail again, at most K times in all (default 0)",
    )
    add("--snapshot-dir", default="", metavar="DIR", help="servers save their parameters here")
    add("--snapshot-every", type=float, default=60.0, metavar="S", help="how often (default 60)")
    add("--resume", action="store_true", help="go on with the parameters in --snapshot-dir")
    add("--lease", type=float, metavar="S", help="silence after which a process is dead (default 30)")
    add("--take-over", action="store_true", help="answer for MXNet's own store names, such as dist_sync")
    add("--trace", default="", metavar="DIR", help="write DIR/trace.json, which Perfetto opens")
    add("--report", action="store_true", help="say at the end where the time of the iterations went")
    add("--version", action="version", version=f"mpilaunch {__version__}")
    return parser


def _elements(text: str) -> int:
    """Read the size of slices: a number, or ``auto``."""
    if text == "auto":
        return AUTO
    if not text.isdecimal() or int(text) == AUTO:
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor a number of at least 1")
    return int(text)


def split_command(argv: Sequence[str]) -> tuple[list[str], Target, tuple[str, ...]]:
    """Split a command line into our options, what kind of command follows, and the command."""
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return list(argv[:at]), Target.EXECUTABLE, tuple(argv[at + 1 :])
        if word == "-m":
            return list(argv[:at]), Target.MODULE, tuple(argv[at + 1 :])
        if not word.startswith("-"):
            break
        at += 1 if "=" in word or word in _FLAGS else 2
    return list(argv[:at]), Target.SCRIPT, tuple(argv[at:])


def read_spec(options: argparse.Namespace, target: Target, command: tuple[str, ...]) -> JobSpec:
    """Make a job of a parsed command line.

    Raises:
        UsageError: Something is wrong with it; the text lists everything.
    """
    env, errors = parse_env(options.env)
    spec = JobSpec(
        target=target,
        command=command,
        clients=options.clients,
        servers=options.servers,
        workers=options.clients if options.workers is None else options.workers,
        env=env,
        timeout=options.timeout,
        grace=options.grace,
        log_dir=options.log_dir,
        transport=options.transport,
        slice_elements=options.slice_elements,
        schedule=options.schedule,
        window_bytes=options.window_bytes,
        placement=options.placement,
        collective=options.collective,
        collective_profile=options.collective_profile,
        leaders=options.leaders,
        take_over=options.take_over,
        trace=options.trace,
        report=options.report,
        start_with=options.start_with,
        max_restarts=options.max_restarts,
        snapshot_dir=str(Path(options.snapshot_dir).absolute()) if options.snapshot_dir else "",
        snapshot_every=options.snapshot_every,
        resume=options.resume,
        lease=options.lease,
    )
    errors += validate(spec, lambda path: Path(path).is_file(), shutil.which)
    if errors:
        raise UsageError("\n".join(errors))
    return spec


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mpilaunch``; return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments == ["doctor"]:
        from mpilaunch.doctor import run_doctor  # noqa: PLC0415  not needed to run a job

        return run_doctor(sys.stdout)
    head, target, command = split_command(arguments)
    options = make_parser().parse_args(head)
    try:
        spec = read_spec(options, target, command)
        spec = with_threads(spec, os.cpu_count() or 1, os.environ)
        return dry_run(spec) if options.dry_run else run_job(spec)
    except KVStoreError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"mpilaunch: {line}\n")
        return error.exit_code


def dry_run(spec: JobSpec) -> int:
    """Print what would be started."""
    private = Path("(private directory)")
    paths = Paths(str(private / "job.json"), str(private / "records"), trace_folder(spec, private))
    sys.stdout.write(render(make_plan(spec, find_mpi(), paths)))
    return 0


def run_job(spec: JobSpec, service_command: tuple[str, ...] | None = None) -> int:
    """Run a job to its end; return its exit code."""
    mpi = find_mpi()
    if spec.snapshot_dir:
        _make_folder(spec.snapshot_dir)
    with RunDir() as run_dir:
        logs = LogFiles(_log_folder(spec, run_dir.job))
        printer = Printer(sys.stdout, sys.stderr, logs)
        paths = replace(run_dir.paths, trace_dir=trace_folder(spec, run_dir.path))
        make_trace_folder(paths.trace_dir)
        extra = {"service_command": service_command} if service_command else {}
        plan = make_plan(spec, mpi, paths, **extra)
        supervisor = Supervisor(
            plan, run_dir, printer, inherited(os.environ), grace=spec.grace, timeout=spec.timeout
        )
        verdict = supervisor.run()
        if paths.trace_dir:
            printer.say(finish_trace(spec, Path(paths.trace_dir)))
        printer.say(
            describe(verdict, printer.tails, str(logs.folder), grace=spec.grace, timeout=spec.timeout)
        )
        logs.close()
    return verdict.code


def _make_folder(path: str) -> None:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the folder for snapshots {path!r} cannot be made: {error.strerror}; choose another place "
            "with --snapshot-dir"
        ) from error


def _log_folder(spec: JobSpec, job: str) -> Path:
    try:
        return make_log_folder(Path(spec.log_dir), job, time.localtime())
    except OSError as error:
        raise ConfigurationError(
            f"the folder for log files cannot be made in {spec.log_dir!r}: {error.strerror}; "
            "choose another place with --log-dir"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
