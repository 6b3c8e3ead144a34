"""Whether a push should bring its key's new value as well, for a pull that is likely to follow. Pure.

A program that calls ``push`` and then ``pull`` of a key does so in every step. So a push is sent as one
that wants the value when the push before it was pulled; the pull then finds the value arriving, as by
``pushpull``. A push that nobody pulls brings a value once at most, after one that was pulled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstore_mpi.interfaces import Done


class PushedValue:
    """One push, as far as pulls after it have to know; its end is told by any thread.

    Attributes:
        wanted: The new value is wanted with it.
        is_sure: What is wanted comes, or the push fails.
        pulled: A pull has come that the value was, or would have been, good for.
        has_ended: It is over, well or not.
        has_come: The value came with it.
    """

    __slots__ = ("has_come", "has_ended", "is_sure", "pulled", "wanted")

    def __init__(self, *, wanted: bool, is_sure: bool) -> None:
        """Record a push that begins."""
        self.wanted = wanted
        self.is_sure = is_sure
        self.pulled = False
        self.has_ended = False
        self.has_come = False

    def arrived(self, _error: BaseException | None) -> None:
        """Note that the value has come; called before the push ends."""
        self.has_come = True

    def ending(self, done: Done) -> Done:
        """Return what is to be called at the end of the push instead of ``done``."""

        def end(error: BaseException | None) -> None:
            # First: whoever sees that the push is over must not rely on what comes with it.
            self.has_ended = True
            done(error)

        return end


class PushedValues:
    """The pushes of one key by this worker, whose calls come from one thread."""

    __slots__ = ("_last", "_others_push", "_predicts")

    def __init__(self, *, others_push: bool, predicts: bool) -> None:
        """Start without a push.

        Args:
            others_push: The value may change without a push of this worker: asynchronous stores.
            predicts: What this worker wants, comes. Otherwise another one decides for it, and it takes what
                comes.
        """
        self._others_push = others_push
        self._predicts = predicts
        self._last: PushedValue | None = None

    def begin(self) -> PushedValue:
        """Return the push that is called now."""
        last = self._last
        wanted = not self._predicts or (last is not None and last.pulled)
        self._last = PushedValue(wanted=wanted, is_sure=self._predicts)
        return self._last

    def forget(self) -> None:
        """Another value comes, by another call: pulls ask for theirs."""
        self._last = None

    def pull(self) -> PushedValue | None:
        """Return the push of which the value is good for the pull that is called now, if it has come.

        In a synchronous store that is the last one, however long ago: the next round needs a push of this
        worker. Where others' pushes count by themselves, it is one that is still under way: of what came
        before this call, its value may have less than a pull has to bring.
        """
        last = self._last
        if last is None or (self._others_push and last.has_ended):
            return None
        last.pulled = True
        return last if last.wanted else None
