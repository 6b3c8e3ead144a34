"""``--set slice_elements auto``: larger slices where the whole job is on one host.

On a link a slice must be short, because what is urgent waits for the one that is under way. Within a host
only references travel, so that nothing waits long, and each slice costs its server about as much as
its sum (docs/adr/0016). Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvstore_mpi.p3.slicing import SLICE_ELEMENTS
from kvstore_mpi.settings import AUTO

if TYPE_CHECKING:
    from mpilaunch.hosts.hostlist import Placement
    from mpilaunch.jobspec import JobSpec

WITHIN_HOST = 1_000_000
"""Elements. Of 50,000 to 3,000,000 the best for 100 MB and, with two clients, for ResNet-50's keys; with
3,000,000 these clients take 0.87 of the time for 4 MB (docs/adr/0016)."""


def with_slices(spec: JobSpec, placement: Placement | None) -> JobSpec:
    """Return a job with the size of slices chosen, where that is left to us.

    Args:
        spec: The job.
        placement: The hosts of its processes; ``None`` for this one alone.
    """
    node = spec.node
    spreads = placement is not None and len(placement.hosts) > 1
    if node.slice_elements != AUTO or spreads or node.transport != "auto":
        return spec
    # All servers of the host are to have a part of a large key.
    elements = max(SLICE_ELEMENTS, WITHIN_HOST // max(1, node.num_servers))
    return replace(spec, node=replace(node, slice_elements=elements))
