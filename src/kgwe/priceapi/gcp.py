"""GCP's billing catalogue. It lists GPUs, cores and memory apart; a machine is their sum."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kgwe import errors
from kgwe.costing.prices.book import Capacity, Price
from kgwe.priceapi.source import get_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2

#: Compute Engine in Google's catalogue.
URL: Final = "https://cloudbilling.googleapis.com/v1/services/6F81-5844-456A/skus"
_MOST_PAGES: Final = 100
_NANO: Final = 1000


class Machine(NamedTuple):
    """A machine type: what its parts are called in the catalogue, and how many it has."""

    name: str
    family: str
    gpu: str
    gpus: int
    vcpus: int
    gib: int


MACHINES: Final = (
    *(Machine(f"a2-highgpu-{n}g", "A2", "Tesla A100", n, 12 * n, 85 * n) for n in (1, 2, 4, 8)),
    *(Machine(f"a2-ultragpu-{n}g", "A2", "Tesla A100 80GB", n, 12 * n, 170 * n) for n in (1, 2, 4, 8)),
    Machine("a3-highgpu-8g", "A3", "H100 80GB", 8, 208, 1872),
    *(Machine(f"g2-standard-{n}", "G2", "L4", 1, n, 4 * n) for n in (4, 8, 12, 16, 32)),
    Machine("g2-standard-24", "G2", "L4", 2, 24, 96),
    Machine("g2-standard-48", "G2", "L4", 4, 48, 192),
    Machine("g2-standard-96", "G2", "L4", 8, 96, 384),
)
_PART: Final = re.compile(r"(?:Spot Preemptible )?(?:(\w+) Instance (Core|Ram)|Nvidia (.+?) GPU)\b.*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Unit:
    """The price of a core, a GiB or a GPU in nano-dollars per hour."""

    part: str
    capacity: Capacity
    nanos: int


class GcpPrices:
    """On-demand and spot prices of GPU machines in one region."""

    def __init__(self, client: httpx2.AsyncClient, region: str, key_file: Path | None = None, url: str = URL) -> None:
        self._client = client
        self._region = region
        self._key_file = key_file
        self._url = url

    @property
    def name(self) -> str:
        return f"gcp {self._region}"

    async def fetch(self) -> tuple[Price, ...]:
        """Read all pages, and add up machines whose parts are all listed."""
        units: dict[tuple[str, Capacity], int] = {}
        params = {"pageSize": "5000", "currencyCode": "USD"} | self._read_key()
        for _ in range(_MOST_PAGES):
            page = await get_json(self._client, self._url, params)
            if not isinstance(page, dict):
                raise errors.Transient("the catalogue of GCP has no skus")
            for unit in self._read_page(page):
                units[unit.part, unit.capacity] = unit.nanos
            token = page.get("nextPageToken")
            if not token:
                break
            params["pageToken"] = str(token)
        return tuple(self._list_machines(units))

    def _read_key(self) -> dict[str, str]:
        if self._key_file is None:
            return {}
        try:
            return {"key": self._key_file.read_text().strip()}
        except OSError as exc:
            raise errors.Permanent(f"{self._key_file}: {exc.strerror or exc}") from exc

    def _read_page(self, page: dict[str, Any]) -> Iterator[_Unit]:
        for sku in page.get("skus") or ():
            kind = (sku.get("category") or {}).get("usageType")
            match = _PART.fullmatch(str(sku.get("description", "")))
            if match is None or kind not in {"OnDemand", "Preemptible"}:
                continue
            if self._region not in (sku.get("serviceRegions") or ()):
                continue
            part = f"{match[1].upper()} {match[2].lower()}" if match[1] else match[3]
            nanos = _read_rate(sku)
            if nanos is not None:
                yield _Unit(part, Capacity.SPOT if kind == "Preemptible" else Capacity.ON_DEMAND, nanos)

    def _list_machines(self, units: dict[tuple[str, Capacity], int]) -> Iterator[Price]:
        for machine in MACHINES:
            for capacity in (Capacity.ON_DEMAND, Capacity.SPOT):
                parts = (
                    (machine.gpu, machine.gpus),
                    (f"{machine.family} core", machine.vcpus),
                    (f"{machine.family} ram", machine.gib),
                )
                rates = [units.get((part, capacity)) for part, _ in parts]
                if any(rate is None for rate in rates):
                    continue
                nanos = sum((rate or 0) * count for rate, (_, count) in zip(rates, parts, strict=True))
                micros = (2 * nanos + _NANO) // (2 * _NANO)
                yield Price(micros, capacity, machine.name, "", self._region, source="GCP billing catalogue")


def _read_rate(sku: dict[str, Any]) -> int | None:
    """Return nano-dollars per hour of the last tier; None for another unit."""
    for info in sku.get("pricingInfo") or ():
        expression = info.get("pricingExpression") or {}
        tiers = expression.get("tieredRates") or ()
        if tiers and expression.get("usageUnit") in {"h", "GiBy.h"}:
            price = tiers[-1].get("unitPrice") or {}
            return int(price.get("units") or 0) * 10**9 + int(price.get("nanos") or 0)
    return None
