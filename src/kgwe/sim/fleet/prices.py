"""Prices of nodes per hour, by instance type.

On-demand and lowest spot price per hour in US East, from the providers' public lists of August 2026. A type that is
not listed has an unknown price, which is not zero.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kgwe.model.simfleet.model_file import Pool

MICRO: Final = 1_000_000

#: instance type -> (on demand, spot or None), dollars per hour
PRICES: Final[Mapping[str, tuple[float, float | None]]] = {
    "g6e.48xlarge": (30.13, 12.71),
    "p4d.24xlarge": (21.96, 10.13),
    "p4de.24xlarge": (27.45, 23.92),
    "p5.48xlarge": (55.04, 20.28),
    "p5en.48xlarge": (63.30, 26.89),
    "p6-b200.48xlarge": (113.93, 41.87),
}


def read_prices(path: Path, region: str) -> dict[str, tuple[float, float | None]]:
    """Read the lowest prices of a region from a CSV file: instance_type, region, price_usd_h, spot_price_usd_h."""
    found: dict[str, tuple[float, float | None]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["region"] != region or not row["price_usd_h"]:
                    continue
                name = row["instance_type"]
                spot = float(row["spot_price_usd_h"]) if row["spot_price_usd_h"] else None
                price, known_spot = found.get(name, (float(row["price_usd_h"]), None))
                spots = [each for each in (spot, known_spot) if each is not None]
                found[name] = (min(price, float(row["price_usd_h"])), min(spots, default=None))
    except OSError as exc:
        raise errors.NotFound(f"cannot read prices: {exc}") from exc
    except (KeyError, ValueError) as exc:
        raise errors.Permanent(
            f"{path} is not a price list (instance_type, region, price_usd_h, spot_price_usd_h): {exc!r}"
        ) from exc
    return found


def of_pools(pools: Iterable[Pool], prices: Mapping[str, tuple[float, float | None]] = PRICES) -> dict[str, int]:
    """Return pool -> micro-dollars per node and hour, for pools with a known price."""
    found = {}
    for pool in pools:
        on_demand, spot = prices.get(pool.instance_type, (None, None))
        price = spot if pool.capacity_type == "spot" and spot is not None else on_demand
        if price is not None:
            found[pool.name] = round(price * MICRO)
    return found
