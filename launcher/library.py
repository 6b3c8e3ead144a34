"""``mpilaunch.launch``: a job from Python, for notebooks, tests and programs that start jobs.

The job is run by a process of its own, because mpilaunch handles signals, which only a main thread can, and
because an interpreter that has loaded MXNet or MPI already is no place to start one from.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from mpilaunch import jobfile
from mpilaunch.inputs import read_text
from mpilaunch.mpi import PYTHON
from mpilaunch.outcome import result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpilaunch.outcome.result import Result

SOURCE = "launch()"
"""Where options come from, for errors."""

RUNNER = "mpilaunch.library_runner"


def launch(
    script: str | os.PathLike[str] = "",
    *args: object,
    module: str = "",
    program: str = "",
    config: str | os.PathLike[str] = "",
    env: Mapping[str, object] | None = None,
    settings: Mapping[str, object] | None = None,
    echo: bool = True,
    **options: float | str,
) -> Result:
    """Run a job as ``mpilaunch`` does, and wait for its end.

    Any thread may call this, and several jobs may run at once. KeyboardInterrupt ends the job as Ctrl-C
    ends mpilaunch: the ranks have ``grace`` seconds to save, and then it is raised. If the calling process
    dies, its jobs end in the same way.

    Args:
        script: The script that the ranks run; or give ``module``, ``program`` or ``config``.
        args: Its arguments.
        module: A module that they run instead, as ``-m`` does.
        program: An executable that they run instead.
        config: A job file; what is given besides counts before what it says.
        env: Variables for the ranks.
        settings: Settings for experiments, those of ``--set``.
        echo: Write what the job says to ``sys.stdout``, line by line. It is in the log files in any case.
        options: The options of mpilaunch, with ``_`` for ``-``: ``clients=2, max_restarts=1``.

    Returns:
        How the job has ended, whatever its exit code.

    Raises:
        UsageError: Something is wrong with the options; the text lists everything.
        ConfigurationError: The installation or the environment cannot work.
    """
    given: dict[str, Any] = {name.replace("_", "-"): value for name, value in options.items()}
    given |= {
        name: text for name, text in (("script", script), ("module", module), ("program", program)) if text
    }
    if args:
        given[jobfile.ARGS] = [str(each) for each in args]
    given |= {name: dict(table) for name, table in ((jobfile.ENV, env), (jobfile.SET, settings)) if table}
    given = _plain(given)
    jobfile.understand(given, SOURCE)
    content = jobfile.merge(_content_of(config), given) if config else given
    return _run(content, echo=echo)


def _plain(value: Any) -> Any:
    """Return what a job file would have for it: paths as texts, numbers of NumPy as plain ones."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value


def _content_of(config: str | os.PathLike[str]) -> dict[str, Any]:
    path = os.fspath(config)
    content = jobfile.parse(read_text(path, "config"), path)
    jobfile.understand(content, path)
    return content


def _run(content: Mapping[str, Any], *, echo: bool) -> Result:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as told:
        try:
            process = subprocess.Popen(  # noqa: S603  our own interpreter and our own module
                [*PYTHON, "-m", RUNNER, str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                start_new_session=True,  # Ctrl-C reaches it through us alone
            )
        finally:
            os.close(writing)
        with process:
            _follow(process, content, echo=echo)
            return result.read(told.read())


def _follow(process: subprocess.Popen[bytes], content: Mapping[str, Any], *, echo: bool) -> None:
    """Tell the process what to run, and pass on what it says until it ends."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(content, default=str).encode() + b"\n")
    process.stdin.flush()  # and left open: its end is ours
    interrupted = False
    while True:
        try:
            _pass_on(process, echo=echo and not interrupted)
            process.wait()
            break
        except KeyboardInterrupt:
            interrupted = True
            process.send_signal(signal.SIGINT)
        except BaseException:
            process.terminate()
            raise
    if interrupted:
        raise KeyboardInterrupt


def _pass_on(process: subprocess.Popen[bytes], *, echo: bool) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if echo:
            sys.stdout.write(line.decode(errors="replace"))
            sys.stdout.flush()
