"""`kgwe bench store`: measures the history store."""

from __future__ import annotations

from cyclopts import App

from kgwe import errors, terminal
from kgwe.cli.bench.command import INTERRUPTED, Json, show

app = App(
    name="store",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench store
  kgwe bench store --devices 10000 --minutes 30 --json
  kgwe bench store --url postgresql://user@host/empty""",
)


@app.default
def run(*, devices: int = 5_000, minutes: int = 60, url: str = "", seed: int = 1, json: Json = False) -> int:
    """Write, read and forget minutes of many devices, beside plain inserts of sqlite3. Takes seconds.

    Parameters
    ----------
    devices
        Devices per minute.
    minutes
        Minutes to write, one batch each.
    url
        An empty PostgreSQL database; default: a SQLite file in a temporary folder.
    seed
        Seed of the values.
    """
    from kgwe.bench.store import minutes as bench  # noqa: PLC0415 -- NumPy and SQLAlchemy

    if devices < 1 or minutes < 1:
        terminal.write_error("kgwe: --devices and --minutes must be at least 1\n")
        return 2
    try:
        measured = bench.run(bench.Options(devices, minutes, url, seed))
    except errors.KgweError as exc:
        terminal.write_error(f"kgwe: {exc}\n")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0
