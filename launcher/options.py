"""The options of mpilaunch, made from the descriptions of the fields that they set.

An option is a field of ``NodeConfig``, if processes are to know it, or of ``JobSpec``. Its name, its help,
its checks and the variable that ``--env`` must not set follow from that (``kvstore_mpi.settings``). Pure.
"""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

from kvstore_mpi.config import PREFIX, NodeConfig, variable_of
from kvstore_mpi.errors import UsageError
from kvstore_mpi.settings import Source, read_value, settings_of, value_error
from mpilaunch.command_table import COMMANDS
from mpilaunch.help_text import USAGE, help_epilog
from mpilaunch.jobfile import NO_FILE, JobFile, knob_fields
from mpilaunch.jobspec import JobSpec, Target
from mpilaunch.meant import meant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from dataclasses import Field

    from kvstore_mpi.settings import Setting

FORBIDDEN_VARIABLES = frozenset({"DMLC_ROLE"})
"""With it, importing mxnet starts MXNet's own server loop and never returns."""


_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
"""Of variables, as shells have it: a script that starts a process by hand could set no other."""


class Parser(argparse.ArgumentParser):
    """A parser that ends with the exit code of wrong use."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and what is right, and exit."""
        self.exit(UsageError.exit_code, f"mpilaunch: {message}\n{self.format_usage()}")

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """Read all words; of those that are no option, say which may have been meant."""
        options, unknown = self.parse_known_args(None if args is None else [*args], namespace)
        if unknown:
            self.refuse(unknown, self)
        return options

    def parse_beside_job(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Read the options of a command; return also the words that are options of a job."""
        options, rest = self.parse_known_args(words)
        job = make_parser("")
        _, unknown = job.parse_known_args(rest)
        if unknown:
            self.refuse(unknown, self, job)
        return options, rest

    def refuse(self, words: Sequence[str], *parsers: argparse.ArgumentParser) -> NoReturn:
        """Exit with words that are options of none of these parsers, and those that are near."""
        known = [name for each in parsers for name in _names_of(each)]
        names = [word.partition("=")[0] for word in words if word.startswith("--")]
        hints = "; ".join(filter(None, (meant(name, known) for name in names)))
        self.error(f"unrecognized arguments: {' '.join(words)}{hints and f'; {hints}'}")


def _names_of(parser: argparse.ArgumentParser, *, alone: bool = False) -> list[str]:
    """Return the options of a parser; ``alone``: those that take no value."""
    return [
        name
        for each in parser._actions  # noqa: SLF001  argparse has no public list
        if each.nargs == 0 or not alone
        for name in each.option_strings
    ]


def count(text: str) -> int:
    """Read an argument of a command that counts what there must be one of.

    Raises:
        argparse.ArgumentTypeError: It is no whole number, or less than 1.
    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def finite(text: str) -> float:
    """Read an argument of a command that is a number, neither infinite nor NaN.

    Raises:
        argparse.ArgumentTypeError: It is not.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return number


def filled(text: str) -> str:
    """Return the value of an option.

    Raises:
        argparse.ArgumentTypeError: It is empty, as that of a shell's variable which is not set; without the
            option, the job would do something else.
    """
    if not text:
        raise argparse.ArgumentTypeError("it is empty: give it a value, or leave the option out")
    return text


def make_parser(version: str) -> argparse.ArgumentParser:
    """Describe the options that come before the command; those that are not given leave nothing behind."""
    parser = Parser(
        "mpilaunch",
        usage=USAGE,
        epilog=help_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for record in (NodeConfig, JobSpec):
        add_options(parser, record)
    parser.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="a variable for the ranks"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for experiments: one of the settings below",
    )
    parser.add_argument(
        "--config", type=filled, metavar="FILE", help="a job file: TOML with options by these names"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        default=False,
        help="print every process that would be started, and start none",
    )
    parser.add_argument("--version", action="version", version=f"mpilaunch {version}")
    return parser


def make_command_parser(command: str, **more: Any) -> Parser:
    """Make the parser of a command, which says what it does; ``more`` is for argparse."""
    text = COMMANDS[command].text
    return Parser(
        f"mpilaunch {command}", description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False, **more
    )


def make_parser_of(command: str, names: Sequence[str]) -> argparse.ArgumentParser:
    """Describe those options of a job, by the names of their fields, that a command has as well."""
    parser = make_command_parser(command, argument_default=argparse.SUPPRESS)
    for field, setting in settings_of(JobSpec):
        if field.name in names:
            _add(parser, field, setting)
    return parser


def add_options(parser: argparse.ArgumentParser, record: type) -> None:
    """Give a parser the options that a record describes."""
    for field, setting in settings_of(record):
        if setting.source is Source.OPTION:
            _add(parser, field, setting)


def _add(parser: argparse.ArgumentParser, field: Field[Any], setting: Setting) -> None:
    if isinstance(field.default, bool):
        parser.add_argument(setting.name_of(field), dest=field.name, action="store_true", help=setting.text)
        return
    told = field.default in ("", None) or "(default" in setting.text
    default = "" if told else f" (default {field.default})"
    parser.add_argument(
        setting.name_of(field),
        dest=field.name,
        type=_reader(field),
        choices=setting.choices or None,
        metavar=setting.metavar or None,
        help=setting.text + default,
    )


def _reader(field: Field[Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return read_value(field, filled(text))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def spell(name: str) -> str:
    """Return how a field is set on the command line: ``--leaders``, or ``--set schedule``."""
    for record in (NodeConfig, JobSpec):
        for field, setting in settings_of(record):
            if field.name == name and setting.source is Source.OPTION:
                return setting.name_of(field)
    return f"--set {name}"


def split_command(
    argv: Sequence[str], more: argparse.ArgumentParser | None = None
) -> tuple[list[str], Target, tuple[str, ...]]:
    """Split a command line into our options, what kind of command follows, and the command.

    Args:
        argv: The command line.
        more: Has options that may stand among those of ``mpilaunch``.
    """
    parsers = [make_parser(""), *([more] if more else [])]
    alone = {name for parser in parsers for name in _names_of(parser, alone=True)}
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return list(argv[:at]), Target.EXECUTABLE, tuple(argv[at + 1 :])
        if word == "-m":
            return list(argv[:at]), Target.MODULE, tuple(argv[at + 1 :])
        if not word.startswith("-"):
            break
        at += 1 if "=" in word or word in alone else 2
    return list(argv[:at]), Target.SCRIPT, tuple(argv[at:])


def read_spec(
    options: argparse.Namespace,
    target: Target,
    command: tuple[str, ...],
    environment: Mapping[str, str],
    file: JobFile = NO_FILE,
) -> tuple[JobSpec, list[str]]:
    """Make a job of a parsed command line, a job file, and settings for experiments in the environment.

    What the command line says counts before what the file says, and that before the environment.

    Returns:
        The job, and what is wrong with single options, in words.
    """
    given = vars(options)
    env, env_errors = parse_env([*map("=".join, file.env.items()), *options.env])
    outer, outer_errors = _settings_in(environment)
    settings, set_errors = parse_settings(options.set)
    given = {**file.options, **given}
    node, own = _given(NodeConfig, given), _given(JobSpec, given)
    node.setdefault("num_workers", node.get("num_clients", 1))
    if file.target is not None and not command:
        target, command = file.target, file.command
    told = NodeConfig(**{**outer, **file.settings, **node, **settings})
    spec = JobSpec(target, command, told, tuple(dict(env).items()), **own)
    return spec, [*env_errors, *outer_errors, *set_errors]


def _given(record: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a record that were given."""
    options = [field.name for field, setting in settings_of(record) if setting.source is Source.OPTION]
    return {name: given[name] for name in options if name in given}


def parse_settings(items: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Read ``name=value`` texts as settings for experiments; return the values, and what is wrong."""
    known = sorted(knob_fields())
    texts, errors = {}, []
    for item in items:
        name, equals, text = item.partition("=")
        if equals and name in known:
            texts[name] = text
        elif spell(name).startswith("--set"):
            what = f"there is no setting {name!r}" if equals else "it must be of the form NAME=VALUE"
            hint = meant(name, known)
            errors.append(f"--set {item}: {what}; {hint and f'{hint} '}the settings are {', '.join(known)}")
        else:
            errors.append(f"--set {item}: {name} has an option: give {spell(name)}")
    values, more = _read_values(texts, "--set {}={}".format)
    return values, [*errors, *more]


def _settings_in(environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Read the settings for experiments that the environment has, such as ``KVMPI_STEP_TIMEOUT``."""
    texts = {
        name: environment[variable_of(name)] for name in knob_fields() if variable_of(name) in environment
    }
    return _read_values(texts, lambda name, text: f"{variable_of(name)}={text} in the environment")


def _read_values(
    texts: Mapping[str, str], name_it: Callable[[str, str], str]
) -> tuple[dict[str, Any], list[str]]:
    described = {field.name: field for field, _ in settings_of(NodeConfig)}
    values, errors = {}, []
    for name, text in texts.items():
        field = described[name]
        try:
            value = read_value(field, text)
        except ValueError as error:
            errors.append(f"{name_it(name, text)}: {error}")
            continue
        # Here, where it is known who says it; later on each would be taken for an option's.
        problem = value_error(field, value)
        if problem:
            errors.append(f"{name_it(name, text)} {problem}")
        else:
            values[name] = value
    return values, errors


def parse_env(items: Iterable[str]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Split ``K=V`` texts; return the pairs and what is wrong with the rest."""
    pairs, errors = [], []
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            errors.append(f"--env {item!r} is not of the form K=V")
        elif not _NAME.fullmatch(name):
            errors.append(f"--env {name!r} must be named by letters, digits and _, without a digit first")
        elif name in FORBIDDEN_VARIABLES:
            errors.append(f"--env {name} would make mxnet run a server of its own inside your script")
        elif name.startswith(PREFIX):
            errors.append(f"--env {name} would reach the ranks only, and not the servers: {_instead(name)}")
        else:
            pairs.append((name, value))
    return tuple(pairs), errors


def _instead(variable: str) -> str:
    """Return what to say on the command line instead of setting one of our variables."""
    for field, setting in settings_of(NodeConfig):
        if variable_of(field.name) == variable and setting.source is not Source.LAUNCHER:
            return f"use {spell(field.name)}"
    return "mpilaunch sets what its processes need"
