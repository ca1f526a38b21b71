"""Names that every part of KGWE must agree on, whichever process uses them."""

from __future__ import annotations

from typing import Final

#: container image of workloads without a podTemplate, unless the scheduler's settings name another
DEFAULT_IMAGE: Final = "ghcr.io/kgwe/gpu-workload:latest"
#: the Lease that the acting scheduler holds, unless its settings name another
SCHEDULER_LEASE: Final = "kgwe-scheduler"
SCHEDULER_LEASE_NAMESPACE: Final = "kgwe-system"
#: the scheduler of pods that name none
DEFAULT_SCHEDULER: Final = "default-scheduler"
#: the namespace whose UID tells clusters apart
CLUSTER_NAMESPACE: Final = "kube-system"
#: in the extender's refusal of a gang member without a seat; kube-scheduler repeats it in the pod's condition
GANG_WAITING: Final = "gang waiting"
