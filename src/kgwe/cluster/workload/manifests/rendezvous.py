"""How the pods of a gang find each other: names in DNS, and the environment that launchers of each framework look for.

Pod i of the gang is `<job>-<i>.<subdomain>`. The headless Service resolves rank 0, before the pod is ready: the others
register there. It resolves all pods for launchers that connect to each of them by name (TensorFlow, MPI), and for
workloads that ask for it: every pod that a Service selects costs about two writes to the API server. What the user's
template sets itself stays.
"""

from __future__ import annotations

import json
from typing import Any, Final

from kgwe import errors
from kgwe.cluster.workload import placement_annotations

# Default of torchrun and torch.distributed.
PORT: Final = 29500

# Linux: 32 pages for one variable, with its name and what the rank adds.
_MOST_VARIABLE: Final = 32 * 4096 - 64

Env = list[dict[str, Any]]


def service_name(job: str) -> str:
    """As the Job, but a Service's name has to begin with a letter."""
    return job if job[0].isalpha() else f"w{job}"


def service_spec(selector: dict[str, str], *, names_all: bool) -> dict[str, Any]:
    """A Service that only names pods, and those that are not ready too: they become ready by finding each other."""
    if not names_all:
        selector = selector | {placement_annotations.INDEX_ANNOTATION: "0"}  # a label of the same name
    return {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector,
        "ports": [{"name": "rendezvous", "port": PORT}],
    }


def add_environment(spec: dict[str, Any], job: str, *, pods: int, gpus: int, ranks: int, framework: str) -> None:
    """Tell every container of the template where the others are; `ranks` over all pods, 0: one for each GPU."""
    subdomain = spec.setdefault("subdomain", service_name(job))
    hosts = [f"{job}-{index}.{subdomain}" for index in range(pods)]
    per_pod = ranks // pods if ranks else gpus or 1
    env: Env = [
        {"name": "MASTER_ADDR", "value": hosts[0]},
        {"name": "MASTER_PORT", "value": str(PORT)},
        {"name": "WORLD_SIZE", "value": str(pods * per_pod)},
        _index_variable("RANK"),
        *_FRAMEWORKS.get(framework, _torch_variables)(hosts, per_pod),
    ]
    for container in spec["containers"]:
        mine = container.get("env", [])
        known = {entry.get("name") for entry in mine}
        # Before the user's variables, which may refer to these.
        container["env"] = [*(entry for entry in env if entry["name"] not in known), *mine]


def _index_variable(name: str) -> dict[str, Any]:
    """The pod's own number."""
    path = f"metadata.annotations['{placement_annotations.INDEX_ANNOTATION}']"
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _torch_variables(hosts: list[str], per_pod: int) -> Env:
    """Every option of torchrun can be given as PET_<OPTION>."""
    return [
        {"name": "PET_NNODES", "value": str(len(hosts))},
        {"name": "PET_NPROC_PER_NODE", "value": str(per_pod)},
        _index_variable("PET_NODE_RANK"),
        {"name": "PET_MASTER_ADDR", "value": hosts[0]},
        {"name": "PET_MASTER_PORT", "value": str(PORT)},
    ]


def _tensorflow_variables(hosts: list[str], per_pod: int) -> Env:  # noqa: ARG001 - one worker per pod, whatever it has
    cluster = json.dumps({"worker": [f"{host}:{PORT}" for host in hosts]})
    # Kubernetes fills in what an earlier variable holds.
    config = f'{{"cluster": {cluster}, "task": {{"type": "worker", "index": $(KGWE_RANK)}}}}'
    if len(config) > _MOST_VARIABLE:
        raise errors.Permanent(
            f"TF_CONFIG names every worker, which takes {len(config)} bytes for {len(hosts)} pods, and Linux starts no"
            f" program with a variable longer than {_MOST_VARIABLE}; give each pod more GPUs (gpusPerPod), or leave"
            " framework out"
        )
    return [_index_variable("KGWE_RANK"), {"name": "TF_CONFIG", "value": config}]


def _jax_variables(hosts: list[str], per_pod: int) -> Env:  # noqa: ARG001 - one process per pod, whatever it has
    return [
        {"name": "JAX_COORDINATOR_ADDRESS", "value": f"{hosts[0]}:{PORT}"},
        {"name": "JAX_NUM_PROCESSES", "value": str(len(hosts))},
        _index_variable("JAX_PROCESS_ID"),
    ]


_FRAMEWORKS: Final = {"TensorFlow": _tensorflow_variables, "JAX": _jax_variables}
