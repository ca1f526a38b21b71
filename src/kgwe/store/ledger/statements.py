"""Statements of a ledger: the one way in which commands, files and the HTTP API get their numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kgwe import errors
from kgwe.costing.charges import Filter, attribute_charges
from kgwe.costing.money import HOUR_S
from kgwe.costing.statement import make_statement
from kgwe.store.ledger.charges import ChargeReader
from kgwe.store.ledger.reader import LedgerReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.costing.books import Dimension
    from kgwe.costing.statement import Statement
    from kgwe.store.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What the engine stored with its last count."""

    counted_until_s: int
    method: str = "unknown"
    currency: str = "USD"
    gaps: tuple[tuple[int, int], ...] = ()


def load_state(ledger: Ledger) -> LedgerState:
    """Return how far the ledger is counted, and how."""
    state = ledger.load_state()
    try:
        gaps = msgspec.json.decode(state.get("gaps", "[]"), type=tuple[tuple[int, int], ...])
        until_s = int(state.get("counted_until_s") or time.time())
    except (msgspec.DecodeError, ValueError) as exc:
        raise errors.Permanent(f"the state of the ledger is damaged: {exc}") from exc
    return LedgerState(until_s, state.get("split_method", "unknown"), state.get("currency", "USD"), gaps)


def load_statements(
    ledger: Ledger,
    window: tuple[int, int],
    dimensions: Sequence[Dimension],
    wanted: Filter = Filter(),  # noqa: B008 -- frozen
    *,
    restated: bool = False,
) -> list[Statement]:
    """Return a statement of a window for each dimension. `restated`: as billed, in whole hours."""
    state = load_state(ledger)
    if restated:
        window = window[0] // HOUR_S * HOUR_S, -(-window[1] // HOUR_S) * HOUR_S
    reader = LedgerReader(ledger.database)
    charges = ChargeReader(ledger.database).read(*window, restated=True) if restated else []
    statements = []
    for by in dimensions:
        found = attribute_charges(charges, by, wanted) if restated else reader.read(*window, by, wanted)
        statements.append(
            make_statement(
                window,
                found.books,
                found.lines,
                by=by.value,
                method=state.method,
                currency=state.currency,
                gaps=state.gaps,
                memo=found.memo,
                restated=restated,
            )
        )
    return statements
