"""On PYTHONPATH, spares a test's processes three quarters of `import mxnet`, which no test needs.

MXNet takes a base class from scikit-learn for one class that is deprecated, and sparse matrices and some
statistics from SciPy, if it is installed. A script that imports either on its own account gets it. Web
requests are for downloads of data sets; these, and parts of MXNet that few scripts use, are loaded when
something of them is asked for. And for each of its operators, 2,500 times, MXNet writes Python source of a
function with its documentation, and compiles that. Here an operator has its function when it is called for
the first time.
"""

from __future__ import annotations

import functools
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

NOT_NEEDED = ("scipy", "sklearn")
LATER = (
    "requests",
    *("mxnet.contrib.onnx", "mxnet.contrib.quantization", "mxnet.contrib.text"),
    *("mxnet.gluon.contrib", "mxnet.gluon.data", "mxnet.gluon.model_zoo"),
    *("mxnet.rnn", "mxnet.test_utils", "mxnet.torch", "mxnet.visualization"),
)


def _when_called(make: Any, handle: Any, name: str, func_name: str) -> Any:
    """Return what looks to MXNet like the function of an operator, and makes it when it is called."""
    made: list[Any] = []

    def operator(*args: Any, **kwargs: Any) -> Any:
        if not made:
            made.append(make(handle, name, func_name))
        return made[0](*args, **kwargs)

    operator.__name__ = func_name
    operator.__doc__ = ""  # MXNet rewrites it for some operators
    return operator


def _postpone(register: Any) -> Any:
    """Return a function that registers the operators of a module, which are made when they are called."""

    def register_operators(*names: Any, make_op_func: Any = None, **named: Any) -> None:
        if make_op_func is None:
            *names, make_op_func = names  # type: ignore[assignment]
        register(*names, make_op_func=functools.partial(_when_called, make_op_func), **named)

    return register_operators


class _WithPostponedOperators:
    """Loads ``mxnet.base``, whose functions register the operators."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See ``importlib.abc.Loader``."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: Any) -> None:
        """See ``importlib.abc.Loader``."""
        self._loader.exec_module(module)
        for name in ("_init_op_module", "_init_np_op_module"):
            setattr(module, name, _postpone(getattr(module, name)))


class _WithoutContent:
    """Loads an empty module, which has what it should have once something is looked for in it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, _spec: ModuleSpec) -> None:
        """See ``importlib.abc.Loader``."""

    def exec_module(self, module: Any) -> None:
        """See ``importlib.abc.Loader``."""

        def look_up(name: str) -> Any:
            del module.__getattr__
            self._loader.exec_module(module)
            return getattr(module, name)

        module.__getattr__ = look_up


_KINDS: dict[str, Any] = {"mxnet.base": _WithPostponedOperators, **dict.fromkeys(LATER, _WithoutContent)}


class _ForMXNet:
    """Finds modules another way for as long as MXNet is being imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, _target: Any = None) -> ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder``."""
        mxnet = getattr(sys.modules.get("mxnet"), "__spec__", None)
        if not getattr(mxnet, "_initializing", False):
            return None
        if name.partition(".")[0] in NOT_NEEDED:
            raise ModuleNotFoundError(name)
        kind = _KINDS.get(name)
        if kind is None or (spec := PathFinder.find_spec(name, path)) is None:
            return None
        spec.loader = kind(spec.loader)
        return spec


sys.meta_path.insert(0, _ForMXNet)
