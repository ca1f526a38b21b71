"""Builds the MIG feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.apps.agent.hooks import Feature, Task
from kgwe.apps.agent.mig.reconfigurer import MigReconfigurer

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.agent.mig.reconfigurer import DeviceUsers
    from kgwe.apps.agent.services import AgentServices

# Seconds within which a kubelet lists an allocation.
_GRACE_S: Final = 1.0


def build_mig(services: AgentServices, users: DeviceUsers | None, on_reset: Callable[[str], None]) -> Feature:
    """Apply MIG layouts. `users` lists the devices in use; `on_reset` gets the UUID of a GPU that was reset."""

    async def report() -> None:
        services.report()

    reconfigurer = MigReconfigurer(
        services.supervisor,
        users=users,
        grace_s=_GRACE_S,
        on_withhold=report,
        on_change=services.request_discovery,
        on_reset=on_reset,
    )
    return Feature(
        name="mig",
        tasks=(Task("mig", reconfigurer.run),),
        mig=reconfigurer,
        amend_status=reconfigurer.amend_status,
        on_gpunode=reconfigurer.on_gpunode,
        withheld_devices=lambda: reconfigurer.withheld,
    )
