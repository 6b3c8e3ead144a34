"""What was decided, for people and as JSON."""

from __future__ import annotations

import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.hybrid.cost import Cluster, Table
from kvstore_mpi.hybrid.density import DENSE, Density
from kvstore_mpi.hybrid.plan import KeyPlan, Plan, plan_key
from kvstore_mpi.hybrid.routes import DENSE_ALLREDUCE, ROWS_SERVERS, Form, Prices, Route

FOUR = Cluster(4, 4)
EMBEDDING = plan_key(
    "embedding0_weight",
    ROWS_SERVERS,
    Table(200_000, 256, pieces=4),
    density=Density(0.00875, 0.0151, 0.042),
    cluster=FOUR,
    prices=Prices(),
    forced=True,
    layout="rows",
    measured_bytes=2_990_000.0,
)
DENSE_KEY = plan_key(
    7,
    DENSE_ALLREDUCE,
    Table(1, 600_000),
    density=DENSE,
    cluster=FOUR,
    prices=Prices(),
    measured_bytes=1_810_000.0,
)
PLAN = Plan((EMBEDDING, DENSE_KEY))


def test_a_plan_is_printed_as_a_table():
    """With units, and with a sum of the bytes."""
    names = "bytes/row alpha of a machine of the job partitions predicted/step measured/step"
    assert [" ".join(line.split()) for line in str(PLAN).splitlines()] == [
        "key route form rows " + names,
        "embedding0_weight servers (forced) rows 200000 256 0.875 % 1.51 % 4.2 % 4 (rows) 2.97 MB 2.99 MB",
        "7 allreduce dense 1 600000 100 % 100 % 100 % - 1.8 MB 1.81 MB",
        "all 4.77 MB 4.8 MB",
    ]


def test_the_columns_of_a_table_are_aligned():
    """Names begin below each other, figures end so."""
    lines = str(PLAN).splitlines()
    assert {line.index("servers") for line in lines[1:2]} == {
        line.index("allreduce") for line in lines[2:3]
    }
    assert len({len(line) for line in lines}) == 1


def test_what_nobody_has_measured_is_left_open():
    """A plan can be looked at before the first step."""
    plan = Plan((KeyPlan(key="a", route=Route.SERVERS, form=Form.ROWS, rows=5, row_bytes=4),))
    assert " ".join(str(plan).splitlines()[1].split()) == "a servers rows 5 4 - - - - - -"
    assert Plan((*plan.keys, DENSE_KEY)).measured_bytes is None
    assert str(Plan(())).split()[0] == "key"


def test_what_sums_of_workers_move_is_computed_and_marked_so():
    """As predicted, once something has been summed; the total has it."""
    arguments = 7, DENSE_ALLREDUCE, Table(1, 600_000)
    known = {"density": DENSE, "cluster": FOUR, "prices": Prices()}
    assert plan_key(*arguments, **known).measured_bytes is None
    summed = plan_key(*arguments, **known, was_summed=True)
    assert (summed.measured_bytes, summed.computed) == (summed.predicted_bytes, True)
    lines = str(Plan((EMBEDDING, summed))).splitlines()
    assert [line.split("  ")[-1].strip() for line in lines[1:]] == [
        "2.99 MB",
        "1.8 MB (computed)",
        "4.79 MB (computed)",
    ]
    unknown = plan_key(*arguments, **{**known, "density": None}, was_summed=True)
    assert (unknown.measured_bytes, unknown.computed) == (None, False)


def test_a_plan_survives_json():
    """With names that are numbers, and everything else."""
    assert Plan.from_json(PLAN.to_json()) == PLAN
    assert '"route": "servers"' in PLAN.to_json()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "truncated"),
        ('{"keys": [{"key": "a", "route": "ps", "form": "rows"}]}', r"'ps'.*\$.keys\[0\].route"),
        ('{"keys": [{"route": "servers", "form": "rows"}]}', "`key`"),
    ],
)
def test_json_that_is_no_plan(text, what):
    """The error says where it is wrong."""
    with pytest.raises(UsageError, match=f"not the JSON of a plan: .*{what}"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (1234, "1.23 kB"), (5e15, "5e+03 TB")]
)
def test_sizes_have_three_digits(size, text):
    """And the unit that goes with them."""
    key = KeyPlan(key="a", route=Route.SERVERS, form=Form.ROWS, predicted_bytes=size)
    assert f" {text} " in str(Plan((key,))).splitlines()[1]
