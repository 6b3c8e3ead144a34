"""``--set slice_elements auto``: larger slices where the whole job is on one host.

On a link a slice must be short, because what is urgent waits for the one that is under way. Within a host
only references travel (docs/adr/0001), so that nothing waits long, and each slice costs its server and the
worker as much as the sum of some ten thousand elements. Pure.
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
"""Elements. Of 50,000 to 3,000,000 none was better for 4 MB, 100 MB and ResNet-50's keys, by servers as by
the ranks alone (docs/where-the-time-goes.md)."""


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
