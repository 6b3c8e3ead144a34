"""A job as an ``MPIJob`` (kubeflow.org/v2beta1) of the MPI operator of Kubernetes. Pure.

The operator makes a pod for mpilaunch, worker pods with an ``sshd``, the keys between them (its own Secret)
and ``/etc/mpi/hostfile``; ranks and servers are placed on the worker pods by mpilaunch. The job's secret is
a Secret that only the launcher's pod sees, as a file; mpilaunch brings it to the others by ssh.
"""

from __future__ import annotations

import math
import re
import shlex
from typing import TYPE_CHECKING, Any

from kvstore_mpi.errors import UsageError

if TYPE_CHECKING:
    from mpilaunch.rendering.rendered_script import Job

MPIJOB_LIMITS = {
    "image": "with Python, kvstore_mpi, MPICH, your script and an sshd",
    "cpus": "of a worker pod, such as 4",
    "memory": "of a worker pod, such as 8Gi",
}
"""What has to be said, and what it is."""

LAUNCHER_CPUS, LAUNCHER_MEMORY = "500m", "512Mi"
END_SECONDS = 30
"""From the end of the ranks' grace to the end of the pod."""

SECRET_FOLDER, SECRET_KEY = "/etc/kvstore_mpi", "secret"
"""Where the launcher's pod has the job's secret, and its name there and in the Secret."""

# Host keys are made with the pods: the first one is remembered, and another one later is refused.
_SSH = ("ssh", "-o", "StrictHostKeyChecking=accept-new", "-o", "UserKnownHostsFile=/tmp/known_hosts")
# As Kubernetes has quantities, without its exponents; what is 0 would not be limited, or never start.
_CPUS = re.compile(r"(?=.*[1-9])(\d+(\.\d+)?|\d+m)")
_MEMORY = re.compile(r"(?=.*[1-9])\d+(\.\d+)?([kMGTPE]|[KMGTPE]i)?")
_SECRET_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
# HOST:PORT/PATH:TAG@DIGEST, of which all but one part of the path may be left out.
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"([a-zA-Z0-9]([-.a-zA-Z0-9]*[a-zA-Z0-9])?|\[[0-9a-fA-F:]+\])(:\d+)?/"
_TAG, _DIGEST = r":\w[\w.-]{0,127}", r"@[A-Za-z][\w.+-]*:[0-9a-fA-F]{32,}"
_IMAGE = re.compile(rf"({_HOST})?{_PART}(/{_PART})*({_TAG})?({_DIGEST})?", re.ASCII)


def made_secret(job: Job, value: str) -> dict[str, Any]:
    """Return a Secret for a job that is not given one."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(job)},
        "type": "Opaque",
        "stringData": {SECRET_KEY: value},
    }


def secret_name(job: Job) -> str:
    """Return the name of the Secret that is made for a job; the operator's own ends otherwise."""
    return f"{_name(job.name)}-kvstore-mpi"


def mpijob(job: Job, image: str, cpus: str, memory: str, secret: str) -> dict[str, Any]:
    """Return the MPIJob.

    Args:
        job: What it runs.
        image: Of all pods.
        cpus: Of a worker pod.
        memory: Of a worker pod.
        secret: Name of the Secret.

    Raises:
        UsageError: A size or a name is of another form.
    """
    if not _IMAGE.fullmatch(image):
        raise UsageError(f"--image {image!r} is no name of an image, such as registry/train:1")
    if not _CPUS.fullmatch(cpus):
        raise UsageError(f"--cpus {cpus!r} is no number of processors above 0, such as 4 or 500m")
    if not _MEMORY.fullmatch(memory):
        raise UsageError(
            f"--memory {memory!r} is no size above 0 that Kubernetes knows, such as 8Gi or 800M"
        )
    if not _SECRET_NAME.fullmatch(secret):
        raise UsageError(f"--secret-name {secret!r} is no name of a Secret, such as train-secret")
    reached = (
        "--backend",
        "ssh",
        "--ssh",
        shlex.join(_SSH),
        "--secret-file",
        f"{SECRET_FOLDER}/{SECRET_KEY}",
    )
    # Kubernetes puts variables where $(NAME) stands, and takes $$ for $.
    command = [word.replace("$", "$$") for word in (*job.launcher, *reached, *job.options, *job.command)]
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": _name(job.name)},
        "spec": {
            "mpiImplementation": "MPICH",
            "slotsPerWorker": job.ranks_per_node,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, _launcher(job, image, command, secret)),
                "Worker": _replicas(job.nodes, _worker(job, image, cpus, memory)),
            },
        },
    }


def _name(text: str) -> str:
    """Return a name as Kubernetes wants it."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    if not name:
        raise UsageError(f"the job needs a name with letters, not {text!r}: give one with --name")
    return name if name[0].isalpha() else f"job-{name}"  # the operator makes a Service of this name


def _replicas(count: int, pod: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}


def _launcher(job: Job, image: str, command: list[str], secret: str) -> dict[str, Any]:
    resources = {"cpu": LAUNCHER_CPUS, "memory": LAUNCHER_MEMORY}
    container = {
        "name": "mpilaunch",
        "image": image,
        "command": command,
        "resources": {"requests": resources, "limits": resources},
        "volumeMounts": [{"name": "secret", "mountPath": SECRET_FOLDER, "readOnly": True}],
    }
    return {
        "terminationGracePeriodSeconds": _end_seconds(job),
        "containers": [container],
        "volumes": [{"name": "secret", "secret": {"secretName": secret, "defaultMode": 0o400}}],
    }


def _worker(job: Job, image: str, cpus: str, memory: str) -> dict[str, Any]:
    resources = {"cpu": cpus, "memory": memory}
    container = {
        "name": "worker",
        "image": image,
        "command": ["/usr/sbin/sshd", "-De"],
        "ports": [{"name": "ssh", "containerPort": 22}],
        "readinessProbe": {"tcpSocket": {"port": 22}, "periodSeconds": 2, "failureThreshold": 30},
        "resources": {"requests": resources, "limits": resources},
        # Containers have 64 MB, too little for the exchange buffers and MPI.
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108  that is its place
    }
    return {
        "terminationGracePeriodSeconds": _end_seconds(job),
        "containers": [container],
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }


def _end_seconds(job: Job) -> int:
    return math.ceil(job.grace) + END_SECONDS
