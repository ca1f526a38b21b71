"""The number of writes to the API server, from its own counters.

Writes are the main cost on a small control plane, so each phase reports its writes per pod. They include those of the
scheduler, of controllers, of the simulated kubelets and of the submitter. Leases and Nodes (heartbeats) are left out,
because they depend on time and not on pods.
"""

from __future__ import annotations

import re
from collections import Counter

_WRITES = {"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}
_PERIODIC = {"leases", "nodes"}
# POST requests that store nothing.
_QUESTIONS = {"tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews"}
_METRIC = "apiserver_request_total{"
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def count_writes(metrics: str) -> Counter[str]:
    """Return the writes since the API server started, by `resource` or `resource/subresource`, including refused
    ones.
    """
    writes: Counter[str] = Counter()
    for line in metrics.splitlines():
        if not line.startswith(_METRIC):
            continue
        text, _, value = line.rpartition(" ")
        labels = dict(_LABEL.findall(text))
        resource = labels.get("resource", "")
        if labels.get("verb") not in _WRITES or not resource or resource in _PERIODIC | _QUESTIONS:
            continue
        sub = labels.get("subresource", "")
        writes[f"{resource}/{sub}" if sub else resource] += int(float(value))
    return writes


def per_pod(before: Counter[str], after: Counter[str], pods: int) -> dict[str, float]:
    """Return the writes between two counts per pod, most frequent first."""
    return {name: round(count / pods, 2) for name, count in (after - before).most_common() if count}
