"""Where exporters are: fixed URLs, Prometheus' HTTP service discovery, or addresses that a callable returns."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import httpx2
import msgspec

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_MAX_BYTES: Final = 64 * 1024 * 1024
#: Labels of a target that name its node; the exporter's own labels win.
_KEPT_LABELS: Final = ("node", "instance")
_SCHEMES: Final = ("http", "https")


@dataclass(frozen=True, slots=True)
class Target:
    """An exporter: the URL of its metrics, and labels for series that do not name their node."""

    url: str
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


class TargetSource(Protocol):
    """Lists exporters."""

    async def list_targets(self) -> Sequence[Target]:
        """Return the exporters that exist now; raise Transient if they cannot be listed."""
        ...


def make_target(url: str) -> Target:
    """Return the target of a URL. Without a path it is /metrics."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise errors.Permanent(
            f"{url!r} is not the URL of an exporter; write it as http://HOST:9400/metrics or https://…"
        )
    if parts.path in {"", "/"}:
        parts = parts._replace(path="/metrics")
    return Target(parts.geturl(), {"instance": parts.netloc.rpartition("@")[2]})


class StaticTargets:
    """Exporters at fixed URLs."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._targets = tuple(make_target(url) for url in urls)

    async def list_targets(self) -> Sequence[Target]:
        return self._targets


class CalledTargets:
    """Exporters whose URLs a callable returns, such as the addresses of GPUNodes or pods in a cache."""

    def __init__(self, list_urls: Callable[[], Iterable[tuple[str, str]]]) -> None:
        self._list_urls = list_urls
        """Returns pairs of node name and URL."""

    async def list_targets(self) -> Sequence[Target]:
        found = []
        for node, url in self._list_urls():
            with contextlib.suppress(errors.Permanent):  # one bad address must not hide the others
                found.append(Target(make_target(url).url, {"node": node}))
        return found


class _Group(msgspec.Struct):
    targets: list[str]
    labels: dict[str, str] = {}


class DiscoveredTargets:
    """Exporters that an HTTP service discovery endpoint lists, in the format of Prometheus' `http_sd_configs`."""

    def __init__(self, url: str, client: httpx2.AsyncClient, *, timeout_s: float = 10.0) -> None:
        make_target(url)  # a clear error now instead of later
        self._url = url
        self._client = client
        self._timeout_s = timeout_s

    async def list_targets(self) -> Sequence[Target]:
        try:
            response = await self._client.get(self._url, timeout=self._timeout_s)
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise errors.Transient(
                f"the target list at {self._url} does not respond: {str(exc) or type(exc).__name__}"
            ) from exc
        if response.status_code != httpx2.codes.OK or len(response.content) > _MAX_BYTES:
            raise errors.Transient(f"the target list at {self._url} returned status {response.status_code}")
        try:
            groups = msgspec.json.decode(response.content, type=list[_Group])
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
            raise errors.Transient(f"the target list at {self._url} is not in the format of http_sd: {exc}") from exc
        return [target for group in groups for address in group.targets for target in _read_address(group, address)]


def _read_address(group: _Group, address: str) -> list[Target]:
    scheme, path = group.labels.get("__scheme__", "http"), group.labels.get("__metrics_path__", "/metrics")
    try:
        url = make_target(f"{scheme}://{address}{path}").url
    except errors.Permanent:
        return []  # one bad address must not hide the others
    labels = {name: value for name in _KEPT_LABELS if (value := group.labels.get(name))}
    return [Target(url, {"instance": address, **labels})]
