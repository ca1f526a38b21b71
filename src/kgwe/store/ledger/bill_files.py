"""Bills from files: read, compared with the ledger, and stored."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.costing.bills.lines import Bill, read_bill
from kgwe.costing.bills.reconcile import Reconciliation, reconcile
from kgwe.store.ledger.charges import ChargeReader
from kgwe.store.ledger.ledger import StoredBill
from kgwe.store.ledger.price_files import read_csv, read_text

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.store.ledger.ledger import Ledger


def load_bill(path: Path, *, effective: bool = False) -> tuple[Bill, str]:
    """Return a bill and the digest of its file; Permanent names file and line."""
    try:
        text = read_text(path)
        bill = read_bill(list(read_csv(text.splitlines())), effective=effective)
    except errors.Permanent as exc:
        raise errors.Permanent(f"{path}: {exc}") from exc
    return bill, hashlib.sha256(f"{effective}{text}".encode()).hexdigest()


def compare_bill(ledger: Ledger, bill: Bill, *, only_known: bool = False) -> Reconciliation:
    """Compare a bill with what was metered in its period."""
    reader = ChargeReader(ledger.database)
    currency = ledger.load_state().get("currency", bill.currency)
    if currency != bill.currency:
        raise errors.Permanent(f"the bill is in {bill.currency}, and the ledger in {currency}")
    metered = reader.list_node_hours(bill.start_s, bill.end_s)
    return reconcile(bill, metered, reader.list_resources(), only_known=only_known)


def store_bill(ledger: Ledger, name: str, digest: str, found: Reconciliation, now_s: int) -> bool:
    """Restate the history of the bill's period. Return False if this bill is stored already."""
    stored = StoredBill(name, digest, now_s, found.start_s, found.end_s, found.currency, found.billed_micros)
    return ledger.put_bill(stored, found.restated)
