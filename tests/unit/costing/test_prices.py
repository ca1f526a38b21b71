"""Prices come from files that are right, and a node without a price has none."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from kgwe import errors
from kgwe.costing import money
from kgwe.costing.attribution import AttributionRules, attribute_pod
from kgwe.costing.dates import parse_time
from kgwe.costing.prices.book import Capacity, Discount, NodeKind, Price, PriceBook, Quote, Unpriced
from kgwe.costing.prices.owned import OwnedHardware, price_owned
from kgwe.costing.segments import Account
from kgwe.costing.split import (
    GIB,
    HostPrice,
    HostSample,
    HostShape,
    Rates,
    SplitMethod,
    estimate_host_price,
    parse_method,
    split_rate,
)
from kgwe.store.ledger.price_files import load_book, load_default_book

if TYPE_CHECKING:
    from pathlib import Path

P5 = NodeKind("p5.48xlarge", "us-east-1", "use1-az1", Capacity.ON_DEMAND, "H100-SXM5-80GB", 8)


def rate(book: PriceBook, node: NodeKind, at: str = "2026-09-01") -> int:
    quote = book.quote(node, parse_time(at))
    assert isinstance(quote, Quote), quote
    return quote.micros_per_hour


def load(folder: Path, name: str, text: str) -> PriceBook:
    path = folder / name
    path.write_text(text)
    return load_book([path], with_defaults=False)


class TestBook:
    def test_the_most_specific_price_counts(self):
        book = PriceBook(
            (
                Price(3_000_000, gpu_model="H100-SXM5-80GB"),
                Price(50_000_000, instance_type="p5.48xlarge"),
                Price(55_000_000, instance_type="p5.48xlarge", region="us-east-1"),
                Price(54_000_000, instance_type="p5.48xlarge", region="us-east-1", zone="use1-az1"),
            )
        )
        assert rate(book, P5) == 54_000_000
        assert rate(book, NodeKind("p5.48xlarge", "us-east-1", "use1-az2")) == 55_000_000
        assert rate(book, NodeKind("p5.48xlarge", "eu-west-1")) == 50_000_000
        assert rate(book, NodeKind("rack", "dc", gpu_model="H100-SXM5-80GB", gpus=8)) == 24_000_000

    def test_what_is_not_listed_is_unpriced_and_says_why(self):
        quote = load_default_book().quote(NodeKind("p9.new", "us-east-1", gpu_model="X900", gpus=8), 1)
        assert isinstance(quote, Unpriced)
        assert quote.reason == "no on-demand price for p9.new in us-east-1, and none per GPU for X900"

    def test_a_spot_price_is_never_used_for_another_capacity(self):
        book = PriceBook((Price(1_000_000, Capacity.SPOT, instance_type="p5.48xlarge"),))
        assert isinstance(book.quote(P5, 1), Unpriced)

    def test_a_quote_ends_when_the_price_changes(self):
        book = PriceBook(
            (
                Price(1_000_000, instance_type="p5.48xlarge", valid_until_s=100),
                Price(2_000_000, instance_type="p5.48xlarge", valid_from_s=100),
            )
        )
        quote = book.quote(P5, 50)
        assert isinstance(quote, Quote)
        assert (quote.micros_per_hour, quote.until_s) == (1_000_000, 100)
        assert rate(book, P5) == 2_000_000

    def test_the_largest_discount_applies_once(self):
        prices = (Price(10_000_000, instance_type="p5.48xlarge"),)
        discounts = (Discount(3_000, "p5*"), Discount(10_000, "*", capacity=Capacity.SPOT), Discount(1_000))
        book = PriceBook(prices, discounts)
        quote = book.quote(P5, 1)
        assert isinstance(quote, Quote)
        assert quote.micros_per_hour == 9_700_000
        assert quote.version.endswith("less 3 %")

    def test_the_built_in_prices_have_sources_and_the_default_table(self):
        book = load_default_book()
        assert all(price.source for price in book.prices)
        assert rate(book, P5) == 55_040_000
        table = {
            (model, capacity): rate(book, NodeKind(capacity=capacity, gpu_model=model, gpus=1))
            for model in ("H100-SXM5-80GB", "A100-SXM4-80GB", "L40S")
            for capacity in Capacity
        }
        assert list(table.values()) == [
            *(3_000_000, 1_200_000, 2_100_000),
            *(2_500_000, 1_000_000, 1_750_000),
            *(1_500_000, 600_000, 1_050_000),
        ]

    def test_owned_hardware_costs_its_purchase_and_its_power(self):
        hardware = OwnedHardware(30_000 * 10**6, Fraction(4), 1000, 100_000, Fraction("1.5"))
        assert price_owned(hardware) == round(30_000 * 10**6 / (4 * 8766) + 150_000)
        with pytest.raises(errors.Permanent, match="more than 0 years"):
            price_owned(OwnedHardware(1, Fraction(0)))


class TestSplit:
    SHAPE = HostShape(96_000, 1152 * GIB)

    @pytest.mark.parametrize("method", SplitMethod)
    @pytest.mark.parametrize("micros", [0, 1, 7, 21_957_642, 10**9])
    def test_parts_sum_to_the_rate(self, method, micros):
        host = HostPrice(Fraction("33000.5"), Fraction(3750))
        rates = split_rate(method, micros, self.SHAPE, host)
        assert rates.total == micros
        assert min(rates) >= 0

    def test_methods_split_as_they_say(self):
        host = HostPrice(Fraction(10_000), Fraction(1_000))
        assert split_rate(SplitMethod.GPU_ONLY, 10_000_000, self.SHAPE, host) == Rates(10_000_000, 0, 0)
        assert split_rate(SplitMethod.FIXED, 10_000_000, self.SHAPE, host) == Rates(9_500_000, 300_000, 200_000)
        assert split_rate(SplitMethod.MARKET, 10_000_000, self.SHAPE, host) == Rates(7_888_000, 960_000, 1_152_000)
        with pytest.raises(errors.Permanent, match="gpu-only, market, fixed"):
            parse_method("opencost")

    def test_market_prices_are_found_from_nodes_without_gpus(self):
        samples = [
            HostSample("a", Fraction(vcpus), Fraction(gib), vcpus * 30_000 + gib * 4_000)
            for vcpus, gib in ((4, 8), (8, 64), (16, 32))
        ]
        found = estimate_host_price(samples)
        assert found is not None
        assert (round(found.per_vcpu), round(found.per_gib)) == (30_000, 4_000)
        assert estimate_host_price([]) is None


class TestFiles:
    def test_csv_and_yaml_say_the_same(self, tmp_path):
        text = "instance_type,region,on_demand,spot,valid_from\np5,us,55.04,20.5,2026-01-01\n"
        by_csv = load(tmp_path, "a.csv", text)
        by_yaml = load(
            tmp_path,
            "a.yaml",
            "prices: [{instanceType: p5, region: us, onDemand: 55.04, spot: '20.5', validFrom: '2026-01-01'}]",
        )
        assert by_csv.prices == by_yaml.prices

    def test_a_document_has_owned_hardware_discounts_and_other_currencies(self, tmp_path):
        text = """
