"""The interface of a GPU driver; NVML implements it.

Each call may take long or hang. Implementations run calls on their own thread and raise `errors.Transient` at a
deadline. A feature that a GPU or driver does not support is an unknown value, not an error. Errors: `Transient` (the
driver is busy or does not respond), `NotFound` (no such GPU or instance; for a destroy that is success), `Conflict`
(the hardware refuses: in use, no room, overlap), `Permanent` (unsupported, no permission, no driver).

Partitioning is not atomic: a GPU instance exists before its compute instance, and a killed process leaves it so.
`machine()` shows such an instance with an empty uuid; `create_instance` at the same placement completes it,
`destroy_instance` removes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.model.gpu.driver_data import Event, Instance, Machine, Reading


class GpuDriver(Protocol):
    """A GPU driver. Changes of one GPU need one caller at a time; reads may run at any time."""

    async def machine(self) -> Machine:
        """Read the GPUs and their MIG layouts."""
        ...

    async def readings(self) -> Sequence[Reading]:
        """Return one reading per GPU, also for a lost GPU."""
        ...

    async def events(self, timeout_s: float) -> Sequence[Event]:
        """Return the events since the last call; wait up to the timeout for the first. No event is lost in between."""
        ...

    async def set_mig_mode(self, uuid: str, *, enabled: bool) -> bool:
        """Request the MIG mode. Return False if it takes effect only after a reset (`MigState.is_pending`)."""
        ...

    async def reset(self, uuid: str) -> None:
        """Reset the GPU; refused while it is in use."""
        ...

    async def create_instance(self, uuid: str, profile: str, start: int) -> Instance:
        """Create an instance at exactly this placement. Idempotent: an existing one is returned."""
        ...

    async def destroy_instance(self, uuid: str, instance_id: int) -> None:
        """Remove an instance and its compute instance; refused while a process runs on it."""
        ...

    async def close(self) -> None:
        """Close the driver. No call is possible afterwards."""
        ...
