"""Run times: history is loaded, runs are followed, each end is scored once, lost runs are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.builders.usage import NOON_S, run

from kgwe.apps.optimizer.run_times import RunTimeModel
from kgwe.model.usage.description import WorkloadDescription
from kgwe.proto import optimizer_pb2 as pb

if TYPE_CHECKING:
    from kgwe.model.usage.history import Run

WORK = WorkloadDescription(
    "team", "train", owner_kind="Job", image="example.com/train:1", milli_gpus=1000, user="team", pods=1
)
PRINT = WORK.make_fingerprint()
PRINTS = {PRINT.key: PRINT}


def ended(number: int, lasted_s: float = 600.0, **more: Any) -> Run:
    start_s = NOON_S + 1000.0 * number
    return run(f"run-{number}", PRINT.key, start_s, lasted_s, user="team", gpus=1.0, pods=1, **more)


def running(number: int, seen_s: float) -> Run:
    return ended(number, ended_s=None, seen_s=seen_s)


def metrics(model: RunTimeModel) -> pb.MetricsReply:
    reply = pb.MetricsReply()
    model.fill_metrics(reply)
    return reply


def test_without_history_nothing_is_known():
    model = RunTimeModel()
    assert not model.predict(WORK, NOON_S).is_known
    assert model.predict_run(ended(0)) is None
    reply = metrics(model)
    assert (reply.runs, reply.fingerprints, reply.HasField("mean_absolute_error_s")) == (0, 0, False)


def test_stored_runs_are_known_at_once():
    model = RunTimeModel()
    model.load([ended(0), ended(1), ended(2)], PRINTS, NOON_S + 5000)
    found = model.predict(WORK, NOON_S + 5000)
    assert found.is_known
    assert found.median_s == pytest.approx(600, rel=0.15)
    assert (model.count_runs(PRINT.key), model.fingerprints, metrics(model).runs) == (3, 1, 3)


def test_a_run_counts_when_it_ends_and_only_once():
    model = RunTimeModel()
    model.observe([running(0, NOON_S + 60)], PRINTS, NOON_S + 60)
    assert not model.predict(WORK, NOON_S + 60).is_known
    for _ in range(3):  # a recorder may hand over the same run again
        model.observe([ended(0)], PRINTS, NOON_S + 700)
    assert model.predict(WORK, NOON_S + 700).is_known
    assert model.count_runs(PRINT.key) == 1


def test_a_run_that_is_stored_as_ended_is_not_counted_again():
    model = RunTimeModel()
    model.load([ended(0)], PRINTS, NOON_S + 700)
    model.observe([ended(0)], PRINTS, NOON_S + 760)
    assert model.count_runs(PRINT.key) == 1


def test_a_run_that_went_on_while_the_process_was_down_is_counted_when_it_ends():
    model = RunTimeModel()
    model.load([running(0, NOON_S + 60)], PRINTS, NOON_S + 5000)
    model.observe([running(0, NOON_S + 5000)], PRINTS, NOON_S + 5000)
    model.observe([ended(0, lasted_s=5100)], PRINTS, NOON_S + 5160)
    assert model.count_runs(PRINT.key) == 1


def test_each_end_is_scored_against_what_was_predicted_at_its_start():
    model = RunTimeModel()
    model.load([ended(0), ended(1), ended(2)], PRINTS, NOON_S + 2900)
    model.observe([running(3, NOON_S + 3060)], PRINTS, NOON_S + 3060)
    model.observe([ended(3, lasted_s=1200)], PRINTS, NOON_S + 4300)
    model.observe([ended(3, lasted_s=1200)], PRINTS, NOON_S + 4360)
    reply = metrics(model)
    assert reply.mean_absolute_error_s == pytest.approx(600, rel=0.2)
    assert reply.interval_coverage == 0.0
    model.observe([running(4, NOON_S + 4400)], PRINTS, NOON_S + 4400)
    model.observe([ended(4)], PRINTS, NOON_S + 4700)
    assert 0 < metrics(model).interval_coverage < 1


def test_a_run_that_is_no_longer_seen_is_lost_and_does_not_count_as_ended():
    model = RunTimeModel()
    model.load([ended(0)], PRINTS, NOON_S + 900)
    model.observe([running(1, NOON_S + 1100)], PRINTS, NOON_S + 1100)
    assert "1 run of it still running" in model.predict(WORK, NOON_S + 1100).reasons
    model.observe([], PRINTS, NOON_S + 1100 + 601)
    assert len(model.predict(WORK, NOON_S + 1701).reasons) == 1
    assert model.count_runs(PRINT.key) == 1


def test_a_lost_run_that_comes_back_is_followed_again():
    model = RunTimeModel()
    model.observe([running(0, NOON_S + 60)], PRINTS, NOON_S + 60)
    model.observe([], PRINTS, NOON_S + 6000)
    model.observe([ended(0, lasted_s=6100)], PRINTS, NOON_S + 6100)
    assert model.count_runs(PRINT.key) == 1


def test_runs_with_impossible_times_do_not_break_the_others():
    model = RunTimeModel()
    bad = run("bad", PRINT.key, float("nan"), 60)
    model.load([bad, run("back", PRINT.key, NOON_S, -50), ended(0)], PRINTS, NOON_S + 900)
    assert model.predict(WORK, NOON_S + 900).is_known


def test_a_run_without_a_stored_fingerprint_still_counts_for_its_key():
    model = RunTimeModel()
    model.load([ended(0)], {}, NOON_S + 900)
    assert model.predict(WORK, NOON_S + 900).is_known
    assert not model.predict(
        WorkloadDescription("other", "else", owner_kind="Job", milli_gpus=1000), NOON_S + 900
    ).is_known
