"""Which way a key takes, by cost and density; and when it changes over."""

from __future__ import annotations

import random

import pytest

from kvstore_mpi.errors import UsageError
from kvstore_mpi.hybrid.cost import Cluster, Pull, Speed, Table, Wire
from kvstore_mpi.hybrid.density import Density
from kvstore_mpi.hybrid.routes import (
    DENSE_ALLREDUCE,
    DENSE_SERVERS,
    ROWS_ALLREDUCE,
    ROWS_SERVERS,
    Prices,
    Route,
    Router,
    check_force,
    forced_route,
    parse_force,
    traffic,
    unmatched,
)

FOUR = Cluster(machines=4, servers=4)
TABLE = Table(rows=10_000, row_bytes=256, pieces=4)
ALL_WAYS = (ROWS_SERVERS, ROWS_ALLREDUCE, DENSE_ALLREDUCE, DENSE_SERVERS)
PARALLAX = (ROWS_SERVERS, DENSE_ALLREDUCE)


def router(prices=None, table=TABLE, cluster=FOUR, ways=ALL_WAYS):
    """Return a router of one table."""
    return Router(table, cluster, prices or Prices(), ways)


def alike(alpha, machines=4):
    """Return the density if machines touch rows independently of each other."""
    return Density(alpha, alpha, 1 - (1 - alpha) ** machines)


# --- by cost ---


@pytest.mark.parametrize(
    ("alpha", "way"),
    [(0.001, ROWS_SERVERS), (0.5, ROWS_SERVERS), (0.98, ROWS_SERVERS), (1.0, DENSE_ALLREDUCE)],
)
def test_rows_go_to_the_servers_and_whole_tables_by_a_dense_allreduce(alpha, way):
    """With workers that pull what they need, and bytes that are equally fast on both routes."""
    chosen = router(Prices(pull=Pull.OWN)).choose(alike(alpha))
    assert chosen.way == way
    assert chosen.changed == (way != ROWS_SERVERS)


def limit(prices, **kwargs):
    """Return the least density, in hundredths, at which a table no longer goes to the servers."""
    return next(
        each
        for each in range(1, 101)
        if router(prices, ways=PARALLAX, **kwargs).choose(alike(each / 100)).changed
    )


def test_the_limit_of_density_follows_from_the_cost():
    """It is where the bytes are equal to within 2 percent, with ids and unions; slower servers move it."""
    own = Prices(pull=Pull.OWN, wire=Wire(0, 0, 0))
    assert limit(own._replace(servers=Speed(2.0))) == 52
    assert limit(own._replace(servers=Speed(4 / 3))) == 77
    # All get what any of the four has changed: 0.57 + (1 - 0.43 ** 4) is the first to exceed 1.5 / 0.98.
    changed = own._replace(pull=Pull.CHANGED, servers=Speed(4 / 3))
    assert limit(changed) == 57
    # Rows of 16 bytes; with a place in the push, in the request and in the answer these are 44 and not 32.
    narrow = own._replace(wire=Wire(4, 8, 0))
    assert limit(narrow, table=Table(10_000, 16, 4)) == 75


def test_where_all_get_all_changes_an_allreduce_of_rows_costs_no_more_than_servers():
    """It merges rows before it spreads them, or not where that is cheaper: rows that few have in common."""
    prices = Prices(wire=Wire(0, 0, 0))
    common, disjoint = Density(0.01, 0.01, 0.02), Density(0.01, 0.01, 0.04)
    assert not router(prices).choose(common).changed
    costs = router(prices).choose(common).seconds
    assert costs[ROWS_ALLREDUCE] == pytest.approx(costs[ROWS_SERVERS])
    assert router(prices).choose(disjoint).way == ROWS_ALLREDUCE
    # Workers that ask for the rows of their next batch get fewer from servers.
    assert router(prices._replace(pull=Pull.OWN)).choose(disjoint).way == ROWS_SERVERS


def test_two_machines_gather_rows_as_cheaply_as_through_servers():
    """N / 2 of the paper is 1: with equal bytes a key stays where it is."""
    pair = Cluster(2, 2)
    bare = Prices(pull=Pull.OWN, wire=Wire(0, 0, 0))
    chosen = router(bare, cluster=pair).choose(alike(0.01))
    assert not chosen.changed
    assert chosen.seconds[ROWS_ALLREDUCE] == pytest.approx(chosen.seconds[ROWS_SERVERS])


def test_what_is_dense_leaves_servers_alone():
    """Where both cost the same."""
    pair = Cluster(2, 2)
    chosen = router(Prices(wire=Wire(9, 9, 0)), cluster=pair).choose(alike(1.0))
    assert chosen.seconds[DENSE_SERVERS] == pytest.approx(chosen.seconds[DENSE_ALLREDUCE])
    assert chosen.way == DENSE_ALLREDUCE


