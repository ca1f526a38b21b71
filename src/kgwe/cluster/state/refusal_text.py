"""What kube-scheduler's message about a pod means for the node that was planned for it.

A planned pod may use one node only, so kube-scheduler counts all other nodes as not matching. The message is about the
planned node when these are left out:

    0/64 nodes are available: 1 Insufficient example.com/nic, 63 node(s) didn't match Pod's node affinity/selector.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# A cause that no other node cures, and an ending that kube-scheduler repeats.
_CLAIM_MISSING: Final = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
_ACCOUNT_MISSING: Final = re.compile(r'serviceaccount "([^"]+)" not found')
_QUOTA: Final = re.compile(r"exceeded quota: ([^,\s]+)")
_REPEATED: Final = re.compile(r"\. not found\.?$")
_AVAILABLE: Final = re.compile(r"^\d+/\d+ nodes are available: ")
# The causes of one message: `1 Insufficient cpu`, `63 node(s) didn't match …`.
_NEXT_CAUSE: Final = re.compile(r", (?=\d+ )")
_COUNT: Final = re.compile(r"^\d+ (node\(s\) )?")
# What kube-scheduler says about the nodes that the pod is not planned for.
_OTHER_NODES: Final = ("didn't match Pod's node affinity/selector", "didn't satisfy plugin(s) [NodeAffinity]")
_INSUFFICIENT: Final = re.compile(r"Insufficient ([^\s,]+/[^\s,]*[^\s,.])")
_ADVICE: Final = (
    ("pod affinity rules", "Change podAffinity, or start the pods that it names"),
    ("pod anti-affinity rules", "Change podAntiAffinity, or stop the pods that it names"),
    ("pod topology spread constraints", "Change topologySpreadConstraints"),
    ("volume node affinity conflict", "Use a volume that this node can mount"),
    (
        "unbound immediate PersistentVolumeClaims",
        "Bind its PersistentVolumeClaim; kubectl describe pvc says why it waits",
    ),
    ("didn't have free ports", "Remove hostPort, or stop the pod that uses the port"),
)


def advise_on_creation(error: str) -> str:
    """What to change when the API server refuses pods for this error; empty: the error says it, or it is not known."""
    if found := _QUOTA.search(error):
        return f"Raise ResourceQuota {found[1]}, ask for less, or wait until other workloads end"
    if found := _ACCOUNT_MISSING.search(error):
        return f"Create ServiceAccount {found[1]}, or change serviceAccountName of the pod template"
    return ""


def find_missing_volume(message: str) -> str:
    """The PersistentVolumeClaim that does not exist; empty: the message says no such thing."""
    found = _CLAIM_MISSING.search(message)
    return found[1] if found else ""


def find_unoffered_resource(message: str, is_offered: Callable[[str], bool]) -> str:
    """The extended resource that the planned node lacks and that no node offers; empty: there is none."""
    return next((name for name in _INSUFFICIENT.findall(message) if not is_offered(name)), "")


def needs_repair(message: str) -> bool:
    """Whether a cause in the message stays however many GPUs become free: a volume, an affinity, a port."""
    return bool(find_missing_volume(message)) or any(words in message for words, _ in _ADVICE)


def extract_cause(message: str) -> str:
    """The causes that concern the planned node, and what to change where that is known; no full stop."""
    text = _REPEATED.sub("", message.partition(" preemption: ")[0]).rstrip(".")
    causes = _NEXT_CAUSE.split(_AVAILABLE.sub("", text))
    own = [cause for cause in causes if not any(other in cause for other in _OTHER_NODES)]
    if not own or not _AVAILABLE.match(text):
        return text
    cause = ", ".join(_COUNT.sub("", each) for each in own)
    fix = next((advice for words, advice in _ADVICE if words in cause), "")
    if scarce := _INSUFFICIENT.search(cause):
        cause = cause.replace(scarce[0], f"insufficient {scarce[1]}")
        fix = f"Request less {scarce[1]}, or select nodes that offer enough of it (nodeSelector)"
    return f"{cause}. {fix}" if fix else cause
