"""The exception tree: as drawn, and as it travels between processes."""

from __future__ import annotations

import inspect
import re
import threading

import pytest

from kvstore_mpi import errors
from kvstore_mpi.errors import InternalError, KVStoreError, error_from_wire

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, KVStoreError) and value is not KVStoreError
]


def drawn_tree():
    """Read name, depth and exit code of every class out of the module's docstring."""
    pattern = r"^ {4}([├└│─ ]+)(\w+Error) +(\d+)"
    return {
        name: (len(branch) // 4, int(code))
        for branch, name, code in re.findall(pattern, errors.__doc__, re.MULTILINE)
    }


def test_the_tree_in_the_docstring_is_the_tree():
    """Depth and exit code of each class are as drawn, and none is missing."""
    actual = {cls.__name__: (cls.__mro__.index(KVStoreError), cls.exit_code) for cls in CLASSES}
    assert drawn_tree() == actual


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_of_another_process_is_rebuilt(cls):
    """Class, text and exit code survive the way over the network."""
    rebuilt = error_from_wire(cls.__name__, "key 'w' of worker1: shape (2,) is not (3,)")
    assert type(rebuilt) is cls
    assert str(rebuilt) == "key 'w' of worker1: shape (2,) is not (3,)"


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "os.system", "", "UsageError "])
def test_an_unknown_class_name_is_a_bug_of_ours_and_never_another_class(name):
    """A peer cannot choose what is constructed here."""
    rebuilt = error_from_wire(name, "text")
    assert type(rebuilt) is InternalError
    assert str(rebuilt) == "text"


def test_a_thread_that_the_system_refuses_is_known_by_its_error():
    """The words are Python's own, and those of no other error."""
    stack = threading.stack_size(1 << 47)  # all that a process can address
    try:
        with pytest.raises(RuntimeError) as caught:
            threading.Thread(target=print).start()
    finally:
        threading.stack_size(stack)
    assert errors.lacks_thread(caught.value)
    assert not errors.lacks_thread(RuntimeError("dictionary changed size during iteration"))
    assert not errors.lacks_thread(ValueError(str(caught.value)))
