"""The whole problem as intervals on devices, for the CP-SAT solver of ortools. Pure.

Equation (12) is a no-overlap constraint for each device; (7) one of its boolean variables for each group;
(10) and (11) a precedence with a delay that counts where two groups are on different devices; (13) a sum.
Importing this needs ortools, which the extra ``planner`` installs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortools.sat.python import cp_model

from kvstore_mpi.planner.placement.problem import Problem, Solution

if TYPE_CHECKING:
    from kvstore_mpi.planner.placement.problem import Arc

CONFLICTS_PER_SECOND = 1000
"""Conflicts of the solver that count as a second of work, whatever the machine: answers stay the same."""

FIRST_ROUND = 300
GROWTH = 4
STRATEGIES: tuple[dict[str, Any], ...] = (
    {"linearization_level": 0, "use_objective_lb_search": True},
    {"linearization_level": 0, "use_strong_propagation_in_disjunctive": True},
    {"linearization_level": 2, "use_objective_lb_search": True},
    {"linearization_level": 1},
)
"""Tried in turn: which of them ends soon differs from problem to problem by factors of a hundred."""


def solve(problem: Problem, start: Solution, seconds: float, workers: int = 1) -> tuple[Solution, float]:
    """Return the best solution found with an effort of about ``seconds``, with its bound; and the effort.

    Args:
        problem: What to solve.
        start: A solution to begin with; nothing longer is looked for.
        seconds: Counted in conflicts, so that equal problems have equal answers.
        workers: Threads; more than one take turns, which keeps answers equal.
    """
    left = int(seconds * CONFLICTS_PER_SECOND)
    conflicts = FIRST_ROUND
    best = start
    while best.bound < best.length and left > 0:
        for strategy in STRATEGIES:
            best, used = _attempt(problem, best, strategy, min(conflicts, left), workers)
            left -= max(1, used)
            if best.bound >= best.length or left <= 0:
                break
        conflicts *= GROWTH
    return best, seconds - left / CONFLICTS_PER_SECOND


def _attempt(
    problem: Problem, start: Solution, strategy: dict[str, Any], conflicts: int, workers: int
) -> tuple[Solution, int]:
    """Return what one strategy makes of a solution, and the conflicts that it has used."""
    model = _Model(problem, start)
    solver = cp_model.CpSolver()
    solver.parameters.max_number_of_conflicts = conflicts
    solver.parameters.max_deterministic_time = (
        conflicts / CONFLICTS_PER_SECOND
    )  # what is no search counts here
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 0
    solver.parameters.interleave_search = workers > 1
    for name, value in strategy.items():
        setattr(solver.parameters, name, value)
    status = solver.status_name(solver.solve(model.model))
    bound = max(start.bound, round(solver.best_objective_bound))
    if status == "INFEASIBLE":  # so was the start: memory allows no placement
        bound = start.length
    if status not in {"OPTIMAL", "FEASIBLE"}:
        return Solution(start.device, start.starts, start.length, bound), solver.num_conflicts
    found = Solution(
        device=[
            next(device for device, here in places.items() if solver.boolean_value(here))
            for places in model.places
        ],
        starts=[solver.value(each) for each in model.starts],
        length=round(solver.objective_value),
        bound=bound,
    )
    return found, solver.num_conflicts


class _Model:
    """Variables and constraints."""

    def __init__(self, problem: Problem, start: Solution) -> None:
        self.model = cp_model.CpModel()
        self._problem = problem
        self._horizon = start.length
        self._same: dict[tuple[int, int], Any] = {}
        self.places = [
            {device: self.model.new_bool_var("") for device in allowed} for allowed in problem.allowed
        ]
        for places in self.places:
            self.model.add_exactly_one(places.values())
        self.starts = self._new_starts()
        self._end = self.model.new_int_var(start.bound, self._horizon, "")
        self._add_devices()
        for arc in problem.arcs:
            self._add_arc(arc)
        self.model.minimize(self._end)
        self._hint(start)

    def _new_starts(self) -> list[Any]:
        heads = [0] * len(self._problem.tasks)
        for task in self._problem.order:
            for arc in self._problem.outputs[task]:
                heads[arc.after] = max(heads[arc.after], heads[task] + self._problem.least(task))
        return [
            self.model.new_int_var(head, max(head, self._horizon - tail), "")
            for head, tail in zip(heads, self._problem.tails)
        ]

    def _duration(self, task: int) -> Any:
        """Return what a task takes, a sum over its devices unless all are equal."""
        durations = self._problem.durations[task]
        places = self.places[self._problem.group_of_task[task]]
        if len({durations[device] for device in places}) == 1:
            return durations[next(iter(places))]
        return sum(durations[device] * here for device, here in places.items())

    def _add_devices(self) -> None:
        problem = self._problem
        for device, capacity in enumerate(problem.capacity):
            intervals, load = [], []
            for task, group in enumerate(problem.group_of_task):
                here = self.places[group].get(device)
                duration = problem.durations[task][device]
                if here is None:
                    continue
                load.append(duration * here)
                intervals.append(
                    self.model.new_optional_fixed_size_interval_var(self.starts[task], duration, here, "")
                )
            self.model.add_no_overlap(intervals)
            self.model.add(sum(load) <= self._end)
            if capacity:
                need = [
                    bytes_ * places[device]
                    for bytes_, places in zip(problem.memory, self.places)
                    if device in places
                ]
                self.model.add(sum(need) <= capacity)
        for task, start in enumerate(self.starts):
            if not problem.outputs[task]:
                self.model.add(start + self._duration(task) <= self._end)

    def _add_arc(self, arc: Arc) -> None:
        before, after = (self._problem.group_of_task[task] for task in arc[:2])
        ready = self.starts[arc.before] + self._duration(arc.before)
        start = self.starts[arc.after]
        far = {
            delay
            for one in self.places[before]
            for other, delay in enumerate(arc.delays[one])
            if one != other and other in self.places[after]
        }
        if before == after or not any(far):
            self.model.add(start >= ready)
        elif len(far) == 1:
            self.model.add(start >= ready + far.pop() * self._apart(before, after))
        else:
            for one, here in self.places[before].items():
                for other, there in self.places[after].items():
                    self.model.add(start >= ready + arc.delays[one][other]).only_enforce_if(here, there)

    def _apart(self, one: int, other: int) -> Any:
        """Return the variable that is true where two groups are on different devices."""
        key = min(one, other), max(one, other)
        if key not in self._same:
            apart = self._same[key] = self.model.new_bool_var("")
            for device in self.places[one] | self.places[other]:
                here, there = self.places[one].get(device), self.places[other].get(device)
                if here is not None and there is not None:
                    self.model.add_bool_or(~here, there, apart)
                    self.model.add_bool_or(here, ~there, apart)
                    self.model.add_bool_or(~here, ~there, ~apart)
                elif (only := here if here is not None else there) is not None:
                    self.model.add_implication(only, apart)
        return self._same[key]

    def _hint(self, start: Solution) -> None:
        for places, device in zip(self.places, start.device):
            for each, here in places.items():
                self.model.add_hint(here, each == device)
        for variable, value in zip(self.starts, start.starts):
            self.model.add_hint(variable, value)
