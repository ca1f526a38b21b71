"""Price lists of clouds, read from stand-ins on this machine: all pages, stale after an error, never a wrong price."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from kgwe import errors
from kgwe.costing.prices.book import NodeKind, Price, Quote
from kgwe.priceapi.aws import AwsPrices
from kgwe.priceapi.azure import AzurePrices
from kgwe.priceapi.gcp import GcpPrices
from kgwe.priceapi.live import LivePrices, open_lists
from kgwe.store.ledger.price_files import load_book

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.priceapi.source import PriceList

T0 = 1_800_000_000


class Cloud:
    """A server whose answers the test sets."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.status = 200
        self.calls: list[str] = []
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(self.path)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(self.headers.get("X-Amz-Target", "") + body)

            def _answer(self, call: str) -> None:
                cloud.calls.append(call)
                body: Any = next((value for part, value in cloud.answers.items() if part in call), {})
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(cloud.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def cloud(monkeypatch) -> Iterator[Cloud]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    made = Cloud()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    with contextlib.closing(made.server.socket):
        yield made
        made.server.shutdown()


def azure_item(name: str, price: Any, **changes: Any) -> dict[str, Any]:
    return {
        "armSkuName": name, "retailPrice": price, "currencyCode": "USD", "unitOfMeasure": "1 Hour",
        "meterName": name, "productName": "Virtual Machines",
    } | changes  # fmt: skip


def answer_azure(cloud: Cloud, h100: Any = 98.32) -> PriceList:
    cloud.answers = {
        "skip=1": {"Items": [azure_item("Standard_NC24ads_A100_v4", 3.673)]},
        "filter": {
            "Items": [
                azure_item("Standard_ND96isr_H100_v5", h100),
                azure_item("Standard_ND96isr_H100_v5", 40.5, meterName="ND96isr Spot"),
                azure_item("Standard_ND96isr_H100_v5", 120.0, productName="Virtual Machines Windows"),
                azure_item("Standard_NC6", -1),
                azure_item("Standard_NC6", None),
                azure_item("Standard_NC12", 1.0, unitOfMeasure="1/Month"),
            ],
            "NextPageLink": f"{cloud.url}/prices?skip=1",
        },
    }
    return AzurePrices(httpx2.AsyncClient(), "eastus", f"{cloud.url}/prices")


def answer_gcp(cloud: Cloud) -> PriceList:
    def sku(description: str, nanos: int, kind: str = "OnDemand", unit: str = "h", **price: Any) -> dict[str, Any]:
        rate = {"unitPrice": {"units": "0", "nanos": nanos} | price}
        return {
            "description": description,
            "serviceRegions": ["us-central1"],
            "category": {"usageType": kind},
            "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": [rate]}}],
        }

    cloud.answers = {
        "pageToken=2": {"skus": [sku("A2 Instance Ram running in Americas", 4_237_000, unit="GiBy.h")]},
        "skus": {
            "skus": [
                sku("Nvidia Tesla A100 GPU running in Americas", 933_908_000, units="2"),
                sku("A2 Instance Core running in Americas", 31_611_000),
                sku("Spot Preemptible A2 Instance Core running in Americas", 9_000_000, "Preemptible"),
                sku("Commitment v1: A2 Core in Americas for 1 Year", 1, "Commit1Yr"),
                sku("Nvidia L4 GPU running in Americas", 560_040_000),
            ],
            "nextPageToken": "2",
        },
    }
    return GcpPrices(httpx2.AsyncClient(), "us-central1", None, f"{cloud.url}/skus")


def answer_aws(cloud: Cloud) -> PriceList:
    def product(kind: str, dollars: str) -> str:
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": dollars}}
        return json.dumps(
            {
                "product": {"attributes": {"instanceType": kind}},
                "terms": {"OnDemand": {"a": {"priceDimensions": {"b": dimension}}}},
            }
        )

    def spot(zone: str, dollars: str, hour: int) -> str:
        return (
            f"<item><instanceType>p5.48xlarge</instanceType><spotPrice>{dollars}</spotPrice>"
            f"<timestamp>2026-11-18T{hour:02}:00:00.000Z</timestamp><availabilityZone>{zone}</availabilityZone></item>"
        )

    items = spot("us-east-1a", "20.5", 3) + spot("us-east-1a", "19.0", 1) + spot("us-east-1b", "21.0", 2)
    cloud.answers = {
        "GetProducts": {"PriceList": [product("p5.48xlarge", "55.04"), product("m5.large", "0.1")]},
        "DescribeSpotPriceHistory": (
            '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
            f"<spotPriceHistorySet>{items}</spotPriceHistorySet></DescribeSpotPriceHistoryResponse>"
        ),
    }
    return AwsPrices("us-east-1", cloud.url)


