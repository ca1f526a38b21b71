"""The savings report beside a simulated week: a ledger of what ran, and a simulation of what would have run."""

from __future__ import annotations

import msgspec
import pytest

from kgwe import errors
from kgwe.bench.cost import savings, week
from kgwe.cli.cost.cost import cost
from kgwe.cli.cost.fragmentation import fragmentation
from kgwe.cli.cost.savings import make_table
from kgwe.cli.cost.savings import savings as command
from kgwe.cli.cost.spot import spot
from kgwe.scaling.replay.recording import Allocation, NodeLife, Pool, Recording
from kgwe.scaling.replay.savings import measure_savings


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory):
    path = str(tmp_path_factory.mktemp("savings") / "cost.db")
    return path, savings.record_week(week.make_jobs(400, seed=3), path)


def test_the_report_finds_the_recorded_week_and_its_nodes(recorded, capsys):
    path, truth = recorded
    command(store=path, last="7d", output="json", replays=3, roi=True, investment="100")
    told = msgspec.json.decode(capsys.readouterr().out)
    assert abs(float(told["recorded"]) - truth.recorded / 1e6) < 0.01
    # A small week varies by several percent; `kgwe bench savings` measures a large one.
    assert abs(float(told["baseline"]) / (truth.baseline / 1e6) - 1) < 0.15
    assert abs(sum(map(float, told["steps"].values())) - float(told["baseline"]) + float(told["optimized"])) < 0.01
    assert 150 <= told["nodeLeadSeconds"] <= 270
    assert told["nodeIdleSeconds"] == 600
    assert told["roi"]["sources"][0]["savings"] == told["saved"]


def test_the_table_states_method_and_inputs(recorded, capsys):
    command(store=recorded[0], last="7d", replays=1)
    told = capsys.readouterr().out
    assert "method: recorded pods replayed by the placement engine" in told
    assert "it is returned 600 s after its last pod" in told
    assert "saved is negative" not in told
    command(store=recorded[0], last="7d", replays=1, keep_nodes=True, output="csv")
    assert capsys.readouterr().out.splitlines()[0].startswith("scenario,cost")


def test_a_mostly_empty_fleet_saves_a_negative_amount_and_the_table_says_why():
    pool = Pool("g6e.48xlarge", "L40S", 8)
    lives = [NodeLife(f"n{n}", pool, False, False, 0, 36_000, 36_000, 36_000 * 10_000_000) for n in range(4)]  # noqa: FBT003
    held = Allocation("n0", 0, 3600, gpus=1, owner="ml/Job/a", ticks=3600 * 1_250_000)
    recording = Recording(0, 36_000, tuple(lives), (held,))
    told = make_table(recording, measure_savings(recording, replays=1), "USD")
    assert "\nsaved -" in told
    assert "saved is negative: the recorded fleet cost more than the baseline would need." in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"last": "91d"}, "90 days"),
        ({"keep_nodes": True, "idle_minutes": 5.0}, "exclude"),
        ({"idle_minutes": -1.0}, "0 or more"),
        ({"idle_minutes": float("nan")}, "0 or more"),
        ({"replays": 0}, "1 to 100"),
    ],
)
def test_bad_options_are_refused(recorded, options, words):
    with pytest.raises(errors.Permanent, match=words):
        command(store=recorded[0], **options)


def test_fragmentation_sums_to_what_no_pod_held(recorded, capsys):
    fragmentation(store=recorded[0], last="7d", output="json")
    told = msgspec.json.decode(capsys.readouterr().out)
    cost(store=recorded[0], last="7d", output="json")
    books = msgspec.json.decode(capsys.readouterr().out)
    assert float(told["total"]) == pytest.approx(float(books["unallocated"]), abs=1e-5)
    assert sum(float(each["cost"]) for each in told["causes"]) == pytest.approx(float(told["total"]), abs=1e-5)
    assert {each["cause"] for each in told["causes"] if float(each["cost"])} >= {
        "starting",
        "draining",
        "beside",
        "parts",
    }
    for output in ("table", "csv", "yaml"):
        fragmentation(store=recorded[0], last="7d", output=output)
        assert "starting" in capsys.readouterr().out


def test_spot_advice_names_what_was_measured(recorded, capsys):
    spot(store=recorded[0], last="7d", output="json")
    told = msgspec.json.decode(capsys.readouterr().out)
    (pool,) = told["pools"]
    assert pool["spotNodeHours"] > 0
    assert pool["interruptions"] == 0
    assert pool["interruptionsPerDayUpperBound"] > 0
    assert {each["advice"] for each in told["workloads"]} <= {"spot", "checkpoint"}
    spot(store=recorded[0], last="7d", checkpoint_minutes=10)
    assert "AT-MOST" in capsys.readouterr().out
    with pytest.raises(errors.Permanent, match="more than 0"):
        spot(store=recorded[0], checkpoint_minutes=-1)
