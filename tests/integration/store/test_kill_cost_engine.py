"""The cost engine and PostgreSQL are killed in a simulated day: the ledger equals what the event log says.

The oracle knows only the log: a pod pays from its start until its end, whenever the API showed them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.support.machines import cost_actor
from tests.support.machines.cost_actor import AFTER_S, GPU_MICROS, GPUS, SHARES, T0
from tests.support.patience import PATIENCE_S

from kgwe.costing.books import Dimension
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.reader import LedgerReader
from kgwe.store.ledger.schema import METADATA, VERSION_TABLE

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT = Path(__file__).parents[3]
_SEED = 5


def _drop_tables(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in (*METADATA.tables, VERSION_TABLE):
            connection.execute(psycopg.sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(psycopg.sql.Identifier(table)))


def _kill_server(server: Any) -> None:
    """Kill PostgreSQL, and start it again. It may need some time until the memory of its old processes is free."""
    killed = server.get_pid()
    os.kill(killed, signal.SIGKILL)
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            server.ensure_postgres_running()
            if server.get_pid() != killed:
                return
        except (subprocess.SubprocessError, AssertionError):
            if time.monotonic() > end:
                raise
        assert time.monotonic() < end, "the killed server still runs"
        threading.Event().wait(0.2)


class _Day:
    """A day that is lived by several processes, one after the other."""

    def __init__(self, folder: Path, url: str, pods: int, seed: int, day_s: int = 86_400) -> None:
        self.url = url
        self.pods = pods
        self.day_s = day_s
        self.prices = folder / "prices.yaml"
        self.prices.write_text(f"prices:\n- {{instanceType: rack, onDemand: {GPUS * GPU_MICROS / 1e6}}}\n")
        self.now_s = T0
        self.luck = random.Random(seed)
        self.kills = 0

    @property
    def is_over(self) -> bool:
        return self.now_s >= T0 + self.day_s + AFTER_S

    def live(self, minutes: int, disturb: Callable[[], None] = lambda: None) -> None:
        """Run an engine for some counts, disturb it, and kill it at any moment after.

        One that does not start, because the server still holds the lock of the one before, is started again.
        """
        end = time.monotonic() + PATIENCE_S
        counted: list[int] = []
        while not counted and time.monotonic() < end:
            counted = self._live_once(minutes, disturb)
        assert counted, "no engine has counted"
        assert max(counted) >= self.now_s
        self.now_s = min(max(counted) + self.luck.randint(0, 150), T0 + self.day_s + AFTER_S)
        self.kills += 1

    def _live_once(self, minutes: int, disturb: Callable[[], None]) -> list[int]:
        numbers = map(str, (self.pods, self.day_s, _SEED))
        command = [sys.executable, cost_actor.__file__, self.url, *numbers, str(self.prices), str(self.now_s)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "src")])}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=environment) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(minutes)]
            disturb()
            # The moment is what is drawn, not something to wait for.
            threading.Event().wait(self.luck.random() * 0.05)
            child.kill()
            lines += child.stdout.read().split("\n")[:-1]
        return [int(line) for line in lines if line.strip()]

    def live_to_the_end(self) -> None:
        """Run engines until the last count is stored."""
        while not self.is_over:
            self.live(10_000)
        self.live(10_000)

    def check(self) -> None:
        """The ledger has what the log says, pod by pod, and balances."""
        log = cost_actor.make_log(self.pods, self.day_s, _SEED)
        end_s = T0 + self.day_s
        expected = {}
        for each in log:
            rate = GPU_MICROS // SHARES if cost_actor.is_shared(each.node) else GPU_MICROS
            seconds = min(each.end_s, end_s) - each.start_s
            if seconds > 0:
                expected[f"ml/{each.name}"] = rate * seconds
        with Ledger.open(self.url, read_only=True) as ledger:
            reader = LedgerReader(ledger.database)
            found = reader.read(T0, end_s, Dimension.POD)
            assert reader.sum_window(T0, end_s) == reader.scan(T0, end_s)
        assert found.books.unbalanced == 0
        assert found.books.fleet == cost_actor.count_nodes(log) * GPUS * GPU_MICROS * self.day_s
        paid = {name: sums.ticks for name, sums in found.lines.items()}
        wrong = {name: (paid.get(name), ticks) for name, ticks in expected.items() if paid.get(name) != ticks}
        assert not wrong, f"{len(wrong)} of {len(expected)} pods: {list(wrong.items())[:5]}"
        assert paid.keys() == expected.keys()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("pods", "kills", "hours"),
    [pytest.param(300, 3, 4, marks=pytest.mark.slow), pytest.param(10_000, 40, 24, marks=pytest.mark.soak)],
)
def test_a_killed_engine_counts_every_second_once(tmp_path: Path, pods: int, kills: int, hours: int):
    day = _Day(tmp_path, str(tmp_path / "cost.db"), pods, seed=1, day_s=hours * 3600)
    for _ in range(kills):
        day.live(day.luck.randint(1, 60 * hours // (kills + 1)))
    day.live_to_the_end()
    day.check()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_killed_postgresql_and_a_killed_engine_count_every_second_once(tmp_path: Path, postgresql: Any):
    url = str(postgresql.get_uri())
    _drop_tables(url)
    day = _Day(tmp_path, url, 10_000, seed=2)
    for number in range(30):
        day.live(day.luck.randint(1, 60), (lambda: _kill_server(postgresql)) if number % 2 else lambda: None)
    day.live_to_the_end()
    day.check()
    with contextlib.suppress(psycopg.Error):
        _drop_tables(url)
