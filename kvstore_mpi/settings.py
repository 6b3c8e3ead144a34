"""What a field of a configuration means, who sets it and what it may be: stated once, beside the field.

A field of a dataclass carries a ``Setting`` in its metadata. From it follow the options of mpilaunch with
their help, what ``--set`` accepts, which variables of the environment are refused, and the checks. Pure.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any

from kvstore_mpi.records import Role

AUTO = 0
"""The value of a setting that is left to what is measured; written ``auto``."""

Spell = Callable[[str], str]
"""How the reader of a message writes the name of a field: ``leaders``, or ``--leaders``."""

LONGEST_S = 1e9
"""Most seconds that a setting may have: Python cannot wait for much longer (``threading.TIMEOUT_MAX``)."""

_KEY = "setting"


class Source(enum.Enum):
    """Who sets a field."""

    OPTION = "an option of mpilaunch"
    KNOB = "--set of mpilaunch, for experiments"
    LAUNCHER = "mpilaunch itself"


@dataclass(frozen=True)
class Setting:
    """The description of one field.

    Attributes:
        text: What it means, for people.
        source: Who sets it.
        metavar: What stands for its value in the help.
        flag: Its option, where that is not the name of the field.
        choices: The values that it may have.
        least: The smallest value that it may have.
        above: It must be more than this.
        auto: It may be left to what is measured.
    """

    text: str
    source: Source
    metavar: str = ""
    flag: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    auto: bool = False

    def name_of(self, field: Field[Any]) -> str:
        """Return the option of a field, as in ``--max-restarts``."""
        return self.flag or "--" + field.name.replace("_", "-")

    def error(self, value: Any) -> str:
        """Return what is wrong with a value, to follow the name of the setting; or nothing."""
        if value is None:
            return ""
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}, not {value!r}"
        if self.above is not None and not value > self.above:
            return f"must be more than {self.above:g}, not {value}"
        if self.least is not None and not value >= self.least:
            return f"{self._least_text(self.least)}, not {value}"
        return ""

    def _least_text(self, least: float) -> str:
        if self.auto:
            return "must be at least 1, or auto"
        return f"must be at least {least:g}" if least else "must not be negative"


def option(text: str, metavar: str = "", **more: Any) -> Mapping[str, Setting]:
    """Return the metadata of a field that has an option of mpilaunch."""
    return {_KEY: Setting(text, Source.OPTION, metavar, **more)}


def knob(text: str, **more: Any) -> Mapping[str, Setting]:
    """Return the metadata of a field for experiments, which ``--set`` sets."""
    return {_KEY: Setting(text, Source.KNOB, **more)}


def internal(text: str, **more: Any) -> Mapping[str, Setting]:
    """Return the metadata of a field that mpilaunch sets by itself."""
    return {_KEY: Setting(text, Source.LAUNCHER, **more)}


def settings_of(record: Any) -> list[tuple[Field[Any], Setting]]:
    """Return the described fields of a dataclass, or of one of its instances."""
    return [(each, each.metadata[_KEY]) for each in fields(record) if _KEY in each.metadata]


def setting_of(field: Field[Any]) -> Setting:
    """Return the description of a field that has one."""
    setting: Setting = field.metadata[_KEY]
    return setting


def limit_errors(record: Any, spell: Spell = str) -> list[str]:
    """Return what is wrong with each field of a record by itself."""
    described = settings_of(record)
    checked = [(field.name, value_error(field, getattr(record, field.name))) for field, _ in described]
    return [f"{spell(name)} {error}" for name, error in checked if error]


def value_error(field: Field[Any], value: Any) -> str:
    """Return what is wrong with the value of a field, to follow the field's name; or nothing."""
    setting = setting_of(field)
    if isinstance(value, float) and math.isnan(value):
        return f"must be a number, not {value}"
    error = setting.error(value)
    is_time = str(field.type).startswith("float")  # what is counted is whole
    if error or value is None or not is_time or abs(value) <= LONGEST_S:
        return error
    return f"must be at most {LONGEST_S:.0f} seconds, not {value}"


def read_value(field: Field[Any], text: str) -> Any:
    """Read the value of a field.

    Raises:
        ValueError: The text is not one.
    """
    setting = setting_of(field)
    if setting.auto and text == "auto":
        return AUTO
    try:
        value = _READERS[str(field.type)](text)
    except (ValueError, KeyError):
        kind = _KINDS.get(str(field.type), str(field.type))
        raise ValueError(f"{text!r} is not {'auto or ' if setting.auto else ''}{kind}") from None
    return _said(setting, value)


def take_value(field: Field[Any], value: Any) -> Any:
    """Return a value that has a type already, as in a TOML file, as the field's.

    Raises:
        ValueError: It is of another type, or not among those that the field may have.
    """
    setting, kind = setting_of(field), str(field.type)
    if setting.auto and value == "auto":
        return AUTO
    # Of Python's types a bool is an int, and what a file says is meant more strictly.
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
        raise ValueError(f"{value!r} is not {'auto or ' if setting.auto else ''}{_TAKEN[kind]}")
    problem = value_error(field, value)
    if problem:
        raise ValueError(problem)
    return _said(setting, value)


def _said(setting: Setting, value: Any) -> Any:
    """Return a value that somebody has said; what stands for ``auto`` is only said by that word."""
    if setting.auto and value == AUTO:
        raise ValueError(f"must be at least 1, or auto, not {value}")
    return value


def write_value(value: Any) -> str:
    """Return the text from which ``read_value`` reads the value again."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value.value if isinstance(value, Role) else value)


def _read_bool(text: str) -> bool:
    return {"1": True, "0": False}[text]


_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "int | None": int,
    "float": float,
    "float | None": float,
    "str": str,
    "Role": Role,
    "bool": _read_bool,
}
_KINDS = {
    "int": "a whole number",
    "int | None": "a whole number",
    "float": "a number",
    "float | None": "a number",
    "Role": f"one of {', '.join(role.value for role in Role)}",
    "bool": "0 or 1",
}
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int,),
    "float": (int, float),
    "float | None": (int, float),
    "str": (str,),
    "bool": (bool,),
}
_TAKEN = {**_KINDS, "bool": "true or false", "str": "a text"}
