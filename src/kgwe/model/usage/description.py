"""A workload as it is submitted: everything that a forecast may use, before any pod of it exists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kgwe.model.usage.fingerprint import Fingerprint, Shape, make_fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

_MILLI = 1000


@dataclass(frozen=True, slots=True)
class WorkloadDescription:
    """What is known of a workload at its submission. Its user wrote most of it: claims, not facts."""

    namespace: str
    name: str
    owner_kind: str = ""
    owner_name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    workload_type: str = ""
    framework: str = ""
    pods: int = 1
    milli_gpus: int = 0
    """Per pod."""
    mig_profile: str = ""
    gpu_model: str = ""
    user: str = ""
    declared_s: float | None = None
    """Run time that the user declared."""
    submitted_s: float = 0.0
    """Unix time."""
    model_billions: float | None = None
    """Parameters of the model in billions, where the user declares it."""
    uid: str = ""
    """Of the object that runs the pods; empty before it exists."""

    @property
    def gpus(self) -> float:
        """GPUs of all pods."""
        return self.pods * self.milli_gpus / _MILLI

    def make_fingerprint(self) -> Fingerprint:
        """Return the fingerprint, equal to that of the pods the workload will have."""
        return make_fingerprint(
            namespace=self.namespace,
            owner_kind=self.owner_kind,
            owner_name=self.owner_name or self.name,
            image=self.image,
            command=self.command,
            labels=self.labels,
            shape=Shape(milli_gpus=self.milli_gpus, mig_profile=self.mig_profile),
        )
