"""AWS: the price list for on-demand, and the present spot prices of EC2. Needs the extra `aws`."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.costing import money
from kgwe.costing.prices.book import Capacity, Price

if TYPE_CHECKING:
    from collections.abc import Iterator

_FAMILIES: Final = ("p3", "p4", "p5", "p6", "g4", "g5", "g6", "gr6")
_MOST_PAGES: Final = 200
_PRICING_REGION: Final = "us-east-1"


class AwsPrices:
    """On-demand and spot prices of GPU instances in one region."""

    def __init__(self, region: str, endpoint: str | None = None) -> None:
        self._region = region
        self._endpoint = endpoint

    @property
    def name(self) -> str:
        return f"aws {self._region}"

    async def fetch(self) -> tuple[Price, ...]:
        """Read both lists in a thread; the SDK blocks."""
        return await asyncio.to_thread(self._fetch)

    def _fetch(self) -> tuple[Price, ...]:
        try:
            boto3, exceptions = importlib.import_module("boto3"), importlib.import_module("botocore.exceptions")
            config = importlib.import_module("botocore.config").Config(retries={"total_max_attempts": 1})
        except ImportError as exc:
            raise errors.Permanent("prices of AWS need the extra `aws`: pip install 'kgwe[aws]'") from exc
        try:
            options = {"endpoint_url": self._endpoint, "config": config}
            on_demand = list(self._list_on_demand(boto3.client("pricing", region_name=_PRICING_REGION, **options)))
            spot = list(self._list_spot(boto3.client("ec2", region_name=self._region, **options)))
        except (exceptions.BotoCoreError, exceptions.ClientError) as exc:
            raise errors.Transient(f"AWS: {exc}") from exc
        return (*on_demand, *spot)

    def _list_on_demand(self, client: Any) -> Iterator[Price]:
        wanted = {
            "regionCode": self._region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
        token: dict[str, str] = {}
        seen: set[str] = set()
        for _ in range(_MOST_PAGES):
            page = client.get_products(ServiceCode="AmazonEC2", Filters=filters, **token)
            for text in page.get("PriceList", ()):
                price = self._read_product(msgspec.json.decode(text))
                if price is not None and price.instance_type not in seen:
                    seen.add(price.instance_type)
                    yield price
            if not page.get("NextToken"):
                return
            token = {"NextToken": page["NextToken"]}

    def _read_product(self, product: Any) -> Price | None:
        kind = product.get("product", {}).get("attributes", {}).get("instanceType", "")
        if not kind.startswith(_FAMILIES):
            return None
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term.get("priceDimensions", {}).values():
                text = dimension.get("pricePerUnit", {}).get("USD", "")
                if dimension.get("unit") == "Hrs" and text and money.parse_dollars(text):
                    rate = money.parse_dollars(text)
                    return Price(rate, Capacity.ON_DEMAND, kind, "", self._region, source="AWS price list")
        return None

    def _list_spot(self, client: Any) -> Iterator[Price]:
        token: dict[str, str] = {}
        newest: dict[tuple[str, str], tuple[Any, Price]] = {}
        for _ in range(_MOST_PAGES):
            page = client.describe_spot_price_history(ProductDescriptions=["Linux/UNIX"], MaxResults=1000, **token)
            for item in page.get("SpotPriceHistory", ()):
                kind, rate = item["InstanceType"], money.parse_dollars(item["SpotPrice"])
                # Nodes name their zone by either label.
                zones = {item.get("AvailabilityZone", ""), item.get("AvailabilityZoneId", "")} - {""}
                for zone in zones if kind.startswith(_FAMILIES) else ():
                    price = Price(rate, Capacity.SPOT, kind, "", self._region, zone, source="AWS spot prices")
                    known = newest.get((kind, zone))
                    if known is None or known[0] < item["Timestamp"]:
                        newest[kind, zone] = item["Timestamp"], price
            if not page.get("NextToken"):
                break
            token = {"NextToken": page["NextToken"]}
        yield from (price for _, price in newest.values())
