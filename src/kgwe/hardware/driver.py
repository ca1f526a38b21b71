"""The interface of a GPU driver; NVML implements it.

Every call may take long or hang, as drivers do: implementations run them on a thread of their own and give up at a
deadline with `errors.Transient`. What a card or a driver does not support is "not known" in the answer, never an
error. Errors: `Transient` (the driver is busy or does not answer), `NotFound` (no such card or instance; for a
destroy that is success), `Conflict` (the hardware refuses: in use, no room, overlaps), `Permanent` (it can never do
that, no permission, no driver).

Cutting is not atomic on the hardware: a GPU instance exists before its compute instance does, and a killed process
leaves it like that. `machine()` shows such an instance with an empty uuid; `create_instance` on the same place
completes it, `destroy_instance` removes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.model.gpu.driver_data import Event, Instance, Machine, Reading


class GpuDriver(Protocol):
    """Assumptions: one caller at a time per card for what changes it; everything that reads may run at any time."""

    async def machine(self) -> Machine:
        """What is built in and how it is cut, read afresh."""
        ...

    async def readings(self) -> Sequence[Reading]:
        """One per card, also for a card that is lost."""
        ...

    async def events(self, timeout_s: float) -> Sequence[Event]:
        """What has happened since the last call; waits up to the timeout for the first. None is lost in between."""
        ...

    async def set_mig_mode(self, uuid: str, *, enabled: bool) -> bool:
        """Ask for the mode. False: it comes on only after the card is reset (`MigState.is_pending`)."""
        ...

    async def reset(self, uuid: str) -> None:
        """Reset the card; refused while anything uses it."""
        ...

    async def create_instance(self, uuid: str, profile: str, start: int) -> Instance:
        """Cut an instance at exactly this place. Idempotent: one that is there is returned as it is."""
        ...

    async def destroy_instance(self, uuid: str, instance_id: int) -> None:
        """Remove an instance and its compute instance; refused while a process runs on it."""
        ...

    async def close(self) -> None:
        """Let go of the driver. Nothing can be asked afterwards."""
        ...
