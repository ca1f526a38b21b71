"""`kgwe bench pricesplit`: measures how the price of a node is split."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe import errors
from kgwe.cli.bench.command import Json, refuse, show

app = App(
    name="pricesplit",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench pricesplit
  kgwe bench pricesplit --data gpu_prices.csv --json""",
)


@app.default
def run(*, data: Path | None = None, json: Json = False) -> int:
    """Compare methods that find the GPUs' part of a node's price, on GCP's separate prices. Takes seconds.

    Parameters
    ----------
    data
        Price catalogue (CSV) with gcp and gcp-host rows. Default: prices/gpu_prices_2026-08-22.csv in $KGWE_DATA, or in
        shared/data nearby.
    """
    from kgwe.bench.cost import price_split as bench  # noqa: PLC0415 -- reads the price files
    from kgwe.bench.forecast.data import find_file  # noqa: PLC0415

    try:
        measured = bench.run(bench.Options(find_file(data, "prices/gpu_prices_2026-08-22.csv")))
    except (errors.KgweError, OSError, KeyError, ValueError) as exc:
        return refuse(exc)
    show(measured, as_json=json)
    return 0
