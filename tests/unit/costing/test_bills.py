"""Bills against the book: each difference has its cause, and the restated amounts sum to the bill."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe import errors
from kgwe.costing.bills import reconcile as reconciling
from kgwe.costing.bills.lines import parse_amount, read_bill, snake
from kgwe.costing.bills.reconcile import Cause, NodeHour, NodeHourKey, reconcile, round_amounts
from kgwe.costing.money import HOUR_S, TICKS
from kgwe.costing.prices.rows import Row

H0 = 472_224  # hours since 1970
FOCUS = {
    "BilledCost": "55.04",
    "EffectiveCost": "40.00",
    "ChargePeriodStart": "2023-11-15T00:00:00Z",
    "ChargePeriodEnd": "2023-11-15T01:00:00Z",
    "BillingCurrency": "USD",
    "ResourceId": "arn:aws:ec2:us-east-1:1:instance/i-1",
    "ChargeCategory": "Usage",
    "SkuPriceDetails": '{"InstanceType":"p5.48xlarge"}',
}
CUR = {
    "lineItem/UnblendedCost": "55.0400000000",
    "lineItem/UsageStartDate": "2023-11-15T00:00:00Z",
    "lineItem/UsageEndDate": "2023-11-15T01:00:00Z",
    "lineItem/CurrencyCode": "USD",
    "lineItem/ResourceId": "i-1",
    "lineItem/LineItemType": "Usage",
    "lineItem/UsageType": "BoxUsage:p5.48xlarge",
    "lineItem/UsageAmount": "1.0",
}


@pytest.mark.parametrize("cells", [FOCUS, CUR, {snake(key): value for key, value in CUR.items()}])
def test_three_formats_say_the_same(cells):
    bill = read_bill([Row("line 2", cells)])
    (line,) = bill.lines
    assert (line.resource, line.instance_type, line.kind) == ("i-1", "p5.48xlarge", "Usage")
    assert (line.start_s, line.end_s) == (H0 * HOUR_S, (H0 + 1) * HOUR_S)
    assert bill.micros == 55_040_000
    assert bill.currency == "USD"


def test_amortised_amounts_can_be_chosen():
    assert read_bill([Row("line 2", FOCUS)], effective=True).micros == 40_000_000


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"BilledCost": "much"}, "line 2: 'much' is not an amount"),
        ({"BilledCost": ""}, "line 2: '' is not an amount"),
        ({"BilledCost": "1e99"}, "more than any line"),
        ({"BilledCost": "1/3"}, "is not an amount"),
        ({"BillingCurrency": "Dollar"}, "unknown currency 'Dollar'"),
        ({"ChargePeriodEnd": "2023-11-15T00:00:00Z"}, "which is not after its start"),
        ({"ChargePeriodEnd": "2029-11-15T00:00:00Z"}, "longer than a year"),
        ({"ChargePeriodStart": "soon"}, "is not a date"),
    ],
)
def test_a_wrong_row_is_named(changes, problem):
    with pytest.raises(errors.Permanent, match=problem):
        read_bill([Row("line 2", FOCUS | changes)])


def test_files_that_are_no_bill_are_refused():
    with pytest.raises(errors.Permanent, match="unknown format"):
        read_bill([Row("line 2", {"a": "b"})])
    with pytest.raises(errors.Permanent, match="no rows"):
        read_bill([])
    with pytest.raises(errors.Permanent, match="several currencies"):
        read_bill([Row("line 2", FOCUS), Row("line 3", FOCUS | {"BillingCurrency": "EUR"})])


@given(st.lists(st.fractions(-1000, 1000, max_denominator=997), max_size=30))
def test_rounded_amounts_sum_to_the_rounded_sum(amounts):
    rounded = round_amounts(amounts)
    total = sum(amounts, Fraction())
    assert abs(sum(rounded) - total) <= Fraction(1, 2)
    assert all(abs(part - exact) < 1 for part, exact in zip(rounded, amounts, strict=True))


def line(resource: str, hour: int, dollars: str, hours: int = 1, more: dict[str, Any] | None = None) -> Row:
    start, end = (H0 + hour) * HOUR_S, (H0 + hour + hours) * HOUR_S
    cells = CUR | {
        "lineItem/ResourceId": resource,
        "lineItem/UnblendedCost": dollars,
        "lineItem/UsageAmount": str(hours),
        "lineItem/UsageStartDate": _time(start),
        "lineItem/UsageEndDate": _time(end),
    }
    return Row(f"line {hour}", cells | (more or {}))


def _time(at_s: int) -> str:
    day, rest = divmod(at_s - H0 * HOUR_S, 86_400)
    return f"2023-11-{15 + day:02}T{rest // 3600:02}:00:00Z"


def to_focus(row: Row) -> Row:
    """The same line as a FOCUS file has it."""
    cells = row.cells
    kind = (cells["lineItem/UsageType"] or "").partition(":")[2]
    return Row(
        row.where,
        FOCUS
        | {
            "BilledCost": cells["lineItem/UnblendedCost"],
            "ChargePeriodStart": cells["lineItem/UsageStartDate"],
            "ChargePeriodEnd": cells["lineItem/UsageEndDate"],
            "ResourceId": cells["lineItem/ResourceId"],
            "ChargeCategory": cells["lineItem/LineItemType"],
            "SkuPriceDetails": f'{{"InstanceType":"{kind}"}}',
            "ConsumedQuantity": cells["lineItem/UsageAmount"],
            "ConsumedUnit": "Hours",
        },
    )


@pytest.mark.parametrize("translate", [lambda row: row, to_focus], ids=["CUR", "FOCUS"])
def test_each_difference_is_named_and_the_restated_sum_is_the_bill(translate):
    hourly = 55_040_000
    metered = {NodeHourKey("n1", H0 + hour): NodeHour(hourly * HOUR_S, HOUR_S, "p5.48xlarge") for hour in range(24)}
    metered |= {NodeHourKey("n2", H0 + hour): NodeHour(0, HOUR_S, "x9.new", is_unpriced=True) for hour in range(3)}
    metered[NodeHourKey("n3", H0)] = NodeHour(hourly * HOUR_S, HOUR_S, "p5.48xlarge")
    del metered[NodeHourKey("n1", H0 + 20)]
    discounted = "53.3888000000"
    rows = [line("i-1", hour, discounted) for hour in range(24) if hour not in {5, 6}]
    rows += [line("i-2", 0, "30.0000000004", 3, {"lineItem/UsageType": "BoxUsage:x9.new"})]
    rows += [line("i-9", 2, "1.25"), line("", 0, "-7.50", 1, {"lineItem/LineItemType": "Credit"})]
    bill = read_bill([translate(row) for row in rows])
    found = reconcile(bill, metered, {"i-1": "n1", "i-2": "n2", "i-3": "n3"})
    assert found.billed_micros == sum(each.billed_micros for each in found.restated)
    assert found.billed_micros == 22 * 53_388_800 + 30_000_000 + 1_250_000 - 7_500_000
    by_cause = {each.cause: each for each in found.differences}
    assert len(by_cause) == len(found.differences) == 6
    assert (by_cause[Cause.RATE].percent_milli, by_cause[Cause.RATE].node_hours) == (-3000, 21)
    assert (by_cause[Cause.NOT_BILLED].node_hours, by_cause[Cause.NOT_BILLED].billed_micros) == (2, 0)
    assert (by_cause[Cause.NOT_METERED].node_hours, by_cause[Cause.NOT_METERED].book_micros) == (1, 0)
    assert (by_cause[Cause.UNPRICED].instance_type, by_cause[Cause.UNPRICED].billed_micros) == ("x9.new", 30_000_000)
    assert by_cause[Cause.UNKNOWN_RESOURCE].billed_micros == 1_250_000
    assert by_cause[Cause.NO_RESOURCE].billed_micros == -7_500_000
    known = reconcile(bill, metered, {"i-1": "n1", "i-2": "n2"}, only_known=True)
    assert known.billed_micros == 22 * 53_388_800 + 30_000_000


def test_many_lines_of_one_time_count_together_and_too_many_hours_are_refused(monkeypatch):
    rows = [line("i-1", 0, "0.01", 24) for _ in range(1000)]
    found = reconcile(read_bill(rows), {}, {"i-1": "n1"})
    assert (found.billed_micros, len(found.restated)) == (10_000_000, 24)
    monkeypatch.setattr(reconciling, "_MOST_HOURS", 23)
    with pytest.raises(errors.Permanent, match="split it by month"):
        reconcile(read_bill(rows), {}, {"i-1": "n1"})


def test_a_bill_for_other_seconds_is_a_difference_of_duration():
    metered = {NodeHourKey("n1", H0): NodeHour(1_000_000 * 1800, 1800, "p5")}
    (found,) = reconcile(read_bill([line("i-1", 0, "1.00")]), metered, {"i-1": "n1"}).differences
    assert (found.cause, found.percent_milli) == (Cause.DURATION, 100_000)


@given(st.integers(0, 2**32))
def test_any_bill_is_restated_to_the_micro_dollar(seed):
    rng = random.Random(seed)
    nodes = {f"i-{number}": f"n{number}" for number in range(3)}
    metered = {
        NodeHourKey(f"n{rng.randrange(4)}", H0 + rng.randrange(48)): NodeHour(
            rng.randrange(10**12), rng.randint(1, 3600)
        )
        for _ in range(rng.randint(0, 60))
    }
    rows = [
        line(
            rng.choice(("", "i-0", "i-1", "i-9")), rng.randrange(24), f"{rng.uniform(-2, 60):.10f}", rng.randint(1, 24)
        )
        for _ in range(rng.randint(1, 40))
    ]
    bill = read_bill(rows)
    found = reconcile(bill, metered, nodes)
    assert abs(found.billed_micros - bill.micros) <= Fraction(1, 2)
    assert sum(each.billed_micros for each in found.differences) == found.billed_micros
    covered = {nodes[each.resource] for each in bill.lines if each.resource in nodes}
    assert sum(each.book_ticks for each in found.restated) == sum(
        each.ticks for key, each in metered.items() if key.node in covered
    )
    assert parse_amount("0.0000001") * 10 * TICKS == TICKS
