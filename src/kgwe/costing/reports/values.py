"""A statement as plain values. Amounts are decimal texts with six digits, which keep every micro-dollar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kgwe.costing.dates import format_time
from kgwe.costing.money import HOUR_S, format_dollars

if TYPE_CHECKING:
    from kgwe.costing.statement import Statement


def amount(micros: int) -> str:
    """Return an amount that loses nothing: `1234.500000`."""
    return format_dollars(micros, 6).replace(",", "")


def describe(statement: Statement) -> dict[str, Any]:
    """Return the values of a statement, as JSON and YAML show them."""
    return {
        "start": format_time(statement.start_s),
        "end": format_time(statement.end_s),
        "by": statement.by,
        "splitMethod": statement.method,
        "currency": statement.currency,
        "restated": statement.restated,
        "lines": [
            {
                "name": line.name,
                "cost": amount(line.micros),
                "used": amount(line.used),
                "idle": amount(line.idle),
                "unmeasured": amount(line.unmeasured),
                "gpuHours": round(line.gpu_seconds / HOUR_S, 6),
                "unpricedGpuHours": round(line.unpriced_gpu_seconds / HOUR_S, 6),
            }
            for line in statement.lines
        ],
        "fleet": amount(statement.fleet),
        "allocated": amount(statement.allocated),
        "idle": amount(statement.idle),
        "unallocated": amount(statement.unallocated),
        "reservedIdle": amount(statement.reserved_idle),
        "billedOnly": amount(statement.billed_only),
        "overhead": amount(statement.overhead),
        "quotaHeld": amount(statement.quota_held),
        "reservedIdleByOwner": {name or NO_OWNER: amount(micros) for name, micros in statement.owners},
        "quotaHeldByNamespace": {name: amount(micros) for name, micros in statement.quotas},
        "unpricedGpuHours": round(statement.unpriced_gpu_seconds / HOUR_S, 6),
        "gaps": [[format_time(start), format_time(end)] for start, end in statement.gaps],
    }


#: How reports show a name that is not stated.
NOT_STATED = "(none)"
NO_OWNER = "(no owner)"


def list_books(statement: Statement) -> list[tuple[str, int]]:
    """Return the lines that sum to the fleet."""
    lines = [
        ("allocated", statement.allocated),
        ("idle", statement.idle),
        ("unallocated", statement.unallocated),
        ("reserved idle", statement.reserved_idle),
    ]
    if statement.billed_only:
        lines.append(("billed, not metered", statement.billed_only))
    return lines


def list_notes(statement: Statement) -> list[str]:
    """Return what a reader must know about the amounts, one sentence each."""
    notes = []
    if statement.restated:
        notes.append("Amounts are restated to the imported bills, where there are any.")
    if statement.unpriced_gpu_seconds:
        hours = statement.unpriced_gpu_seconds / HOUR_S
        notes.append(f"{hours:.2f} GPU-hours have no price and are not in these costs.")
    if statement.quota_held:
        notes.append(
            f"{format_dollars(statement.quota_held)} of unallocated are kept by quota that its namespaces do not use: "
            + ", ".join(f"{name} {format_dollars(micros)}" for name, micros in statement.quotas)
            + "."
        )
    owners = [(name or NO_OWNER, micros) for name, micros in statement.owners if micros]
    if owners:
        named = ", ".join(f"{name} {format_dollars(micros)}" for name, micros in owners)
        notes.append(f"Reserved idle by owner: {named}.")
    for start, end in statement.gaps:
        notes.append(
            f"not metered from {format_time(start)} to {format_time(end)}: pods deleted in that time are not charged"
        )
    return notes
