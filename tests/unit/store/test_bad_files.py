"""Price files and bills that make no sense are refused with a message, quickly, and nothing is stored."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from kgwe import errors
from kgwe.store.ledger import bill_files
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.price_files import load_book

if TYPE_CHECKING:
    from pathlib import Path

COMMITMENT = "name: a, kind: reservation, validFrom: 2026-01-01, validUntil: 2027-01-01, count: 1, hourly: 1"
HEAD = "BilledCost,ChargePeriodStart,ChargePeriodEnd,BillingCurrency,ResourceId\n"
LINE = "{amount},2026-01-01T00:00:00Z,2026-01-01T01:00:00Z,USD,i-1\n"


@pytest.mark.parametrize(
    "text",
    [
        "discounts: [{percent: .nan}]",
        "discounts: [{percent: .inf}]",
        f"commitments: [{{{COMMITMENT}, discountPercent: .nan}}]",
        "owned: [{gpuModel: H100, purchase: 1, years: .nan}]",
        "owned: [{gpuModel: H100, purchase: 1e30, years: 1}]",
        "exchange: {EUR: '1e999999999'}",
        "prices: [{instanceType: a, onDemand: 1, validFrom: 2026-13-45}]",
        f"prices: [{{instanceType: a, onDemand: {'9' * 5000}}}]",
        "prices: &a [*a]",
    ],
)
def test_a_price_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(errors.Permanent, match=r"prices\.yaml"):
        load_book([path])


def test_a_damaged_compressed_bill_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bill.csv.gz"
    data = bytearray(gzip.compress((HEAD + LINE.format(amount="1.5") * 500).encode()))
    for position in range(20, len(data) - 8):
        data[position] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(errors.Permanent, match="cannot be read"):
        bill_files.load_bill(path)


def test_a_bill_whose_sum_is_too_large_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "bill.csv"
    path.write_text(HEAD + LINE.format(amount="999999999999") * 20)
    bill, digest = bill_files.load_bill(path)
    with Ledger.open(str(tmp_path / "cost.db")) as ledger:
        for _ in range(2):
            found = bill_files.compare_bill(ledger, bill)
            with pytest.raises(errors.Permanent, match="too large"):
                bill_files.store_bill(ledger, path.name, digest, found, 0)
