"""Azure's retail prices: a public API without an account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.costing import money
from kgwe.costing.prices.book import Capacity, Price
from kgwe.priceapi.source import get_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

URL: Final = "https://prices.azure.com/api/retail/prices"
_MOST_PAGES: Final = 50


class AzurePrices:
    """On-demand and spot prices of N-series machines in one region."""

    def __init__(self, client: httpx2.AsyncClient, region: str, url: str = URL) -> None:
        self._client = client
        self._region = region
        self._url = url

    @property
    def name(self) -> str:
        return f"azure {self._region}"

    async def fetch(self) -> tuple[Price, ...]:
        """Read all pages. Of a type that is listed several times, the lowest price counts."""
        wanted = (
            f"serviceName eq 'Virtual Machines' and armRegionName eq '{self._region}' and priceType eq 'Consumption'"
            " and startswith(armSkuName, 'Standard_N')"
        )
        url = self._url
        params: dict[str, str] | None = {"$filter": wanted, "currencyCode": "USD"}
        found: dict[tuple[str, Capacity], Price] = {}
        for _ in range(_MOST_PAGES):
            page = await get_json(self._client, url, params)
            for price in self._read_page(page):
                key = price.instance_type, price.capacity
                known = found.get(key)
                if known is None or price.micros_per_hour < known.micros_per_hour:
                    found[key] = price
            url, params = page.get("NextPageLink") or "", None
            if not url:
                break
            if not url.startswith(self._url.partition("?")[0]):
                raise errors.Permanent("the price list of Azure continues at another host")
        return tuple(found.values())

    def _read_page(self, page: Any) -> Iterator[Price]:
        if not isinstance(page, dict) or not isinstance(page.get("Items"), list):
            raise errors.Transient("the price list of Azure has no Items")
        for item in page["Items"]:
            name, product, meter = (str(item.get(key, "")) for key in ("armSkuName", "productName", "meterName"))
            if "Windows" in product or "Low Priority" in meter or item.get("unitOfMeasure") != "1 Hour":
                continue
            amount = item.get("retailPrice")
            if not name or not isinstance(amount, int | float) or amount <= 0 or item.get("currencyCode") != "USD":
                continue
            capacity = Capacity.SPOT if "Spot" in meter else Capacity.ON_DEMAND
            rate = money.parse_dollars(str(amount))
            yield Price(rate, capacity, name, "", self._region, source="Azure retail prices")
