"""Opens a transport as a kubeconfig or the pod's service account says.

lightkube reads the configuration, the certificates, the tokens (with rotation) and the credential plugins. Mistakes in
the file become a Permanent error with a clear message.
"""

from __future__ import annotations

import os
import ssl
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
import yaml
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, KubeConfig
from lightkube.core.exceptions import ConfigError

from kgwe import errors
from kgwe.kube.transport.http1_transport import Http1Transport
from kgwe.kube.transport.httpx_transport import HttpxTransport
from kgwe.kube.transport.pool import ConnectionPool, Server
from kgwe.kube.transport.transport import MAX_CONNECTIONS, TIMEOUTS, Timeouts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightkube.config.kubeconfig import SingleConfig

    from kgwe.kube.transport.transport import Transport

_LIMITS = httpx2.Limits(
    max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS, keepalive_expiry=TIMEOUTS.idle
)
_NEXT_STEP = "pass --kubeconfig FILE, set KUBECONFIG or run inside a cluster"
_PORTS = {"http": 80, "https": 443}


class _NotKubeconfig(ConfigError):
    """The named file is no kubeconfig; the message names it."""


def connect(
    kubeconfig: Path | str | None,
    *,
    context: str | None,
    user_agent: str,
    use_httpx: bool = False,
    timeouts: Timeouts = TIMEOUTS,
) -> tuple[Transport, str]:
    """Return a transport to the server and the namespace that the configuration names.

    The transport is our own unless a proxy is in between, the URL is unusual, or `use_httpx` asks for httpx2. It opens
    no connection before the first request. Permanent when the configuration cannot be used.
    """
    try:
        config = _load(kubeconfig, context)
        limits = httpx2.Timeout(timeouts.read, connect=timeouts.connect)
        params: dict[str, Any] = ConnectionParams(timeout=limits).httpx_params(config)
        own = None if use_httpx or _uses_proxy(config.cluster.server) else _open_own(params, user_agent, timeouts)
    except (ConfigError, OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as exc:
        # lightkube reports some mistakes in the file as whatever exception they cause.
        why = str(exc) if isinstance(exc, ConfigError | OSError) else f"{type(exc).__name__}: {exc}"
        doing = "" if isinstance(exc, _NotKubeconfig) else "reading kubeconfig: "
        raise errors.Permanent(f"{doing}{why}; {_NEXT_STEP}") from exc
    return own or _open_httpx(params, user_agent), config.namespace


class Connection(NamedTuple):
    """How a kubeconfig authenticates: TLS with its authority and client certificate, and headers."""

    context: ssl.SSLContext | None
    auth: Any


def read_connection(kubeconfig: Path | str | None, context: str | None = None) -> Connection:
    """Return how a kubeconfig authenticates, for another server of the same users; Permanent if it cannot be used."""
    try:
        params: dict[str, Any] = ConnectionParams().httpx_params(_load(kubeconfig, context))
    except (ConfigError, OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as exc:
        raise errors.Permanent(f"reading kubeconfig: {exc}; {_NEXT_STEP}") from exc
    trust = params.get("verify")
    return Connection(trust if isinstance(trust, ssl.SSLContext) else None, params.get("auth"))


def _open_own(params: Mapping[str, Any], user_agent: str, timeouts: Timeouts) -> Transport | None:
    url = urllib.parse.urlsplit(params["base_url"])
    if url.scheme not in _PORTS or not url.hostname or url.username or url.query:
        return None  # httpx2 understands more URLs
    server = Server(url.hostname, url.port or _PORTS[url.scheme], params["verify"] if url.scheme == "https" else None)
    pool = ConnectionPool(server, size=MAX_CONNECTIONS, timeouts=timeouts)
    return Http1Transport(pool, url, params["auth"], user_agent)


def _open_httpx(params: Mapping[str, Any], user_agent: str) -> Transport:
    headers = {"User-Agent": user_agent, "Accept-Encoding": "gzip"}
    return HttpxTransport(httpx2.AsyncClient(**params, limits=_LIMITS, headers=headers))


def _load(kubeconfig: Path | str | None, context: str | None) -> SingleConfig:
    loaded = _read_file(kubeconfig) if kubeconfig else _read_environment()
    try:
        config = loaded.get(context)
    except KeyError as exc:
        raise ConfigError(f"its context names {exc}, which the file does not define") from exc
    if config is None:
        raise ConfigError("no context is chosen")
    if config.user is None:
        raise ConfigError(f"context {config.context_name} names no user")
    return config


def _read_environment() -> KubeConfig:
    """The service account of the pod, else $KUBECONFIG, else ~/.kube/config."""
    try:
        return KubeConfig.from_service_account()
    except ConfigError:
        return _read_file(os.environ.get("KUBECONFIG", DEFAULT_KUBECONFIG))


def _read_file(name: Path | str) -> KubeConfig:
    if str(name) in ("", "."):
        raise _NotKubeconfig("KUBECONFIG is empty or names no file")
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(f"file {name} not found")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as exc:
        mark = exc.problem_mark if isinstance(exc, yaml.MarkedYAMLError) else None
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise _NotKubeconfig(f"{name} is not a kubeconfig: it is not valid YAML{where}") from exc
    if not isinstance(content, dict):
        raise _NotKubeconfig(f"{name} is not a kubeconfig: expected a YAML mapping with clusters, contexts and users")
    missing = [key for key in ("clusters", "contexts") if not isinstance(content.get(key), list)]
    if missing:
        raise _NotKubeconfig(f"{name} is not a kubeconfig: it has no list of {' and no list of '.join(missing)}")
    return KubeConfig.from_dict(content, fname=path)


def _uses_proxy(server: str) -> bool:
    """Return whether the environment sends this server's traffic through a proxy."""
    url = urllib.parse.urlsplit(server)
    proxies = urllib.request.getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    return bool(named) and not urllib.request.proxy_bypass(url.hostname or "")
