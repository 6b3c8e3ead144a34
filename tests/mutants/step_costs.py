"""What a step takes of links and processors: the costs by which plans are ranked."""

from __future__ import annotations

from mutants.table import Mutant

_PLAN = ("unit/test_planner.py",)
_QUANTITIES = ("unit/test_plan_quantities.py",)
_UNEQUAL = ("unit/test_unequal_devices.py",)
_TABLES = ("unit/test_planner_tables.py",)
_LINKS = ("unit/test_measured_links.py",)
_MEASURED = ("unit/test_planner_measured.py",)
_ROWS = ("unit/test_row_costs.py",)
_IN = "kvstore_mpi/planner/"

MUTANTS = [
    Mutant(
        "devices of a host cost nothing",
        _IN + "communication.py",
        "busiest = [max(pair) for pair in zip(network, inside)]",
        "busiest = network",
        _PLAN,
    ),
    Mutant(
        "a worker on several hosts has the whole model on each",
        _IN + "communication.py",
        "return Sites(workers, 1, 1 / on_hosts, speed, on_hosts * devices)",
        "return Sites(workers, 1, 1.0, speed, on_hosts * devices)",
        _PLAN,
    ),
    Mutant(
        "rows of tables cost as much as all of them",
        _IN + "sending.py",
        "touched = Density(layer.touched, layer.touched, max(layer.touched, layer.touched_by_all))",
        "touched = Density(1.0, 1.0, 1.0)",
        (*_PLAN, *_MEASURED),
    ),
    Mutant(
        "what is under way can be overtaken",
        _IN + "communication.py",
        "SLICES_TOO_LATE = 5.3",
        "SLICES_TOO_LATE = 0.0",
        _PLAN,
    ),
    Mutant(
        "tables are dealt as if each server had as much",
        _IN + "tables.py",
        "return max(touched) / sum(touched) if any(touched) else 1 / servers",
        "return 1 / servers",
        _TABLES,
    ),
    Mutant(
        "the store's own number of pieces is not the first",
        _IN + "tables.py",
        "return (own, *(each",
        "return (1, *(each",
        _TABLES,
    ),
    Mutant(
        "slices of another size are taken for a header",
        _IN + "communication.py",
        "if found[best].step_s >= (1 - WORTH) * found[0].step_s:",
        "if found[best].step_s >= found[0].step_s:",
        _PLAN,
    ),
    Mutant(
        "a slice costs what a step of few takes",
        "kvstore_mpi/measured_slices.py",
        "(median(many) - median(few)) / load.more_messages",
        "median(few) / load.more_messages",
        _LINKS,
    ),
    Mutant(
        "processors take no time for rows",
        _IN + "sending.py",
        "return rows.step_s + rows.byte_s * self.num_bytes + each",
        "return rows.step_s + each",
        _TABLES,
    ),
    Mutant(
        "links hide all that processors take",
        _IN + "sending.py",
        "return longer and longer * (1 + (shorter / longer) ** hiding) ** (1 / hiding)",
        "return longer",
        _TABLES,
    ),
    Mutant(
        "servers take for rows what workers do",
        _IN + "sending.py",
        "return self.cluster.rows_allreduce if self.way is Way.ALLREDUCE else self.cluster.rows_servers",
        "return self.cluster.rows_allreduce",
        _TABLES,
    ),
    Mutant(
        "what links hide is not the processors' own",
        _IN + "sending.py",
        "return both * (1 - (links / both) ** hiding) ** (1 / hiding) if both > links else 0.0",
        "return max(0.0, both - links)",
        _ROWS,
    ),
    Mutant(
        "bytes of pieces are messages",
        _IN + "row_costs.py",
        "message_s = _ratio(few, found[PIECES], messages, known)",
        "message_s = _ratio(few, found[PIECES], messages, NOTHING_KNOWN)",
        _ROWS,
    ),
    Mutant(
        "where links hide a byte it is what is assumed",
        _IN + "row_costs.py",
        "byte_s = assumed.byte_s * many.processors_s / many.work.seconds(assumed)",
        "byte_s = assumed.byte_s",
        _ROWS,
    ),
    Mutant(
        "steps of large slices tell what a byte takes",
        "kvstore_mpi/measured_slices.py",
        "seconds, elements = min((median(few), FEW), (median(many), MANY))",
        "seconds, elements = median(few), FEW",
        _LINKS,
    ),
    Mutant(
        "every device is as fast as the one that was measured",
        _IN + "communication.py",
        "    pace = sites.speed * speedup",
        "    pace = speedup",
        _UNEQUAL,
    ),
    Mutant(
        "workers do not wait for a slower one",
        _IN + "communication.py",
        "slower = min(each / speeds[place % ways] for place, each in enumerate(speeds))",
        "slower = 1.0",
        _UNEQUAL,
    ),
    Mutant(
        "devices that are faster than the slowest worker's are never idle",
        _IN + "communication.py",
        "return speed, sum(speeds) / (ranks * speed)",
        "return speed, float(ways)",
        _UNEQUAL,
    ),
    Mutant(
        "a roofline may be anything",
        _IN + "cluster_checks.py",
        "        _check_roofline(cluster.device)",
        "        pass",
        _QUANTITIES,
    ),
    Mutant(
        "what is no number is a time",
        _IN + "quantities.py",
        "    if not 0 <= seconds <= MOST_SECONDS:",
        "    if seconds < 0 or seconds > MOST_SECONDS:",
        _QUANTITIES,
    ),
    Mutant(
        "solvers count as far as they like",
        _IN + "placement/problem.py",
        "    if longest > MOST:",
        "    if longest < 0:",
        _QUANTITIES,
    ),
    Mutant(
        "all workers together touch fewer rows than one",
        _IN + "net.py",
        "    if 0 < layer.touched_by_all < layer.touched:",
        "    if 0 < layer.touched_by_all < 0:",
        _QUANTITIES,
    ),
    Mutant(
        "of two speed-ups of the same workers both are planned",
        _IN + "workers.py",
        "        if len(same) > 1:",
        "        if len(same) > 2:",
        ("unit/test_launcher_plan_inputs.py",),
    ),
]
