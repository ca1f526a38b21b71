"""The HTTP API of the cost engine. Every replica answers, from its own read-only connection to the ledger."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.httpapi import server
from kgwe.httpapi.authentication import TokenAuthenticator
from kgwe.httpapi.authorization import AccessReviewer
from kgwe.httpapi.cost_api import make_cost_api
from kgwe.httpapi.cost_reader import LedgerAccess
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.reader import LedgerReader
from kgwe.telemetry import http, tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from kgwe.apps.cost.settings import Settings
    from kgwe.kube.api.kgwe.gpubudget import GPUBudget
    from kgwe.kube.client.client import KubeClient

_METHOD: Final = "split_method"
_CURRENCY: Final = "currency"
# The names of method and currency are read again after this time.
_KEEP_S: Final = 60.0


class LedgerConnection:
    """Opens the ledger when it is asked for, and again after an error. Counting is never delayed by it."""

    def __init__(self, store: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._guard = threading.Lock()
        self._ledger: Ledger | None = None
        self._access: LedgerAccess | None = None
        self._read_s = 0.0

    def open(self) -> LedgerAccess:
        """Return the ledger; Transient while it does not exist or cannot be read."""
        with self._guard:
            if self._access is None or self._clock() > self._read_s + _KEEP_S:
                if self._ledger is None:
                    self._ledger = Ledger.open(self._store, read_only=True)
                state = self._ledger.load_state()
                reader = LedgerReader(self._ledger.database)
                self._access = LedgerAccess(reader, state.get(_METHOD, ""), state.get(_CURRENCY, ""))
                self._read_s = self._clock()
            return self._access

    def close(self) -> None:
        """Close the connection."""
        with self._guard:
            if self._ledger is not None:
                self._ledger.close()
            self._ledger = self._access = None


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
