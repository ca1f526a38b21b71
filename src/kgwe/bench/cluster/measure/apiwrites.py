"""How many writes the API server was asked for, from its own counters.

Writes are the price of everything on a small control plane, so each phase of a benchmark says how many it took per
pod: those of the scheduler, of every controller, of the simulated kubelets and of whoever submitted. Two kinds are
left out because they come with time and not with work: Leases, and Nodes (heartbeats).
"""

from __future__ import annotations

import re
from collections import Counter

_WRITES = {"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}
_PERIODIC = {"leases", "nodes"}
# Questions asked by POST; nothing is stored.
_QUESTIONS = {"tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews"}
_METRIC = "apiserver_request_total{"
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def count_writes(metrics: str) -> Counter[str]:
    """Writes since the API server started, by `resource` or `resource/subresource`, refused ones included."""
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
    """Writes between two counts divided by pods, the most frequent first."""
    return {name: round(count / pods, 2) for name, count in (after - before).most_common() if count}