def rates(prices: tuple[Price, ...]) -> dict[tuple[str, str, str], int]:
    return {(each.instance_type, each.capacity, each.zone): each.micros_per_hour for each in prices}


async def test_azure(cloud):
    assert rates(await answer_azure(cloud).fetch()) == {
        ("Standard_ND96isr_H100_v5", "on-demand", ""): 98_320_000,
        ("Standard_ND96isr_H100_v5", "spot", ""): 40_500_000,
        ("Standard_NC24ads_A100_v4", "on-demand", ""): 3_673_000,
    }


async def test_gcp_adds_up_the_parts_of_a_machine(cloud):
    found = rates(await answer_gcp(cloud).fetch())
    assert found["a2-highgpu-1g", "on-demand", ""] == 2_933_908 + 12 * 31_611 + 85 * 4_237
    assert found["a2-highgpu-8g", "on-demand", ""] == 8 * found["a2-highgpu-1g", "on-demand", ""]
    # Spot memory, and cores and memory of G2, are not listed: such machines are not priced.
    assert not [key for key in found if key[1] == "spot" or key[0].startswith("g2")]


async def test_aws(cloud):
    pytest.importorskip("boto3")
    assert rates(await answer_aws(cloud).fetch()) == {
        ("p5.48xlarge", "on-demand", ""): 55_040_000,
        ("p5.48xlarge", "spot", "us-east-1a"): 20_500_000,
        ("p5.48xlarge", "spot", "us-east-1b"): 21_000_000,
    }


@pytest.mark.parametrize("answer", [answer_azure, answer_gcp, answer_aws])
async def test_the_last_good_prices_stay_after_an_error(cloud, answer):
    pytest.importorskip("boto3")
    source = answer(cloud)
    live = LivePrices([source])
    assert await live.refresh(T0)
    good = sorted(live.list_prices(), key=repr)
    assert good
    calls = len(cloud.calls)
    assert not await live.refresh(T0 + 3599)  # cached for an hour
    assert len(cloud.calls) == calls
    cloud.status = 500
    assert not await live.refresh(T0 + 3600)
    assert len(cloud.calls) > calls
    assert sorted(live.list_prices(), key=repr) == good
    assert live.fetched_s == {source.name: T0}
    assert "500" in live.problems[source.name] or "AWS" in live.problems[source.name]
    cloud.status = 200
    assert not await live.refresh(T0 + 3600 + 300)  # tried again after five minutes
    assert live.problems == {}


async def test_a_price_that_changes_is_valid_from_then_on(cloud, tmp_path):
    live = LivePrices([answer_azure(cloud)])
    await live.refresh(T0)
    answer_azure(cloud, 90)
    assert await live.refresh(T0 + 3600)
    node = NodeKind("Standard_ND96isr_H100_v5", "eastus")
    book = load_book([], live=live.list_prices())
    for at_s, micros in ((T0, 98_320_000), (T0 + 3599, 98_320_000), (T0 + 3600, 90_000_000)):
        quote = book.quote(node, at_s)
        assert isinstance(quote, Quote)
        assert quote.micros_per_hour == micros
    # A file of the user comes first.
    file = tmp_path / "prices.csv"
    file.write_text("instance_type,region,on_demand\nStandard_ND96isr_H100_v5,eastus,50\n")
    quote = load_book([file], live=live.list_prices()).quote(node, T0 + 7200)
    assert isinstance(quote, Quote)
    assert quote.micros_per_hour == 50_000_000


@pytest.mark.parametrize("body", ["no json", "[]", '{"Items": 1}', '{"Items": [{}]}', '{"Items": ["x"]}'])
async def test_answers_of_another_shape_are_problems_not_prices(cloud, body):
    source = answer_azure(cloud)
    cloud.answers = {"": body}
    live = LivePrices([source])
    await live.refresh(T0)
    assert live.list_prices() == []


def test_unknown_clouds_are_refused():
    with pytest.raises(errors.Permanent, match="write a cloud"):
        open_lists(["oracle/x"], httpx2.AsyncClient())
    names = [each.name for each in open_lists(["aws/us-east-1", "azure/eastus", "gcp/x"], httpx2.AsyncClient())]
    assert names == ["aws us-east-1", "azure eastus", "gcp x"]