def test_on_one_machine_messages_decide():
    """No byte leaves it, and servers cost a message each."""
    prices = Prices(allreduce=Speed(1e-9, 1e-5), servers=Speed(1e-9, 1e-5))
    one = Cluster(1, 2, ranks=4)
    assert router(prices, cluster=one).choose(Density(0.1, 0.3, 0.3)).way == ROWS_ALLREDUCE


def test_a_table_of_one_piece_among_many_is_not_charged_for_being_alone():
    """Its server has it all, while others have other tables."""
    alone = traffic(ROWS_SERVERS, TABLE._replace(pieces=1), alike(0.1), FOUR, Prices())
    among = traffic(ROWS_SERVERS, TABLE._replace(pieces=1), alike(0.1), FOUR, Prices(share=0.25))
    assert alone.num_bytes == pytest.approx(2 * among.num_bytes, rel=0.01)


def test_equal_numbers_lead_to_equal_ways():
    """Ranks do not tell each other what they chose."""
    rng = random.Random(3)
    densities = [alike(rng.random()) for _ in range(50)]
    ways = [[each.choose(density).way for density in densities] for each in (router(), router())]
    assert ways[0] == ways[1]


# --- changing over ---


def test_a_density_about_the_limit_makes_no_key_go_to_and_fro():
    """The first density decides; then only what is a tenth cheaper changes anything."""
    prices = Prices(pull=Pull.OWN, wire=Wire(0, 0, 0), servers=Speed(2.0))
    for seed in range(20):
        rng = random.Random(seed)
        one = router(prices, ways=PARALLAX)
        one.choose(alike(0.5 + rng.uniform(-0.02, 0.02)))
        assert not any(one.choose(alike(0.5 + rng.uniform(-0.02, 0.02))).changed for _ in range(100))


def test_a_density_that_moves_for_good_takes_the_key_along():
    """Once in each direction."""
    prices = Prices(pull=Pull.OWN, wire=Wire(0, 0, 0), servers=Speed(2.0))
    one = router(prices, ways=PARALLAX)
    rising = [one.choose(alike(alpha / 100)) for alpha in range(30, 80)]
    falling = [one.choose(alike(alpha / 100)) for alpha in range(80, 30, -1)]
    assert [sum(each.changed for each in way) for way in (rising, falling)] == [1, 1]
    # The first is 0.30, so that the margin applies from there on: 10 % above and below the limit of 0.5.
    assert rising.index(next(each for each in rising if each.changed)) + 30 == 56
    assert 80 - falling.index(next(each for each in falling if each.changed)) == 44


def test_the_first_density_decides_nearly_by_cost_alone():
    """Where a key begins is hardly a reason to stay there; where it has been, it is."""
    prices = Prices(pull=Pull.OWN, wire=Wire(0, 0, 0), servers=Speed(2.0))
    assert router(prices, ways=PARALLAX).choose(alike(0.52)).changed
    one = router(prices, ways=PARALLAX)
    one.choose(alike(0.4))
    assert not one.choose(alike(0.52)).changed


# --- what users want ---


def test_routes_of_keys_by_name_and_by_pattern():
    """The name counts before patterns, of these the first; the others are decided by cost."""
    force = check_force(
        {"emb*": "allreduce", "embedding0_weight": "servers", "*bias": "servers", "3": "servers"}
    )
    assert forced_route(force, "embedding0_weight") is Route.SERVERS
    assert forced_route(force, "embedding1_weight") is Route.ALLREDUCE
    assert forced_route(force, "emb_bias") is Route.ALLREDUCE
    assert forced_route(force, "dense0_bias") is Route.SERVERS
    assert forced_route(force, 3) is Route.SERVERS
    assert forced_route(force, "dense0_weight") is None


def test_a_route_of_another_name():
    """The error shows what there is."""
    with pytest.raises(UsageError, match="'emb\\*' cannot be 'ps': a route is 'allreduce' or 'servers'"):
        check_force({"emb*": "ps"})


def test_a_name_with_two_routes():
    """None of them is taken for the one that was meant; what is said twice is no matter."""
    assert parse_force("a=servers, b=rows, a=servers") == {"a": Route.SERVERS, "b": Route.ROWS}
    with pytest.raises(UsageError, match="'a' has two routes, 'servers' and 'allreduce': leave one out"):
        parse_force("a=servers, b=rows, a=allreduce")


def test_patterns_that_fit_no_key_are_found():
    """Names with brackets fit themselves, too."""
    force = check_force({"emb*": "servers", "dense": "servers", "a[0]": "servers"})
    assert unmatched(force, ["embedding", "a[0]", 7]) == ["dense"]
