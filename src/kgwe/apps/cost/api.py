"""The HTTP API of the cost engine. Every replica answers, from its own read-only connection to the ledger."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.httpapi import server
from kgwe.httpapi.authentication import TokenAuthenticator
from kgwe.httpapi.authorization import AccessReviewer
from kgwe.httpapi.cost_api import make_cost_api
from kgwe.httpapi.ledger_connection import LedgerConnection
from kgwe.telemetry import http, tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from kgwe.apps.cost.settings import Settings
    from kgwe.kube.api.kgwe.gpubudget import GPUBudget
    from kgwe.kube.client.client import KubeClient


def read_files(settings: Settings) -> tls.Files | None:
    """Return the certificate of the API; None without one. Permanent if only one file is named."""
    certificate, key = settings.api_tls_cert_file, settings.api_tls_key_file
    if bool(certificate) != bool(key):
        raise errors.Permanent("settings: apiTlsCertFile and apiTlsKeyFile go together")
    return tls.Files(Path(certificate), Path(key)) if certificate else None


@contextlib.asynccontextmanager
async def serve_api(
    settings: Settings, client: KubeClient, budgets: Callable[[], Mapping[str, GPUBudget]]
) -> AsyncIterator[int]:
    """Serve the API while the context is open; yield its port."""
    address, files = http.Address.parse(settings.api_bind_address), read_files(settings)
    server.check_address(address, files, "apiBindAddress")
    connection = LedgerConnection(settings.store)
    api = make_cost_api(connection.open, budgets, TokenAuthenticator(client), AccessReviewer(client))
    try:
        async with server.serving(api.asgi, address, files) as port:
            yield port
    finally:
        connection.close()
