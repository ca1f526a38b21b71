"""A ledger that is full, locked, damaged or old, and a day without the engine: nothing is lost or counted twice."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from tests.support.fakes.cost_world import T0, World, make_pod

from kgwe import errors
from kgwe.cli.cost.cost import cost
from kgwe.store.address import parse_address
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.schema import LEDGER, STATE
from kgwe.store.migration import upgrade_to

if TYPE_CHECKING:
    from kgwe.apps.cost.engine import CostEngine

DAY_S = 86_400


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def limit_pages(engine: CostEngine, pages: int) -> None:
    assert engine._ledger is not None
    with engine._ledger.database.transaction() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


def damage(path: Path) -> bytes:
    content = b"\x5a" * 4096 + path.read_bytes()[4096:]
    path.write_bytes(content)
    return content


def read(path: Path) -> bytes:
    return path.read_bytes()


async def test_a_full_disk_loses_nothing(world):
    world.create(make_pod("a", 0))
    async with world.engine() as engine:
        world.now = T0 + 60
        await engine.count()
        limit_pages(engine, 1)
        for number in range(300):
            world.create(make_pod(f"short-{number}", 60, 61))
        await world.show("short-299", bool)
        world.now = T0 + 120
        await engine.count()
        assert "no space left" in str(engine.problem())
        limit_pages(engine, 100_000)
        world.now = T0 + 180
        await engine.count()
        assert engine.problem() is None
    found = world.costs()
    assert len(found) == 301
    # More pods than GPUs share them for that second; books balance whatever pods claim.
    assert sum(found.values()) <= 6.0 * 180
    world.check_books()


async def test_a_locked_ledger_loses_nothing(world, monkeypatch):
    monkeypatch.setattr(Ledger, "open", partial(Ledger.open, busy_timeout_s=0.01))
    world.create(make_pod("a", 0))
    async with world.engine() as engine:
        other = sqlite3.connect(world.store, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        world.now = T0 + 60
        await engine.count()
        assert "locked by another program" in str(engine.problem())
        other.close()
        world.now = T0 + 120
        await engine.count()
        assert engine.problem() is None
    assert world.costs() == {"ml/a": 180.0}
    world.check_books()


async def test_a_damaged_ledger_is_refused_and_not_changed(world):
    world.create(make_pod("a", 0))
    async with world.engine() as engine:
        world.now = T0 + 60
        await engine.count()
    content = damage(Path(world.store))
    with pytest.raises(errors.Permanent, match=r"is damaged .* was not changed: move it away"):
        async with world.engine():
            pass
    assert read(Path(world.store)) == content


async def test_a_ledger_of_the_first_schema_goes_on_where_it_was_counted_to(world):
    old = sa.create_engine(parse_address(world.store).url)
    with old.begin() as connection:
        upgrade_to(connection, LEDGER, "0001")
        connection.execute(sa.insert(STATE), [{"name": "counted_until_s", "value": str(T0 + 40)}])
    old.dispose()
    world.create(make_pod("a", 0))
    world.now = T0 + 60
    async with world.engine() as engine:
        await engine.count()
        assert engine.problem() is None
    assert world.costs() == {"ml/a": 30.0}  # 20 seconds


async def test_a_day_without_the_engine_is_a_reported_gap(world, capsys):
    for name in ("stays", "ends", "vanishes"):
        world.create(make_pod(name, 0))
    async with world.engine(tracking_seconds=60) as engine:
        world.now = T0 + 600
        await engine.count()
    world.now = T0 + 600 + DAY_S
    world.end("ends", 4200)
    world.api.call("DELETE", "/api/v1/namespaces/ml/pods/vanishes")
    world.create(make_pod("came", 5000, 8600))
    for _ in range(2):  # a second restart changes nothing
        async with world.engine(tracking_seconds=60) as engine:
            await engine.count()
    assert world.costs() == {
        "ml/stays": 1.5 * (600 + DAY_S),
        "ml/ends": 1.5 * 4200,
        "ml/vanishes": 1.5 * 600,
        "ml/came": 1.5 * 3600,
    }
    world.check_books(step_s=3571)
    cost(store=world.store, last="7d")
    assert capsys.readouterr().out.count("not metered from") == 1
