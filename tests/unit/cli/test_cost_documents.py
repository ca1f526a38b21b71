"""The guide to costs shows what the commands print, and its examples are valid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kgwe.apps.cost import settings as cost_settings
from kgwe.cli.cost.bill import bill
from kgwe.costing.dates import parse_time
from kgwe.costing.metering.division import GpuCut
from kgwe.costing.metering.meter import NodeMeter, NodeState
from kgwe.costing.prices.book import NodeKind
from kgwe.costing.split import HostShape, SplitMethod
from kgwe.store.ledger.ledger import Ledger, NodeFacts
from kgwe.store.ledger.price_files import load_book

if TYPE_CHECKING:
    from kgwe.costing.prices.book import PriceBook

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "cost"


@pytest.fixture
def book(monkeypatch) -> PriceBook:
    monkeypatch.chdir(ROOT)
    settings = cost_settings.load(EXAMPLES / "settings.yaml", {})
    assert settings.attribution_rules
    return load_book(settings.price_paths, with_defaults=settings.builtin_prices)


def test_the_bill_of_the_guide_is_compared_as_the_guide_shows(book, tmp_path, capsys):
    start_s = parse_time("2026-10-01T00:00:00Z")
    kind = NodeKind("p5.48xlarge", "us-east-1", gpu_model="H100-SXM5-80GB", gpus=8)
    gpus = tuple(GpuCut(f"GPU-{number}", kind.gpu_model) for number in range(8))
    meter = NodeMeter(start_s)
    meter.set_state(start_s, NodeState("gpu-1", kind, gpus, HostShape(192_000, 2**41)))
    store = str(tmp_path / "cost.db")
    with Ledger.open(store) as ledger:
        segments = meter.derive(start_s + 86_400, book, SplitMethod.MARKET)
        state = {"counted_until_s": str(start_s + 86_400), "currency": "USD"}
        ledger.put(segments, state, [NodeFacts("gpu-1", "aws:///us-east-1a/i-0a1b2c3d", "us-east-1")])
    bill(EXAMPLES / "bill.csv", store=store)
    told = capsys.readouterr().out
    assert told.strip() in (ROOT / "docs" / "cost.md").read_text()
