"""Reads what has crossed a host's link, as often as is said, from inside of the host.

Run as a script, ``sampler.py DEVICE SECONDS``, it prints ``seconds sent received`` until it is terminated.
Only the standard library, so that it starts at once and takes little of the processors.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .netns import Network
    from .utilisation import Sample

INTERVAL_S = 0.01


@final
class Sampler:
    """Samples the link of one host for as long as the ``with`` lasts; ``samples`` has them then."""

    def __init__(self, network: Network, host: int, device: str, interval_s: float = INTERVAL_S) -> None:
        """Choose the link, and how often it is read."""
        command = (sys.executable, "-I", "-S", __file__, device, str(interval_s))
        self._command = network.in_host(host, command)
        self.samples: list[Sample] = []

    def __enter__(self) -> Sampler:
        """Start."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it runs
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and collect."""
        self._process.terminate()
        text, _error = self._process.communicate()
        lines = [line.split() for line in text.splitlines()]
        self.samples = [(float(when), int(sent), int(received)) for when, sent, received in lines]


def sample(device: str, interval_s: float) -> list[tuple[float, int, int]]:
    """Read the counters of a device until SIGTERM comes."""
    samples = []
    folder = Path("/sys/class/net") / device / "statistics"
    with (folder / "tx_bytes").open() as sent, (folder / "rx_bytes").open() as received:
        due = time.monotonic()
        try:
            while True:
                samples.append((time.monotonic(), _read(sent), _read(received)))
                due += interval_s
                time.sleep(max(0.0, due - time.monotonic()))
        except SystemExit:
            return samples


def _read(counter: TextIO) -> int:
    """Read a counter anew."""
    counter.seek(0)
    return int(counter.read())


def main(arguments: Sequence[str]) -> None:
    """Sample until terminated, then print."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    print("ready", flush=True)
    for when, sent, received in sample(arguments[0], float(arguments[1])):
        print(when, sent, received)


if __name__ == "__main__":
    main(sys.argv[1:])