currency: EUR
exchange: {USD: 0.5}
prices: [{gpuModel: L40S, onDemand: 2, currency: USD}]
owned: [{gpuModel: H100-SXM5-80GB, purchase: 35064, years: 4}]
discounts: [{percent: 50, instanceType: 'p5*'}]
cpuNodes: [{vcpus: 4, memoryGiB: 0, onDemand: 0.4}]
"""
        book = load(tmp_path, "b.yaml", text)
        assert book.currency == "EUR"
        assert rate(book, NodeKind(gpu_model="L40S", gpus=1)) == 1_000_000
        assert rate(book, NodeKind("p5", gpu_model="H100-SXM5-80GB", gpus=8)) == 4_000_000
        host = book.host_price()
        assert host is not None
        assert host.per_vcpu == 100_000

    def test_a_later_file_replaces_prices(self, tmp_path):
        path = tmp_path / "own.csv"
        path.write_text("instance_type,region,on_demand\np5.48xlarge,us-east-1,40\n")
        assert rate(load_book([path]), P5) == 40_000_000

    @pytest.mark.parametrize(
        ("row", "problem"),
        [
            ("p5,,us,-1,,", "line 2: on_demand: -1 is negative"),
            ("p5,,us,,,", "line 2: on_demand, spot and reserved are all missing"),
            ("p5,H100,us,1,,", "line 2: name either instance_type, or gpu_model"),
            (",,us,1,,", "line 2: name either instance_type, or gpu_model"),
            ("p5,,us,one,,", "'one' is not an amount"),
            ("p5,,us,1,XXX,", "unknown currency 'XXX'"),
            ("p5,,us,1,EUR,", "no exchange rate from EUR to USD"),
            ("p5,,us,1,,1999-99-99", "not a day of the calendar"),
            ("p5,,us,1e9,,", "more than any node costs"),
            ("p5,,us,1,,,,,,", "more cells than the header"),
            ("p5,,us,1,,\np5,,us,2,,", "line 3: the on-demand price of p5 repeats line 2"),
            ("p5,,us,1,,2026-01-01\np5,,us,2,,2026-06-01", "line 3: the on-demand price of p5 overlaps in time"),
        ],
    )
    def test_a_wrong_row_is_refused_with_its_line(self, tmp_path, row, problem):
        text = f"instance_type,gpu_model,region,on_demand,currency,valid_from\n{row}\n"
        with pytest.raises(errors.Permanent, match=problem):
            load(tmp_path, "bad.csv", text)

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("prices: {", "while parsing"),
            ("price: []", "unknown field"),
            ("currency: YYY", "unknown currency 'YYY'"),
            ("exchange: {EUR: 0}", "above 0"),
            ("discounts: [{percent: 101}]", r"discounts\[0\]: percent is from 0 to 100"),
            ("discounts: [{percent: 1, capacity: free}]", "capacity is one of"),
            ("owned: [{gpuModel: A, purchase: -1, years: 4}]", r"owned\[0\]: -1.0 is negative"),
            ("prices: [{instanceType: a}]", r"prices\[0\]: on_demand, spot and reserved"),
        ],
    )
    def test_a_wrong_document_is_refused(self, tmp_path, text, problem):
        with pytest.raises(errors.Permanent, match=problem):
            load(tmp_path, "bad.yaml", text)

    def test_files_that_cannot_be_read_are_named(self, tmp_path):
        with pytest.raises(errors.Permanent, match=r"absent\.csv: cannot be read"):
            load_book([tmp_path / "absent.csv"])
        with pytest.raises(errors.Permanent, match="has no rows"):
            load(tmp_path, "empty.csv", "")

    def test_a_catalogue_joins_gpus_and_hosts_of_gcp(self, tmp_path):
        columns = "cloud,instance_type,accelerator,accelerator_count,vcpus,memory_gib,region,zone,price_usd_h"
        text = f"""{columns},spot_price_usd_h
