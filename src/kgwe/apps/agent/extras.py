"""The parts of the agent that can be left out, hung into it. Each is imported only where it is switched on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgwe.apps.agent.main import Agent


def add(agent: Agent) -> None:
    """All that the settings ask for."""
    settings = agent.settings
    if settings.enable_pod_resources or settings.enable_device_plugin:
        from kgwe.apps.agent import devices  # noqa: PLC0415 - a node without a kubelet needs none of it

        devices.add(agent)
