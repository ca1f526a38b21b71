"""Types of the conditions in a workload's status."""

from __future__ import annotations

SCHEDULED, RUNNING, SUCCEEDED = "Scheduled", "Running", "Succeeded"
#: as on a Job: `kubectl wait --for=condition=Complete` ends when the work does
COMPLETE, FAILED = "Complete", "Failed"
#: it runs, or should, and is not whole: a node or GPU failed under it
DEGRADED = "Degraded"
#: `spec.suspend` is set: it holds no GPUs and does not wait
SUSPENDED = "Suspended"
#: `spec.priority` is above what the workload may have, and counts as less
PRIORITY_LIMITED = "PriorityLimited"
#: of inference: replicas of an earlier spec still run
UPDATING = "Updating"
#: its GPUs are idle, and it is announced when it will be suspended
IDLE = "Idle"

Trouble = tuple[str, str]
"""(reason, message): why a workload that has its place is not whole."""
