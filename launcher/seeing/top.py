"""``mpilaunch top [JOB]``: what each process of a running job does, again every second on a terminal."""

from __future__ import annotations

import importlib.util
import shutil
import time
from typing import TYPE_CHECKING, Any

import msgspec

from kvstore_mpi.errors import ConfigurationError, PeerLostError
from mpilaunch.options import make_command_parser
from mpilaunch.seeing.control import Answer, ask_job, find_job
from mpilaunch.seeing.job_view import Row
from mpilaunch.seeing.table import NUMBERS, TITLES, fitting, lines, plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from mpilaunch.seeing.control import Job

REFRESH_SECONDS = 1.0
WIDTH = 170
"""Columns of a picture."""


def run(arguments: Sequence[str], out: TextIO) -> int:
    """Show a job; return the exit code."""
    parser = make_command_parser("top")
    parser.add_argument(
        "job", nargs="?", default="", help="beginning of its name, or its mpilaunch's number"
    )
    parser.add_argument("--once", action="store_true", help="show it once, also on a terminal")
    parser.add_argument("--svg", metavar="FILE", help="draw it once into a file (needs rich)")
    options = parser.parse_args(arguments)
    job = find_job(options.job)
    has_rich = importlib.util.find_spec("rich") is not None
    if options.svg:
        if not has_rich:
            raise ConfigurationError("top --svg needs rich: pip install 'kvstore_mpi[top]'")
        _draw(ask_job(job, {"do": "top"}), options.svg)
        return 0
    if options.once or not out.isatty():
        answer = ask_job(job, {"do": "top"})
        out.write(f"{_heading(answer)}\n{plain(_rows(answer))}\n")
        return 0
    try:
        (_show_live if has_rich else _show_plain)(job, out)
    except (KeyboardInterrupt, PeerLostError):
        out.write(f"job {job.name} is not shown any more\n")
    return 0


def _rows(answer: Answer) -> list[Row]:
    return msgspec.convert(answer["rows"], list[Row])


def _heading(answer: Answer) -> str:
    return f"job {answer['job']}: {answer['command']}, for {answer['seconds']:.0f} s"


def _show_plain(job: Job, out: TextIO) -> None:
    while True:
        answer = ask_job(job, {"do": "top"})
        width = shutil.get_terminal_size().columns
        out.write(f"\x1b[2J\x1b[H{_heading(answer)}\n{plain(_rows(answer), width)}\n")
        out.flush()
        time.sleep(REFRESH_SECONDS)


def _show_live(job: Job, out: TextIO) -> None:
    from rich.console import Console  # noqa: PLC0415  an extra
    from rich.live import Live  # noqa: PLC0415

    console = Console(file=out)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(_table(ask_job(job, {"do": "top"}), console.width), refresh=True)
            time.sleep(REFRESH_SECONDS)


def _table(answer: Answer, width: int) -> Any:
    from rich.table import Table  # noqa: PLC0415  an extra
    from rich.text import Text  # noqa: PLC0415

    # As text, for arguments and the names of keys may look like a mark-up.
    title = Text(_heading(answer), "table.title")
    table = Table(title=title, expand=False, header_style="bold")
    rows = _rows(answer)
    columns = fitting(rows, width - 1, 3)  # a border, and one space on each side
    for column in columns:
        justify: Any = "right" if column in NUMBERS else "left"
        table.add_column(TITLES[column], justify=justify, no_wrap=column < len(TITLES) - 1)
    for line in lines(rows):
        table.add_row(
            *(Text(line.cells[column]) for column in columns), style="bold red" if line.bad else ""
        )
    return table


def _draw(answer: Answer, path: str) -> None:
    import io  # noqa: PLC0415  for pictures alone

    from rich.console import Console  # noqa: PLC0415  an extra

    console = Console(file=io.StringIO(), record=True, width=WIDTH)
    console.print(_table(answer, WIDTH))
    try:
        console.save_svg(path, title="mpilaunch top")
    except OSError as error:
        raise ConfigurationError(f"--svg {path} cannot be written: {error.strerror}") from error
