"""FOCUS rows of a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.costing.focus.rows import Issuer, NodePlace, list_rows
from kgwe.costing.money import DAY_S, HOUR_S
from kgwe.store.ledger import statements
from kgwe.store.ledger.charges import ChargeReader

if TYPE_CHECKING:
    from kgwe.costing.focus.columns import FocusVersion
    from kgwe.store.ledger.ledger import Ledger

_PERIODS: Final = {"hour": HOUR_S, "day": DAY_S}


def load_focus_rows(
    ledger: Ledger,
    version: FocusVersion,
    seconds: int,
    *,
    period: str = "day",
    cluster: str = "kgwe",
    restated: bool = False,
) -> list[dict[str, str | None]]:
    """Return the rows of the last whole hours or days before the last count. Restated charges are those of hours."""
    state = statements.load_state(ledger)
    length = _PERIODS["hour" if restated else period]
    end_s = state.counted_until_s // length * length
    start_s = min((state.counted_until_s - seconds) // length * length, end_s - length)
    reader = ChargeReader(ledger.database)
    charges = reader.read(start_s, end_s, length, restated=restated)
    nodes = {name: NodePlace(each.provider_id, each.region, each.zone) for name, each in reader.load_nodes().items()}
    issuer = Issuer(cluster, "KGWE", state.currency, state.method)
    return list(list_rows(version, charges, nodes, issuer))
