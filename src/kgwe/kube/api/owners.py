"""Slim views of controllers of pods, whatever their kind, and of what scales them."""

from __future__ import annotations

import msgspec

from kgwe.kube.api.core import PodTemplate  # noqa: TC001 - msgspec resolves the annotation at run time
from kgwe.kube.api.meta import Condition, ObjectMeta  # noqa: TC001 - the same
from kgwe.kube.api.policy import LabelSelector  # noqa: TC001 - the same


class OwnerSpec(msgspec.Struct, frozen=True):
    suspend: bool | None = None
    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplate | None = None


class OwnerStatus(msgspec.Struct, frozen=True):
    #: of a GPUWorkload: its run, and the GPUs it asks for
    jobName: str = ""
    requestedGPUs: str = ""
    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class OwnerObject(msgspec.Struct, frozen=True):
    """What is read of an owner, whatever its kind."""

    metadata: ObjectMeta
    spec: OwnerSpec = OwnerSpec()
    status: OwnerStatus = OwnerStatus()


class ScaleTarget(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    apiVersion: str = ""


class AutoscalerSpec(msgspec.Struct, frozen=True):
    scaleTargetRef: ScaleTarget = ScaleTarget()


class HorizontalPodAutoscaler(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: AutoscalerSpec = AutoscalerSpec()
