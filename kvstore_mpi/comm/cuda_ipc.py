"""Memory of GPUs from rank to rank of one host, through CUDA's handles for other processes.

A sender offers an array: the handle of its allocation, and where in it the array begins. The receiver opens
the allocation, copies from device to device, and says when it has. Offers and answers travel over another
communicator, and so does all that lies on the host. Used by one thread only. Imports CuPy.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from kvstore_mpi.comm.delegating import DelegatingCommunicator
from kvstore_mpi.errors import ConfigurationError, MismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvstore_mpi.interfaces import Communicator

Array = np.ndarray[Any, Any]

_OFFER = struct.Struct("<64sQQQ")
"""Handle of the allocation, its address in the sender, the array's address there, bytes."""

_DEVICE_TO_DEVICE = 3


class CudaIpcCommunicator(DelegatingCommunicator):
    """The ranks of another communicator, all on one host; arrays of CuPy go from device to device."""

    def __init__(self, inner: Communicator, *, allocation_of: Callable[[int], int] | None = None) -> None:
        """Take ownership of a communicator; called by all its ranks.

        Args:
            inner: Carries offers and answers, and what is on the host.
            allocation_of: Finds the start of the allocation that an address is in; else the driver does.

        Raises:
            ConfigurationError: The ranks are on several hosts; on all ranks.
        """
        super().__init__(inner)
        hosts = inner.hosts()
        if len(hosts) > 1:
            raise ConfigurationError(
                f"CUDA gives memory of a GPU to processes of one host, and these {self.size} ranks are on "
                f"{len(hosts)}; use a GPU-aware MPI, or a design that goes through the host"
            )
        self._allocation_of = allocation_of or _ask_driver()
        self._opened: dict[tuple[int, bytes], int] = {}

    def gpu_aware(self) -> bool:
        """See ``interfaces.Communicator``."""
        return True

    def exchange(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        """See ``interfaces.Communicator``; all arrays are on the host, or all on devices.

        Raises:
            MismatchError: A rank sends another number of bytes than this one has room for.
        """
        if all(isinstance(array, np.ndarray) for _, array in (*sends, *receives)):
            self._inner.exchange(sends, receives)
            return
        offers = [(peer, self._offer(array)) for peer, array in sends]
        heads = [(peer, np.empty(_OFFER.size, np.uint8)) for peer, _ in receives]
        self._inner.exchange(offers, heads)
        for (peer, space), (_, head) in zip(receives, heads):
            self._fetch(peer, head, space)
        spaces: list[Any] = [space for _, space in receives]
        for space in spaces:
            with space.device:
                cupy.cuda.get_current_stream().synchronize()
        answer = np.zeros(1, np.uint8)
        answers = [(peer, np.empty(1, np.uint8)) for peer, _ in sends]
        self._inner.exchange([(peer, answer) for peer, _ in receives], answers)

    def _offer(self, array: Any) -> Array:
        if not array.size:
            return np.zeros(_OFFER.size, np.uint8)
        address = array.data.ptr
        base = self._allocation_of(address)
        handle = cupy.cuda.runtime.ipcGetMemHandle(base)
        return np.frombuffer(_OFFER.pack(handle, base, address, array.nbytes), np.uint8)

    def _fetch(self, peer: int, head: Array, space: Any) -> None:
        """Queue the copy of what a peer offers."""
        handle, base, address, num_bytes = _OFFER.unpack(head.tobytes())
        if num_bytes != space.nbytes:
            raise MismatchError(
                f"rank {peer} sends {num_bytes} bytes, and rank {self.rank} expects {space.nbytes}"
            )
        if not num_bytes:
            return
        with space.device:
            # A process cannot open what is its own, and need not.
            start = base if peer == self.rank else self._open(peer, handle)
            stream = cupy.cuda.get_current_stream().ptr
            cupy.cuda.runtime.memcpyAsync(
                space.data.ptr, start + address - base, num_bytes, _DEVICE_TO_DEVICE, stream
            )

    def _open(self, peer: int, handle: bytes) -> int:
        """Return where a peer's allocation begins here; it stays open for the next step."""
        start = self._opened.get((peer, handle))
        if start is None:
            start = self._opened[peer, handle] = cupy.cuda.runtime.ipcOpenMemHandle(handle)
        return start

    def close(self) -> None:
        """See ``interfaces.Communicator``."""
        for start in self._opened.values():
            cupy.cuda.runtime.ipcCloseMemHandle(start)
        super().close()


def _ask_driver() -> Callable[[int], int]:
    """Return what finds an allocation: CuPy cuts arrays out of larger ones, and handles are of whole ones.

    Raises:
        ConfigurationError: There is no driver.
    """
    try:
        find = ctypes.CDLL("libcuda.so.1").cuMemGetAddressRange_v2
    except (OSError, AttributeError) as error:
        raise ConfigurationError(
            f"memory of GPUs cannot be exchanged without a CUDA driver: {error}"
        ) from error

    def allocation_of(address: int) -> int:
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        code = find(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        if code:
            raise ConfigurationError(f"the CUDA driver knows no allocation at {address:#x} (error {code})")
        return base.value

    return allocation_of
