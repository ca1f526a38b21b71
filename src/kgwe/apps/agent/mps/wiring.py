"""Builds the MPS feature: the daemons, and the orders for them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe.apps.agent.hooks import Feature, Task
from kgwe.apps.agent.mps.orders import MpsOrders
from kgwe.hardware.linux import compute_mode
from kgwe.hardware.mps.daemons import MpsDaemons
from kgwe.hardware.nvml.driver import SMI_VARIABLE

if TYPE_CHECKING:
    from kgwe.apps.agent.services import AgentServices

# Seconds between two checks of the MPS daemons.
_CHECK_S: Final = 5.0


def build_mps(services: AgentServices) -> Feature:
    """Run MPS daemons as ordered."""
    settings = services.settings
    # Also if it is disabled now: an earlier setting may have enabled it.
    exclusive = compute_mode.compute_mode_setter(os.environ.get(SMI_VARIABLE) or "nvidia-smi")
    daemons = MpsDaemons(Path(settings.mps_directory), set_exclusive=exclusive)
    orders = MpsOrders(daemons, services.state, is_exclusive=settings.mps_exclusive)
    return Feature(
        name="mps",
        tasks=(Task("mps", lambda: _check_daemons(daemons)),),
        mps=orders,
        mps_servers=daemons.map_servers,
        render=lambda: orders.render(services.node),
    )


async def _check_daemons(daemons: MpsDaemons) -> None:
    await daemons.open()
    try:
        while True:
            await daemons.check_daemons()
            await asyncio.sleep(_CHECK_S)
    finally:
        await daemons.close()
