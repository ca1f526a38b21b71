"""The KubeSchedulerConfiguration that makes kube-scheduler ask KGWE about GPU pods."""

from __future__ import annotations

from typing import Any

import yaml

from kgwe.kube.api.mig import PROFILES
from kgwe.model import amounts, mig

_HEADER = """\
# kube-scheduler asks KGWE about pods that ask for the resources below, and about no others: if KGWE is down, everything
# but GPU pods is scheduled as before.
#
# nodeCacheCapable: only node names are sent, KGWE knows the nodes.
# ignorable: false, so GPU pods wait while no replica of KGWE answers. With true they would be placed without it: gangs
#   in halves, on GPUs that are reserved for others.
# weight: KGWE's scores against those of kube-scheduler's own plugins; most answers name one node and need none.
"""


def managed_resources() -> list[str]:
    """Every resource name a GPU, a share of one or a slice can have."""
    return [amounts.GPU, amounts.SHARED, *sorted({mig.resource_of(profile) for profile in PROFILES})]


def document(
    url: str, *, binds: bool = False, ca_file: str = "", ignorable: bool = False, timeout: str = "10s"
) -> dict[str, Any]:
    """The configuration; `url` is where the extender listens."""
    extender: dict[str, Any] = {
        "urlPrefix": url.rstrip("/"),
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 1,
        "nodeCacheCapable": True,
        "ignorable": ignorable,
        "httpTimeout": timeout,
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in managed_resources()],
    }
    if binds:
        extender["bindVerb"] = "bind"
    if url.startswith("https"):
        extender |= {"enableHTTPS": True, "tlsConfig": {"caFile": ca_file} if ca_file else {"insecure": False}}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "extenders": [extender],
    }


def text(url: str, **options: Any) -> str:
    """The same as YAML, with the reasons as comments."""
    return _HEADER + yaml.safe_dump(document(url, **options), sort_keys=False)
