"""Keys and values of labels and annotations that KGWE writes on runs and on their pods."""

from __future__ import annotations

from typing import Final

#: of Kueue: the LocalQueue that admits a Job
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
#: on a workload, with the value `all`: every pod of a gang has a name in DNS, not only rank 0
NAMES_ANNOTATION: Final = "kgwe.nvidia.io/rendezvous"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
CONTROLLER_NAME: Final = "kgwe-scheduler"
UID_LABEL: Final = "kgwe.nvidia.io/workload-uid"
NAME_LABEL: Final = "kgwe.nvidia.io/workload"
TYPE_LABEL: Final = "kgwe.nvidia.io/workload-type"
GENERATION_ANNOTATION: Final = "kgwe.nvidia.io/generation"
#: a hash of the spec of the workload, without `suspend`
SPEC_HASH_ANNOTATION: Final = "kgwe.nvidia.io/spec-hash"
MODEL_ANNOTATION: Final = "kgwe.nvidia.io/model"
DETAILS_ANNOTATION: Final = "kgwe.nvidia.io/plan-details"
#: what each pod takes of its node, as it was planned
AMOUNTS_ANNOTATION: Final = "kgwe.nvidia.io/plan-amounts"
#: on a run: the smaller request that it was planned with, if that is not the one of the spec
DECISION_ANNOTATION: Final = "kgwe.nvidia.io/request-decision"
#: on Deployments and their pods: tells the pods of one Deployment from those of its predecessor of the same name
RUN_LABEL: Final = "kgwe.nvidia.io/run"
SELECTOR: Final = f"{MANAGED_BY}={CONTROLLER_NAME}"
#: on a run: why its plan is not the one it was created with
NOTE_ANNOTATION: Final = "kgwe.nvidia.io/recovery-note"
#: on a run: how often all its pods were started again; on its pods: the round in which they got their seats
ROUND_ANNOTATION: Final = "kgwe.nvidia.io/round"
