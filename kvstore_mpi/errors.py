"""The exceptions of this package.

::

    KVStoreError                   base; ``exit_code`` is what the launcher reports
    ├── UsageError             64  the store was called in a way that cannot work
    │   └── UnsupportedError   64  asked for something that this version does not do
    ├── MismatchError          76  workers disagree: shape, dtype, keys, order of operations
    ├── ConfigurationError     78  an option or the environment cannot work
    ├── PeerError              69  the other side or the network failed
    │   ├── PeerLostError      69  a process of the job has died or left
    │   │   ├── ToldToEndError 69  a process of the job was told to end, and somebody says so
    │   │   ├── HostLostError  69  a host of the job is lost, with all that has run on it
    │   │   └── LeaseExpiredError 69  this worker was silent for too long and counts as dead
    │   ├── DeadlineError      69  a wait ran out
    │   └── SkippedError       69  an exchange was left out, because a server is down
    ├── NotSavedError          73  what a job has come to could not be written
    ├── AuthenticationError    77  the other side does not know the job's secret
    ├── FrameError             76  bytes from the network are not a frame of ours
    └── InternalError          70  a bug of this package

The first three say *you* did something that cannot work; ``PeerError`` says somebody else failed.
Every message names what, where and who, and what to do about it. Exit codes follow ``sysexits.h``.
"""

from __future__ import annotations


class KVStoreError(Exception):
    """Base of all errors that this package raises on purpose."""

    exit_code = 1


class UsageError(KVStoreError):
    """The store or a command was called in a way that cannot work; so is one with a file that is wrong."""

    exit_code = 64


class UnsupportedError(UsageError):
    """Asked for something that this version does not do."""


class MismatchError(KVStoreError):
    """Workers disagree about a shape, a dtype, the set of keys or the order of operations."""

    exit_code = 76


class ConfigurationError(KVStoreError):
    """An option or the environment cannot work."""

    exit_code = 78


class PeerError(KVStoreError):
    """The other side or the network failed."""

    exit_code = 69


class PeerLostError(PeerError):
    """A process of the job has died or left while it was still needed."""


class ToldToEndError(PeerLostError):
    """A process of the job was told to end, by somebody who says so to the user: logs need not."""


class HostLostError(PeerLostError):
    """A host of the job cannot be reached any more: what has run on it is lost."""


class LeaseExpiredError(PeerLostError):
    """This worker, or another of its client, was silent for too long: the job goes on without it."""


class SkippedError(PeerError):
    """An exchange of parameters was left out, in part or as a whole: a server is down and will be back.

    The outcome of one operation, and no failure: the elements that were not exchanged are in the buffer as
    they were pushed, which stands for a center that is where the client is, and nothing is pending.
    """


class DeadlineError(PeerError):
    """A wait ran out; the message says for what, on whom and for how long."""


class NotSavedError(KVStoreError):
    """What a server was to save when all was over could not be written."""

    exit_code = 73


class AuthenticationError(KVStoreError):
    """The other side does not know the job's secret."""

    exit_code = 77


class FrameError(KVStoreError):
    """Bytes from the network are not a frame of ours; the sender is dropped and counted."""

    exit_code = 76


class InternalError(KVStoreError):
    """A bug of this package."""

    exit_code = 70


_BY_NAME = {
    cls.__name__: cls
    for cls in (
        UsageError,
        UnsupportedError,
        MismatchError,
        ConfigurationError,
        PeerError,
        PeerLostError,
        HostLostError,
        LeaseExpiredError,
        ToldToEndError,
        DeadlineError,
        SkippedError,
        NotSavedError,
        AuthenticationError,
        FrameError,
        InternalError,
    )
}


def error_from_wire(name: str, text: str) -> KVStoreError:
    """Rebuild an error that another process reported by class name and text."""
    return _BY_NAME.get(name, InternalError)(text)


def lacks_thread(error: BaseException) -> bool:
    """Return whether this is Python's error where the system refuses a thread, which has no class."""
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"
