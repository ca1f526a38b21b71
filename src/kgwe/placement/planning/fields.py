"""Names of the fields that a request was written in: a GPUWorkload and a pod have different ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Fields:
    """What to change in the object that asks; the defaults are the fields of a GPUWorkload."""

    model: str = "gpuModel"
    architecture: str = "architecture"
    min_memory: str = "minMemoryGB"
    preference: str = "topology.preference"
    min_bandwidth: str = "topology.minBandwidthGBps"
    share: str = "share"
    profile: str = "mig.profile"
    spot_policy: str = "spotPolicy"
    hardware: str = "hardware"
    template: str = "the pod template"
    is_pod: bool = False
    """Whether it is a pod: it cannot be divided, and its GPUs are in the resources of its containers."""

    def name_connections(self, connection_fields: tuple[str, ...]) -> list[str]:
        """The fields of `topology` (`Request.connection_fields`) by the names they have here."""
        names = {"preference": self.preference, "minBandwidthGBps": self.min_bandwidth}
        return [names[field] for field in connection_fields]


#: the fields of a GPUWorkload
WORKLOAD_FIELDS: Final = Fields()
