"""How commands read the ledger: its address, the window, and the statement of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

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
DEFAULT_INVESTMENT: Final = "300"
Investment = Annotated[str, Parameter(name="--investment")]
_LAST: Final = re.compile(r"(\d{1,6})([smhdw])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_last(text: str) -> int:
    """Return the seconds of `7d`, `24h` or `2w`."""
    match = _LAST.fullmatch(text)
    if match is None or not int(match[1]):
        raise errors.Permanent(f"--last {text!r}: expected a time such as 24h, 7d or 4w")
    return int(match[1]) * _SECONDS[match[2]]


def load_statements(
    store: str, last: str, dimensions: tuple[str, ...], namespace: str = "", team: str = "", *, restated: bool = False
) -> list[Statement]:
    """Return a statement of the last time for each dimension. It ends at the last count."""
    from kgwe.costing.books import Dimension  # noqa: PLC0415 -- when the command runs
    from kgwe.costing.charges import Filter  # noqa: PLC0415
    from kgwe.store.ledger import statements  # noqa: PLC0415 -- loads NumPy and SQLAlchemy
    from kgwe.store.ledger.ledger import Ledger  # noqa: PLC0415

    seconds = parse_last(last)
    with Ledger.open(store, read_only=True) as ledger:
        end_s = statements.load_state(ledger).counted_until_s
        wanted = [Dimension(name) for name in dimensions]
        window = end_s - seconds, end_s
        return statements.load_statements(ledger, window, wanted, Filter(namespace, team), restated=restated)