aws,p5.48xlarge,H100,8.0,192,2048,us-east-1,use1-az1,55.04,20.28
aws,p5.48xlarge,H100,8.0,192,2048,us-east-1,use1-az1,55.04,
gcp,,A100,1,,,us,us-a,3,1
gcp-host,a2-highgpu-1g,,,12,85,us,us-a,0.5,0.25
gcp-host,a2-highgpu-2g,,,12,85,us,us-a,0.5,0.25
"""
        book = load(tmp_path, "catalogue.csv", text)
        assert {(each.instance_type, each.capacity): each.micros_per_hour for each in book.prices} == {
            ("p5.48xlarge", "on-demand"): 55_040_000,
            ("p5.48xlarge", "spot"): 20_280_000,
            ("a2-highgpu-1g", "on-demand"): 3_500_000,
            ("a2-highgpu-1g", "spot"): 1_250_000,
        }
        with pytest.raises(errors.Permanent, match="line 4: on-demand price differs from line 2"):
            load(
                tmp_path,
                "differs.csv",
                text.replace("az1,55.04,\n", "az1,55.04,\naws,p5.48xlarge,,,,,us-east-1,use1-az1,1,\n"),
            )

    def test_a_history_of_changes_gives_validities(self, tmp_path):
        text = """snapshot_utc,instance_type,region,zone,on_demand_usd_h,spot_usd_h
