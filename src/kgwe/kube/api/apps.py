"""Slim views of Deployment and Service."""

from __future__ import annotations

import msgspec

from kgwe.kube.api.core import PodTemplate
from kgwe.kube.api.meta import Condition, ObjectMeta  # noqa: TC001 - the same


class DeploymentSpec(msgspec.Struct, frozen=True):
    replicas: int = 1
    template: PodTemplate = PodTemplate()


class DeploymentStatus(msgspec.Struct, frozen=True):
    replicas: int = 0
    readyReplicas: int = 0
    availableReplicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()
