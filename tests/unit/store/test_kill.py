"""A writer that is killed at any moment: the file opens, nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.support.machines import history_writer
from tests.support.machines.history_writer import DEVICES, KEY, START_S

from kgwe.store.history import HistoryStore

_ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("rounds", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path, rounds: int):
    path = tmp_path / "history.db"
    luck = random.Random(7)
    written = 0
    for _ in range(rounds):
        written = _write_and_kill(path, written, batches=luck.randint(1, 60)) + 1
        _check(path, written)


@pytest.mark.parametrize("rounds", [3, pytest.param(200, marks=pytest.mark.slow)])
def test_a_writer_that_is_killed_while_it_creates_the_store_leaves_one_that_opens(tmp_path: Path, rounds: int):
    luck = random.Random(3)
    for number in range(rounds):
        path = tmp_path / f"{number}.db"
        child = os.fork()
        if child == 0:
            _create_and_write(path)
        # The moment is what is drawn, not something to wait for.
        threading.Event().wait(luck.random() * 0.1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with HistoryStore.open(str(path)) as store:
            runs = sorted(int(run.uid) for run in store.load_runs(0))
            assert runs == list(range(len(runs)))


def _create_and_write(path: Path) -> None:
    """In a forked child: import nothing, run no cleanup of the parent."""
    try:
        store = HistoryStore.open(str(path))
        for number in range(10_000):
            history_writer.write_batch(store, number)
    finally:
        os._exit(0)


def _write_and_kill(path: Path, begin: int, batches: int) -> int:
    """Kill the writer after some batches, in the middle of the next one; return the last acknowledged number."""
    command = [sys.executable, history_writer.__file__, str(path), str(begin)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=dict(os.environ)) as child:
        assert child.stdout is not None
        for _ in range(batches):
            child.stdout.readline()
        child.kill()
        lines = child.stdout.read().split("\n")
    # The last part has no end of line: it may be cut.
    finished = [int(line) for line in lines[:-1] if line]
    return max(finished, default=begin + batches - 1)


def _check(path: Path, written: int) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()
    with HistoryStore.open(str(path)) as store:
        runs = sorted(int(run.uid) for run in store.load_runs(0))
        # The batch in which it died may be stored in part: each of its writes is whole or absent.
        assert runs in (list(range(written)), list(range(written + 1)))
        facts = sorted(int(fact.uid) for fact in store.load_out_of_memory(KEY))
        assert facts in (list(range(written)), list(range(written + 1)))
        (peak,) = store.load_peaks(KEY)
        assert peak.memory_peak_mib in {written - 1, written}
        counter = store.load_document("test", "counter")
        assert counter is not None
        assert counter.body in {written - 1, written}
        minutes = store.load_minutes(START_S, START_S + 60 * (written + 1), 60)
        assert len(minutes.devices) == len(DEVICES)
        expected = (np.arange(written) % 100 / 100).astype(np.float32)
        assert np.array_equal(minutes.activity[:, :written], np.tile(expected, (len(DEVICES), 1)))
