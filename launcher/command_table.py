"""What ``mpilaunch`` does besides running a job: names of commands, their modules, what each does. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Command(NamedTuple):
    """A word that may stand first after ``mpilaunch``.

    Attributes:
        module: With ``run(arguments, out) -> exit code``, which raises ``KVStoreError``.
        text: What it does, for the help.
    """

    module: str
    text: str


COMMANDS: Mapping[str, Command] = {
    "compare": Command("mpilaunch.seeing.compare", "two runs beside each other, by reports or traces"),
    "doctor": Command("mpilaunch.doctor", "check the installation, here or on the hosts of a job"),
    "inspect": Command("mpilaunch.seeing.inspect_job", "who holds up a running job: stacks and last lines"),
    "measure-epochs": Command(
        "mpilaunch.planning.measure_epochs",
        "run a script with several batches, for the epochs that each needs to reach a target",
    ),
    "measure-links": Command(
        "mpilaunch.planning.measure_links", "latency and bandwidth between the hosts and devices of a job"
    ),
    "plan": Command(
        "mpilaunch.planning.plan_command",
        "how many workers, devices and servers to give to a training, of a script, a net or a symbol",
    ),
    "render": Command(
        "mpilaunch.rendering.render", "write a job as a script for sbatch, or as an MPIJob for Kubernetes"
    ),
    "top": Command("mpilaunch.seeing.top", "what each process of a running job does, again every second"),
}
