"""Where processes read usage from: what their settings say about Prometheus, and the exporters of a cluster's nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from kgwe.metrics.prometheus_api import PrometheusSettings
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ADDRESS_ORDER: Final = ("InternalIP", "Hostname", "ExternalIP")


class NodeAddress(msgspec.Struct, frozen=True, gc=False):
    type: str
    address: str


class PrometheusFields(Protocol):
    """The settings of Prometheus that all processes share."""

    @property
    def prometheus_url(self) -> str: ...
    @property
    def prometheus_token_file(self) -> str: ...
    @property
    def prometheus_username(self) -> str: ...
    @property
    def prometheus_password_file(self) -> str: ...
    @property
    def prometheus_ca_file(self) -> str: ...
    @property
    def prometheus_tenant(self) -> str: ...
    @property
    def prometheus_matchers(self) -> str: ...
    @property
    def prometheus_range_seconds(self) -> float: ...


def read_prometheus(settings: PrometheusFields) -> PrometheusSettings | None:
    """Return how to reach Prometheus; None where the settings name none."""
    if not settings.prometheus_url:
        return None

    def path(text: str) -> Path | None:
        return Path(text) if text else None

    return PrometheusSettings(
        settings.prometheus_url,
        token_file=path(settings.prometheus_token_file),
        username=settings.prometheus_username,
        password_file=path(settings.prometheus_password_file),
        ca_file=path(settings.prometheus_ca_file),
        tenant=settings.prometheus_tenant,
        matchers=settings.prometheus_matchers,
        range_s=settings.prometheus_range_seconds or None,
    )


def list_exporters(nodes: Iterable[Any], port: int, path: str) -> Iterator[tuple[str, str]]:
    """Yield node and URL of the exporter of each node with GPUs."""
    for node in nodes:
        found = {each.type: each.address for each in node.status.addresses}
        address = next((found[kind] for kind in _ADDRESS_ORDER if kind in found), "")
        if address and any(amounts.is_gpu(name) for name in node.status.capacity):
            host = f"[{address}]" if ":" in address else address
            yield node.metadata.name, f"http://{host}:{port}{path}"
