"""A read-only connection to the cost ledger, for processes that answer questions about costs."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from kgwe.httpapi.cost_reader import LedgerAccess
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.reader import LedgerReader

if TYPE_CHECKING:
    from collections.abc import Callable

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
