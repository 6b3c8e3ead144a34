"""What an ``MPIJob`` of kubeflow.org/v2beta1 may have, for jsonschema, after the operator's API.

Strict where the operator's own schema is: kinds and names that it does not know are refused. Of the pods'
templates it says only that they are there; what is in them is checked by Kubernetes' schemas of pods.
"""

from __future__ import annotations

from typing import Any


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


_COUNT = {"type": "integer", "minimum": 0}
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
_NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
_REPLICAS = _object(
    ["replicas", "template"],
    replicas={"type": "integer", "minimum": 1},
    restartPolicy={"enum": ["Never", "OnFailure"]},
    template=_object(["spec"], metadata={"type": "object"}, spec={"type": "object"}),
)

MPIJOB = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "kubeflow.org/v2beta1"},
    kind={"const": "MPIJob"},
    metadata=_object(["name"], name=_NAME, namespace=_NAME, labels=_LABELS, annotations=_LABELS),
    spec=_object(
        ["mpiReplicaSpecs"],
        slotsPerWorker={"type": "integer", "minimum": 1},
        runLauncherAsWorker={"type": "boolean"},
        sshAuthMountPath={"type": "string"},
        launcherCreationPolicy={"enum": ["AtStartup", "WaitForWorkersReady"]},
        mpiImplementation={"enum": ["OpenMPI", "Intel", "MPICH"]},
        runPolicy=_object(
            [],
            cleanPodPolicy={"enum": ["None", "Running", "All"]},
            ttlSecondsAfterFinished=_COUNT,
            activeDeadlineSeconds=_COUNT,
            backoffLimit=_COUNT,
            suspend={"type": "boolean"},
        ),
        mpiReplicaSpecs=_object(["Launcher"], Launcher=_REPLICAS, Worker=_REPLICAS),
    ),
)
