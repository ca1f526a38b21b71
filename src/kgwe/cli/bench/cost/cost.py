"""`kgwe bench cost`: measures the ledger of the cost engine."""

from __future__ import annotations

from cyclopts import App

from kgwe import errors
from kgwe.cli.bench.command import INTERRUPTED, Json, refuse, show

app = App(
    name="cost",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench cost
  kgwe bench cost --segments 100000 --json
  kgwe bench cost --url postgresql://user@host/empty""",
)


@app.default
def run(*, segments: int = 1_000_000, url: str = "", seed: int = 1, json: Json = False) -> int:
    """Store random segments in a ledger, send some of them late and twice, and read reports. Takes a minute.

    Parameters
    ----------
    segments
        Segments of the month that is stored.
    url
        An empty PostgreSQL database, to measure beside SQLite in the same run.
    seed
        Seed of the segments.
    """
    from kgwe.bench.cost import ledger as bench  # noqa: PLC0415 -- NumPy and SQLAlchemy

    if segments < 1:
        return refuse(ValueError("--segments must be at least 1"))
    try:
        measured = bench.run(bench.Options(segments, url, seed))
    except errors.KgweError as exc:
        return refuse(exc)
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0
