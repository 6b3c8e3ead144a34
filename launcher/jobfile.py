"""The job file, ``--config job.toml``: options under the names that they have on the command line. Pure.

::

    clients = 2
    servers = 1
    script = "train.py"                 # or module, or program
    args = ["--epochs", 3]

    [env]
    OMP_NUM_THREADS = 1

    [set]
    step_timeout = 60
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.config import NodeConfig
from kvstore_mpi.errors import UsageError
from kvstore_mpi.settings import Source, settings_of, take_value
from mpilaunch.jobspec import JobSpec, Target
from mpilaunch.meant import meant

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same, as a package
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from dataclasses import Field

TARGETS = {"script": Target.SCRIPT, "module": Target.MODULE, "program": Target.EXECUTABLE}
"""What the ranks run, and what it is called in the file."""

ARGS, ENV, SET = "args", "env", "set"


class JobFile(NamedTuple):
    """What a job file says.

    Attributes:
        options: Values of options by the names of their fields.
        settings: Values of settings for experiments by the names of their fields.
        env: Variables for the ranks.
        target: What ``command`` starts with, if there is one.
        command: Script, module or program, then its arguments.
    """

    options: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}
    env: Mapping[str, str] = {}
    target: Target | None = None
    command: tuple[str, ...] = ()


NO_FILE = JobFile()
"""What is said where there is none."""


def option_fields() -> dict[str, Field[Any]]:
    """Return the field of each option, by the option's name without its dashes: ``max-restarts``."""
    return {
        setting.name_of(field).removeprefix("--"): field
        for record in (NodeConfig, JobSpec)
        for field, setting in settings_of(record)
        if setting.source is Source.OPTION
    }


def knob_fields() -> dict[str, Field[Any]]:
    """Return the field of each setting for experiments, by its name."""
    return {
        field.name: field for field, setting in settings_of(NodeConfig) if setting.source is Source.KNOB
    }


def parse(text: str, path: str) -> dict[str, Any]:
    """Return what a job file says, without a look at what it means.

    Raises:
        UsageError: It is no TOML, or one that is nested too deeply or has too long a number.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no TOML: {error}") from None


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two say together; the second counts where both say something, also within tables."""
    tables = {
        name: {**first[name], **second[name]}
        for name in (ENV, SET)
        if isinstance(first.get(name), dict) and isinstance(second.get(name), dict)
    }
    targets = {*TARGETS, ARGS} if any(name in second for name in TARGETS) else set()
    kept = {name: value for name, value in first.items() if name not in targets}
    return {**kept, **second, **tables}


def read_job_file(text: str, path: str) -> JobFile:
    """Read a job file; see ``parse`` and ``understand``."""
    return understand(parse(text, path), path)


def understand(content: Mapping[str, Any], source: str) -> JobFile:
    """Return what the content of a job file means.

    Args:
        content: Names of options and their values, and the tables.
        source: Where it comes from, for errors.

    Raises:
        UsageError: Something in it is unknown or of another type; everything is listed.
    """
    errors = [
        f"{name}: {text!r} has a NUL character, which no argument, variable or path can have"
        for name, text in _texts(content)
        if "\0" in text
    ]
    fields = option_fields()
    env, settings = _table(content, ENV, errors), _table(content, SET, errors)
    target, command = _command(content, errors)
    knobs = knob_fields()
    known = [*fields, *TARGETS, ARGS, ENV, SET]
    errors += [_unknown(name, known) for name in content if name not in known]
    errors += [f"[{ENV}] {name!r}: the name of a variable has no '='" for name in env if "=" in name]
    errors += [f"[{SET}] {_unknown(name, list(knobs))}" for name in settings if name not in knobs]
    read = JobFile(
        {fields[name].name: value for name, value in _values(content, fields, "", errors)},
        dict(_values(settings, knobs, f"[{SET}] ", errors)),
        {name: _text(name, value, errors) for name, value in env.items()},
        target,
        command,
    )
    if errors:
        raise UsageError("\n".join(f"{source}: {error}" for error in errors))
    return read


def _texts(content: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts, with the names of where they are."""
    for name, value in content.items():
        yield f"{where}{name!r}", name
        if isinstance(value, dict):
            yield from _texts(value, f"[{name}] ")
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                yield f"{where}{name}", each


def _table(content: Mapping[str, Any], name: str, errors: list[str]) -> Mapping[str, Any]:
    table = content.get(name, {})
    if isinstance(table, dict):
        return table
    errors.append(f"{name} must be a table, [{name}], and not {table!r}")
    return {}


def _command(content: Mapping[str, Any], errors: list[str]) -> tuple[Target | None, tuple[str, ...]]:
    given = [name for name in TARGETS if name in content]
    args = content.get(ARGS, [])
    if len(given) > 1:
        errors.append(f"give one of {', '.join(given)}")
    if ARGS in content and not given:
        errors.append(f"{ARGS} needs one of {', '.join(TARGETS)}")
    if not isinstance(args, list):
        errors.append(f"{ARGS} must be a list of texts and not {args!r}")
        args = []
    if not given:
        return None, ()
    first = content[given[0]]
    if not isinstance(first, str):
        errors.append(f"{given[0]}: {first!r} is not a text")
    return TARGETS[given[0]], (str(first), *map(str, args))


def _values(
    content: Mapping[str, Any], fields: Mapping[str, Field[Any]], where: str, errors: list[str]
) -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        if name in fields:
            try:
                yield name, take_value(fields[name], value)
            except ValueError as error:
                errors.append(f"{where}{name}: {error}")


def _text(name: str, value: Any, errors: list[str]) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        errors.append(f"[{ENV}] {name}: {value!r} is not a text")
    return str(value)


def _unknown(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    hint = meant(name.replace("_", "-"), names)
    return f"there is no {name!r}: {hint + ' ' if hint else ''}known are {', '.join(names)}"
