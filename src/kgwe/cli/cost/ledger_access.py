"""How commands read the ledger: its address, the window, and the statement of it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from kgwe import errors

if TYPE_CHECKING:
    from kgwe.costing.statement import Statement

Store = Annotated[
    str,
    Parameter(
        env_var="KGWE_COST_STORE",
        help="The ledger: path of the SQLite file, or postgresql://… . Default: cost.db in the current directory.",
    ),
]
DEFAULT_STORE: Final = "cost.db"
_LAST: Final = re.compile(r"(\d{1,6})([smhdw])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_last(text: str) -> int:
    """Return the seconds of `7d`, `24h` or `2w`."""
    match = _LAST.fullmatch(text)
    if match is None or not int(match[1]):
        raise errors.Permanent(f"--last {text!r}: expected a time such as 24h, 7d or 4w")
    return int(match[1]) * _SECONDS[match[2]]


def load_statements(
    store: str, last: str, dimensions: tuple[str, ...], namespace: str = "", team: str = ""
) -> list[Statement]:
    """Return a statement of the last time for each dimension. It ends at the last count."""
    import msgspec  # noqa: PLC0415 -- with the rest, when the command runs

    from kgwe.costing.books import Dimension  # noqa: PLC0415
    from kgwe.costing.statement import make_statement  # noqa: PLC0415
    from kgwe.store.ledger.ledger import Ledger  # noqa: PLC0415 -- loads NumPy and SQLAlchemy
    from kgwe.store.ledger.reader import Filter, LedgerReader  # noqa: PLC0415

    seconds = parse_last(last)
    with Ledger.open(store, read_only=True) as ledger:
        state = ledger.load_state()
        reader = LedgerReader(ledger.database)
        end_s = int(state.get("counted_until_s", time.time()))
        window = end_s - seconds, end_s
        gaps = tuple((start, end) for start, end in msgspec.json.decode(state.get("gaps", "[]")))
        statements = []
        for name in dimensions:
            found = reader.read(*window, Dimension(name), Filter(namespace, team))
            statements.append(
                make_statement(
                    window,
                    found.books,
                    found.lines,
                    by=name,
                    method=state.get("split_method", "unknown"),
                    currency=state.get("currency", "USD"),
                    gaps=gaps,
                )
            )
    return statements


def describe(statement: Statement) -> dict[str, Any]:
    """Return a statement as plain values. Amounts are decimal texts with six digits, which keep every micro-dollar."""
    from kgwe.costing.money import format_dollars  # noqa: PLC0415 -- when the command runs
    from kgwe.kube.api.timestamp import format_time  # noqa: PLC0415

    def amount(micros: int) -> str:
        return format_dollars(micros, 6).replace(",", "")

    return {
        "start": format_time(statement.start_s),
        "end": format_time(statement.end_s),
        "by": statement.by,
        "splitMethod": statement.method,
        "currency": statement.currency,
        "lines": [
            {
                "name": line.name,
                "cost": amount(line.micros),
                "used": amount(line.used),
                "idle": amount(line.idle),
                "unmeasured": amount(line.unmeasured),
                "gpuHours": round(line.gpu_seconds / 3600, 6),
                "unpricedGpuHours": round(line.unpriced_gpu_seconds / 3600, 6),
            }
            for line in statement.lines
        ],
        "fleet": amount(statement.fleet),
        "allocated": amount(statement.allocated),
        "idle": amount(statement.idle),
        "unallocated": amount(statement.unallocated),
        "reservedIdle": amount(statement.reserved_idle),
        "overhead": amount(statement.overhead),
        "unpricedGpuHours": round(statement.unpriced_gpu_seconds / 3600, 6),
        "gaps": [[format_time(start), format_time(end)] for start, end in statement.gaps],
    }
