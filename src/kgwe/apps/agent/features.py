"""Builds the agent's optional features. A feature is imported only if it is enabled.

The order matters twice. The status is amended by health, then MIG, then holdings, then the device plugins, which
advertise healthy GPUs. And a feature uses the hooks of those before it: MIG reports resets to health, the device
plugins advertise no device that MIG withholds, and the exporter shows the metrics of all others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import structlog

from kgwe.apps.agent.hooks import Feature, Task, drop_none, find_first

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.agent.node_pods import KubeletAccess
    from kgwe.apps.agent.services import AgentServices

log = structlog.get_logger(__name__)


class BuiltFeatures(NamedTuple):
    """The enabled features in their order, and why others could not be built."""

    features: tuple[Feature, ...]
    problems: Mapping[str, str]


def build_features(services: AgentServices) -> BuiltFeatures:
    """Build each enabled feature. One that fails is left out, with the reason in `problems`."""
    return _FeatureBuilder(services).build_all()


class _FeatureBuilder:
    def __init__(self, services: AgentServices) -> None:
        self._services = services
        self._settings = services.settings
        self._kubelet: KubeletAccess | None = None
        self._built: list[Feature] = []

    def build_all(self) -> BuiltFeatures:
        steps: dict[str, Callable[[], Feature | None]] = {
            "kubelet": self._open_kubelet,
            "health": self._build_health,
            "mig": self._build_mig,
            "mps": self._build_mps,
            "holdings": self._build_holdings,
            "device plugin": self._build_device_plugin,
            "dra": self._build_dra,
            "interruption": self._build_interruption,
            "checkpoint": self._build_checkpoint,
            "exporter": self._build_exporter,
        }
        problems: dict[str, str] = {}
        for name, step in steps.items():
            try:
                feature = step()
            except Exception as exc:  # a failing feature must not stop the others
                log.exception("feature_failed", feature=name)
                problems[name] = f"{type(exc).__name__}: {exc}"
            else:
                self._built += [feature] if feature is not None else []
        self._watch_pods()
        return BuiltFeatures(tuple(self._built), problems)

    def _open_kubelet(self) -> Feature | None:
        """Open the kubelet sources that several features share; None without an API server."""
        settings, client = self._settings, self._services.client
        if client is None or not (settings.enable_pod_resources or settings.enable_device_plugin):
            return None
        from kgwe.apps.agent.devices import wiring  # noqa: PLC0415 - a node without a kubelet needs none of it

        self._kubelet = wiring.open_kubelet(settings, client)
        return Feature(name="kubelet", tasks=(Task("pods", self._kubelet.pods.run),))

    def _watch_pods(self) -> None:
        for on_pod in drop_none(each.on_pod for each in self._built):
            if self._kubelet is not None:
                self._kubelet.pods.informer.on_change(on_pod)

    def _build_health(self) -> Feature | None:
        if not self._settings.enable_health:
            return None
        from kgwe.apps.agent.health import wiring  # noqa: PLC0415

        return wiring.build_health(self._services)

    def _build_interruption(self) -> Feature | None:
        if self._services.client is None or self._settings.cloud == "none":
            return None
        from kgwe.apps.agent.interruption import wiring  # noqa: PLC0415

        return wiring.build_interruption(self._services)

    def _build_checkpoint(self) -> Feature | None:
        if self._kubelet is None or not self._settings.enable_checkpoints:
            return None
        from kgwe.apps.agent.checkpoint import wiring  # noqa: PLC0415

        return wiring.build_checkpoint(self._services, self._kubelet)

    def _build_mig(self) -> Feature | None:
        if not self._settings.enable_mig:
            return None
        from kgwe.apps.agent import device_users  # noqa: PLC0415
        from kgwe.apps.agent.mig import wiring  # noqa: PLC0415

        users, tasks = device_users.find_device_users(self._services, self._kubelet)
        on_reset = find_first(each.on_reset for each in self._built) or (lambda _uuid: None)
        feature = wiring.build_mig(self._services, users, on_reset)
        return replace(feature, tasks=(*tasks, *feature.tasks))

    def _build_mps(self) -> Feature | None:
        if not self._settings.enable_mps:
            return None
        from kgwe.apps.agent.mps import wiring  # noqa: PLC0415

        return wiring.build_mps(self._services)

    def _build_holdings(self) -> Feature | None:
        client = self._services.client
        if self._kubelet is None or client is None or not self._settings.enable_pod_resources:
            return None
        from kgwe.apps.agent.devices import wiring  # noqa: PLC0415

        return wiring.build_holdings(self._services, client, self._kubelet)

    def _build_device_plugin(self) -> Feature | None:
        if self._kubelet is None or not self._settings.enable_device_plugin:
            return None
        from kgwe.apps.agent.devices import wiring  # noqa: PLC0415

        return wiring.build_device_plugin(
            self._services,
            self._kubelet,
            withheld_devices=find_first(each.withheld_devices for each in self._built) or frozenset,
            on_allocation=find_first(each.on_allocation for each in self._built) or (lambda: None),
        )

    def _build_dra(self) -> Feature | None:
        client = self._services.client
        if client is None or not self._settings.enable_dra:
            return None
        from kgwe.apps.agent.dra import wiring  # noqa: PLC0415

        return wiring.build_dra(
            self._services,
            client,
            None if self._kubelet is None else self._kubelet.pod_resources,
            withheld_devices=find_first(each.withheld_devices for each in self._built) or frozenset,
        )

    def _build_exporter(self) -> Feature | None:
        if not self._settings.exporter_bind_address:
            return None
        from kgwe.apps.agent.metrics import wiring  # noqa: PLC0415

        return wiring.build_exporter(
            self._services,
            self._kubelet,
            mps_servers=find_first(each.mps_servers for each in self._built) or dict,
            renderers=drop_none(each.render for each in self._built),
        )
