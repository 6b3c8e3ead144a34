"""What it would save if some rows of a table went by allreduce and the rest to the servers: too little.

Rows that nearly every machine touches in nearly every step need no ids and no answers: as one small dense
array they go by allreduce, for 4 w (N - 1) / N bytes of a row of w bytes. How many bytes a row costs at the
servers follows from how often it is touched; each row goes where it costs less. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore_mpi.hybrid import cost
from kvstore_mpi.hybrid.cost import Table
from kvstore_mpi.hybrid.density import Density
from kvstore_mpi.hybrid.routes import ROWS_SERVERS, traffic

if TYPE_CHECKING:
    import numpy as np

    from kvstore_mpi.hybrid.cost import Cluster
    from kvstore_mpi.hybrid.routes import Prices

    Array = np.ndarray[Any, Any]


class Touched(NamedTuple):
    """How often rows were touched in some steps.

    Attributes:
        ids: int64, ascending; rows that do not stand here were not touched.
        machines: For each, in how many of all machines' steps it was touched.
        steps: For each, in how many steps any machine touched it.
    """

    ids: Array
    machines: Array
    steps: Array


class HotRows(NamedTuple):
    """The rows that go by allreduce.

    Attributes:
        ids: int64, ascending; none if nothing is saved.
        before: Bytes of the busiest machine in a step if all rows go to the servers.
        after: The same if these go by allreduce.
    """

    ids: Array
    before: float
    after: float

    @property
    def saving(self) -> float:
        """The share of the bytes that is saved."""
        return 1 - self.after / self.before if self.before else 0.0


def choose_hot(
    touched: Touched,
    num_steps: int,
    table: Table,
    cluster: Cluster,
    prices: Prices,
    *,
    least_saving: float = 0.03,
) -> HotRows:
    """Choose the rows that go by allreduce so that the fewest bytes travel.

    Args:
        touched: Counted in the last steps, added up over all machines; all ranks must give the same.
        num_steps: Number of these steps.
        table: The table.
        cluster: Has servers and more than one machine, or nothing is saved.
        prices: What travels, and what is pulled; bytes count alike on both routes.
        least_saving: Less than this share of the bytes is not worth a second operation in every step.
    """

    def by_servers(pushed: float, changed: float) -> float:
        density = Density(0.0, pushed / table.rows, changed / table.rows)
        return traffic(ROWS_SERVERS, table, density, cluster, prices).num_bytes

    fixed = by_servers(0.0, 0.0)
    a_push = (by_servers(1.0, 0.0) - fixed) / (num_steps * cluster.machines)
    a_change = (by_servers(0.0, 1.0) - fixed) / num_steps
    an_allreduce = cost.dense_allreduce(Table(1, table.row_bytes), cluster).num_bytes
    hot = touched.machines * a_push + touched.steps * a_change > an_allreduce
    # Sums of whole numbers: those of fractions would depend on the order in which a processor adds them.
    before = fixed + int(touched.machines.sum()) * a_push + int(touched.steps.sum()) * a_change
    saved = int(touched.machines[hot].sum()) * a_push + int(touched.steps[hot].sum()) * a_change
    after = before - saved + int(hot.sum()) * an_allreduce
    if after > (1 - least_saving) * before:
        return HotRows(touched.ids[:0], before, before)
    return HotRows(touched.ids[hot], before, after)
