"""The largest work that KGWE places, and why no larger."""

from __future__ import annotations

from typing import Final

#: GPUs of one node: a set of them is a mask in a signed 64-bit number
MAX_GPUS_PER_NODE: Final = 63
#: GPUs of one workload
MOST_GPUS: Final = 100_000
#: pods of one workload: Kubernetes runs no more pods of an Indexed Job at once
MOST_PODS: Final = 100_000
#: replicas of one workload: each is planned by itself, and a change of one is a decision about all
MOST_REPLICAS: Final = 64
