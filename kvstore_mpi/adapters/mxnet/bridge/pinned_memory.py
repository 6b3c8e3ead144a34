"""Memory of the host that GPUs reach, so that MXNet's copies between the two take a bus's whole speed.

A copy to or from other memory goes through a small buffer of the driver's, in pieces that the processor
copies: 100 MB took 9 ms from a card and 16 ms to it, and take 1.9 ms (H200 on PCIe 5). The memory is
registered by the CUDA runtime that MXNet has loaded, so nothing else needs to be installed. This file must
not know about keys or stores.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from mxnet.base import _LIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

_PORTABLE = 1
"""``cudaHostRegisterPortable``: for all GPUs, not the current one alone."""


class PinningError(RuntimeError):
    """The CUDA runtime refuses to register memory."""


class CudaRuntime:
    """As much of the CUDA runtime as pins memory."""

    def __init__(self, library: Any) -> None:
        """Take the functions of a library."""
        self._library = library

    @classmethod
    def of_mxnet(cls) -> CudaRuntime | None:
        """Return that which MXNet has loaded; ``None`` where it is built without CUDA."""
        return cls(_LIB) if hasattr(_LIB, "cudaHostRegister") else None

    def pin(self, buffer: np.ndarray[Any, Any], gpu: int) -> Callable[[], None]:
        """Let GPUs reach memory of the host.

        Args:
            buffer: No page of it belongs to another that is pinned.
            gpu: One that is in use; no other is woken up for this.

        Returns:
            What takes it from them again; to be called before the memory is gone.

        Raises:
            PinningError: It cannot be pinned.
        """
        address = ctypes.c_void_p(buffer.ctypes.data)
        with self._current(gpu):
            status = self._library.cudaHostRegister(address, ctypes.c_size_t(buffer.nbytes), _PORTABLE)
            if status:
                self._library.cudaGetLastError()  # or MXNet would take it for its own
                raise PinningError(f"cudaHostRegister ended with error {status} for {buffer.nbytes} bytes")
        return partial(self._unpin, address, gpu)

    def _unpin(self, address: ctypes.c_void_p, gpu: int) -> None:
        with self._current(gpu):
            self._library.cudaHostUnregister(address)

    @contextmanager
    def _current(self, gpu: int) -> Iterator[None]:
        """Make a GPU the thread's current one: the runtime wakes up that one."""
        before = ctypes.c_int()
        self._library.cudaGetDevice(ctypes.byref(before))
        self._library.cudaSetDevice(gpu)
        try:
            yield
        finally:
            self._library.cudaSetDevice(before)
