"""The configuration files of the components: audit policy, admission, scheduler configuration, kwok's stages."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from kgwe import yaml_text
from kgwe.errors import Permanent
from kgwe.local.cluster import certificates

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.local.cluster.certificates import Pair

# Far above the capacity of two cores: the API server limits the rate, not the client.
CLIENT_QPS = 5000
CLIENT_BURST = 10000

MANAGED_NODES = "kwok.x-k8s.io/node=fake"
_SCHEDULER_API = "kubescheduler.config.k8s.io/v1"


def admission_configuration(webhooks_kubeconfig: Path) -> str:
    """Return the admission configuration of the API server: it shows webhooks a client certificate."""
    webhook = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": str(webhooks_kubeconfig),
    }
    configuration = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "MutatingAdmissionWebhook", "configuration": webhook}],
    }
    return yaml.safe_dump(configuration, sort_keys=False)


def webhooks_kubeconfig(pair: Pair) -> str:
    """Return the kubeconfig with the client certificate that the API server shows all webhooks."""
    user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": user}]})


def audit_policy() -> str:
    """Return the audit policy: it logs bindings with their nodes, and other writes.

    Reads are most of the requests and not of interest. Leases, events and access reviews are routine traffic, and
    kwok's status patches belong to the simulation.
    """
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "omitManagedFields": True,
        "rules": [
            {
                "level": "Request",
                "verbs": ["create"],
                "resources": [{"group": "", "resources": ["pods/binding", "bindings"]}],
            },
            {"level": "None", "verbs": ["get", "list", "watch"]},
            {"level": "None", "nonResourceURLs": ["*"]},
            {"level": "None", "users": [certificates.KWOK.user]},
            {
                "level": "None",
                "resources": [
                    {"group": "", "resources": ["events"]},
                    {"group": "events.k8s.io"},
                    {"group": "coordination.k8s.io"},
                    {"group": "authentication.k8s.io"},
                    {"group": "authorization.k8s.io"},
                ],
            },
            {"level": "Metadata"},
        ],
    }
    return yaml.safe_dump(policy, sort_keys=False)


def scheduler_configuration(text: str | None, *, kubeconfig: Path) -> str:
    """Return the KubeSchedulerConfiguration of the caller, completed with the connection to the cluster."""
    document: Any = {} if text is None else _parse_configuration(text)
    if document.get("kind", "KubeSchedulerConfiguration") != "KubeSchedulerConfiguration":
        raise Permanent(f"the scheduler configuration has kind {document['kind']}; expected KubeSchedulerConfiguration")
    document = {"apiVersion": _SCHEDULER_API, "kind": "KubeSchedulerConfiguration", **document}
    document["clientConnection"] = {
        "qps": CLIENT_QPS,
        "burst": CLIENT_BURST,
        **document.get("clientConnection", {}),
        "kubeconfig": str(kubeconfig),
    }
    # There is one scheduler; leader election would cost a write every two seconds and delay each start.
    document["leaderElection"] = {"leaderElect": False, **document.get("leaderElection", {})}
    document.setdefault("enableProfiling", False)
    return yaml.safe_dump(document, sort_keys=False)


def kwok_configuration() -> str:
    """Return kwok's options and all stage files, as one stream of documents."""
    options = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "manageAllNodes": False,
            "manageNodesWithAnnotationSelector": MANAGED_NODES,
            # One address range that is large enough for any local fleet.
            "cidr": "10.64.0.1/10",
            "enableDebuggingHandlers": False,
            # A low number: kwok patches a pod twice if it handles the pod again before its own patch arrives.
            "podPlayStageParallelism": 4,
            "nodePlayStageParallelism": 16,
            "nodeLeaseDurationSeconds": 0,
        },
    }
    return yaml.safe_dump(options, sort_keys=False) + "".join(f"---\n{text}" for text in stage_files().values())


def stage_files() -> dict[str, str]:
    """Return the kwok stages of simulated nodes and pods, by file name."""
    directory = resources.files("kgwe.local") / "stages"
    return {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in sorted(directory.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".yaml")
    }


def _parse_configuration(text: str) -> dict[str, Any]:
    try:
        document = yaml_text.parse_yaml(text)
    except yaml.YAMLError as exc:
        raise Permanent(f"the scheduler configuration is not valid YAML: {exc}") from exc
    if not isinstance(document, dict):
        raise Permanent("the scheduler configuration is empty or not a mapping")
    return document
