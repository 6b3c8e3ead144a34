"""What a step of a net computes and sends: measured, or computed from a device's roofline. Pure."""

from __future__ import annotations

import msgspec

from kvstore_mpi.errors import UsageError
from kvstore_mpi.planner.cuts import Parts
from kvstore_mpi.planner.digests import digest
from kvstore_mpi.planner.quantities import LEAST_SECONDS, check_bytes, check_seconds

BACKWARD_SHARE = 2 / 3
"""Of a layer's compute, where only the sum is known: backward computes two products for one of forward."""


class NetLayer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One parameter array and the compute around it.

    Attributes:
        name: For people.
        num_bytes: Of all its values.
        forward_s: Seconds of compute in the forward pass that cannot start before its new value is there.
        backward_s: Seconds of compute at whose end its gradient is ready.
        rows: Of a table of which a step touches only some; 1 for a dense array.
        touched: Share of the rows that one worker touches in a step.
        touched_by_all: Share that all workers touch together, as far as it is known; else that of one.
    """

    name: str
    num_bytes: int
    forward_s: float
    backward_s: float
    rows: int = 1
    touched: float = 1.0
    touched_by_all: float = 0.0

    @property
    def is_table(self) -> bool:
        """Whether a step sends some of its rows and not all of it."""
        return self.rows > 1


class Net(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A net, as one worker on one device trains it.

    Attributes:
        name: For people.
        batch: Samples of one worker in a step, with which the times were measured.
        samples: In an epoch, over all workers.
        layers: In forward order; at least one.
        other_s: Seconds of a step that belong to no layer: loading data, the update.
        parts: What can be on different ranks of a worker, as far as that is known.
    """

    name: str
    batch: int
    samples: int
    layers: tuple[NetLayer, ...]
    other_s: float = 0.0
    parts: Parts | None = None

    @property
    def step_s(self) -> float:
        """Seconds of a step on one device, without communication."""
        return self.other_s + sum(layer.forward_s + layer.backward_s for layer in self.layers)

    @property
    def num_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(layer.num_bytes for layer in self.layers)

    @property
    def digest(self) -> str:
        """What tells this net from others in a plan: layers, times, batch and samples, not the name."""
        return digest(msgspec.structs.replace(self, name=""))

    @property
    def structure(self) -> str:
        """What tells this net from others whatever it was measured to take: the sizes of its layers."""
        return digest([(layer.num_bytes, layer.rows) for layer in self.layers])


def write_net(net: Net) -> bytes:
    """Return a net as JSON."""
    return msgspec.json.format(msgspec.json.encode(net), indent=1) + b"\n"


def read_net(text: bytes, where: str = "this text") -> Net:
    """Read the JSON of a net.

    Raises:
        UsageError: It is none; ``where`` says where the text is from.
    """
    try:
        net = msgspec.json.decode(text, type=Net)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"{where} is no profile of a net: {error}; mpilaunch plan --profile writes one, and reads a "
            "symbol of MXNet's with --shape"
        ) from error
    check_net(net, where)
    return net


def check_net(net: Net, where: str) -> None:
    """Make sure that a net can be planned for.

    Raises:
        UsageError: It cannot; the text names the first thing that is wrong.
    """
    for layer in net.layers:
        _check_layer(layer, f"{where}: layer {layer.name!r}")
    check_seconds(f"{where}: other_s", net.other_s)
    if not net.layers or net.batch < 1 or net.samples < 1 or net.step_s < LEAST_SECONDS:
        raise UsageError(
            f"{where}: a net needs a layer, a batch and samples of 1 or more, and a step that takes time"
        )
    if net.parts is not None:
        try:
            net.parts.checked()
        except UsageError as error:
            raise UsageError(f"{where}: parts: {error}") from error


def _check_layer(layer: NetLayer, where: str) -> None:
    check_bytes(f"{where}: num_bytes", layer.num_bytes)
    check_seconds(f"{where}: forward_s", layer.forward_s)
    check_seconds(f"{where}: backward_s", layer.backward_s)
    if layer.rows < 1 or not (0 <= layer.touched <= 1 and 0 <= layer.touched_by_all <= 1):
        raise UsageError(f"{where} needs 1 row or more, and shares of rows between 0 and 1")
    if 0 < layer.touched_by_all < layer.touched:
        raise UsageError(
            f"{where}: touched_by_all is {layer.touched_by_all:g}, and one worker alone touches "
            f"{layer.touched:g}: all together touch as many or more"
        )
