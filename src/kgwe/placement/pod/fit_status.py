"""Whether a pod fits a node, as one small integer: the first rule that fails."""

from __future__ import annotations

import enum
from typing import Final


class FitStatus(enum.IntEnum):
    """Whether a pod fits a node, and if not, the first rule that fails; static rules come first."""

    FITS = 0
    NOT_READY = 1
    NOT_ALLOWED = 2
    """Selector, affinity or taints exclude the node, or the request excludes it by name."""
    WRONG_MODEL = 3
    WRONG_ARCHITECTURE = 4
    GPU_MEMORY = 5
    """Its GPUs have too little memory, or their memory is unknown."""
    TOO_FEW_GPUS = 6
    """Even when empty, it has too few GPUs, shares of that size, or slices of the profile."""
    GPUS_TAKEN = 7
    WIRING = 8
    """Enough GPUs, but no set of them meets the preference and the bandwidth."""
    SHARE_TAKEN = 9
    """No GPU has that much left."""
    NO_SLICE = 10
    CPU = 11
    MEMORY = 12
    PODS = 13

    @property
    def reason(self) -> str:
        """Its name in conditions and events."""
        return _REASONS[self]


_REASONS: Final = {
    FitStatus.FITS: "Fits",
    FitStatus.NOT_READY: "NodeNotReady",
    FitStatus.NOT_ALLOWED: "NodeNotAllowed",
    FitStatus.WRONG_MODEL: "WrongGPUModel",
    FitStatus.WRONG_ARCHITECTURE: "WrongGPUArchitecture",
    FitStatus.GPU_MEMORY: "InsufficientGPUMemory",
    FitStatus.TOO_FEW_GPUS: "TooFewGPUs",
    FitStatus.GPUS_TAKEN: "GPUsTaken",
    FitStatus.WIRING: "WiringNotMet",
    FitStatus.SHARE_TAKEN: "GPUShareTaken",
    FitStatus.NO_SLICE: "MIGSlicesTaken",
    FitStatus.CPU: "InsufficientCPU",
    FitStatus.MEMORY: "InsufficientMemory",
    FitStatus.PODS: "TooManyPods",
}

#: statuses that mean too few free GPUs
SHORT_OF_GPUS: Final = frozenset({FitStatus.GPUS_TAKEN, FitStatus.SHARE_TAKEN, FitStatus.NO_SLICE, FitStatus.WIRING})