2026-01-01T00:00:00Z,g5,us,a,2,1
2026-01-02T00:00:00Z,g5,us,a,2,0.5
2026-01-03T00:00:00Z,g5,us,a,2,
"""
        book = load(tmp_path, "history.csv", text)
        spot = NodeKind("g5", "us", "a", Capacity.SPOT)
        assert rate(book, spot, "2026-01-01T12:00:00Z") == 1_000_000
        assert rate(book, spot, "2026-01-02T12:00:00Z") == 500_000
        assert isinstance(book.quote(spot, parse_time("2026-01-04")), Unpriced)
        assert len([each for each in book.prices if each.capacity == Capacity.ON_DEMAND]) == 1


def test_a_pod_says_what_its_namespace_does_not():
    account = attribute_pod(
        AttributionRules(),
        "ml",
        {"gpu-project": "llm", "experiment-id": "e1"},
        {"gpu-autoscaler.io/cost-center": "cc-1"},
        {"team": "vision", "experiment-id": "other"},
    )
    assert account == Account("ml", "vision", "llm", "cc-1", "e1", "")


def test_a_tenant_cannot_charge_another_team_than_that_of_the_namespace():
    forged = {"team": "victim", "gpu-project": "victim", "cost-center": "victim"}
    namespace = {"team": "vision", "gpu-project": "llm", "gpu-cost-center": "cc-1"}
    account = attribute_pod(AttributionRules(), "ml", forged, {"kgwe.nvidia.io/team": "victim"}, namespace)
    assert account == Account("ml", "vision", "llm", "cc-1", "", "")


def test_the_largest_price_keeps_a_day_within_64_bits():
    assert money.MOST_MICROS_PER_HOUR * 86_400 < 2**63


COMMITMENT = """
commitments:
- {name: block, kind: capacity-block, owner: vision, instanceType: p5*, count: 2, hourly: 10, upfront: 7200,
   validFrom: 2026-01-01, validUntil: 2026-01-31}
"""


def test_commitments_are_read(tmp_path):
    file = tmp_path / "prices.yaml"
    file.write_text(COMMITMENT)
    (found,) = load_book([file], with_defaults=False).commitments
    # 7,200 dollars for 30 days are 10 an hour, beside 2 x 10.
    assert (found.micros_per_hour, found.count, found.owner) == (30_000_000, 2, "vision")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("capacity-block", "lease", r"commitments\[0\]: kind is one of reservation, capacity-block, savings-plan"),
        ("count: 2, ", "", "count, the number of nodes, is missing"),
        ("hourly: 10, upfront: 7200,", "", "hourly and upfront are both missing"),
        ("2026-01-31", "2025-01-31", "validUntil is not after validFrom"),
        ("hourly: 10", "hourly: -10", "is negative"),
        ("count: 2", "count: 2, discountPercent: 100", "discountPercent is from 0 to below 100"),
        ("name: block", "name: a/b", "without a slash"),
        ("hourly: 10", "hourly: 1000000000", "more per hour than any pool"),
    ],
)
def test_wrong_commitments_are_refused(tmp_path, old, new, problem):
    file = tmp_path / "prices.yaml"
    file.write_text(COMMITMENT.replace(old, new))
    with pytest.raises(errors.Permanent, match=problem):
        load_book([file], with_defaults=False)


def test_a_repeated_commitment_is_refused(tmp_path):
    file = tmp_path / "prices.yaml"
    file.write_text(COMMITMENT)
    with pytest.raises(errors.Permanent, match="'block' is repeated"):
        load_book([file, file], with_defaults=False)
