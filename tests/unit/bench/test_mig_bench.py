"""The MIG benchmark: same streams for all, honest sums, deterministic by seed."""

from __future__ import annotations

import numpy as np
import pytest

from kgwe import errors
from kgwe.bench.mig import benchmark as bench
from kgwe.bench.mig import optimum, policies, streams
from kgwe.bench.mig.optimum import Request
from kgwe.bench.mig.streams import Outcome
from kgwe.local.host import progress
from kgwe.model.gpu import mig
from kgwe.sharing.mig import layout_graph

A100 = mig.GEOMETRIES["A100-80GB"]
PLAIN = layout_graph.get_layout_graph(A100, layout_graph.plain_profiles(A100))
SMALL = bench.Options(models=("A100-80GB",), cards=3, requests=80, mixes=("halves",), loads=(0.9,), seeds=2, short=1)


def test_a_run_has_the_keys_that_are_promised_and_is_the_same_again():
    first, again = (bench.run(SMALL, progress.Silent()) for _ in range(2))
    assert set(first.metrics["acceptance"]) == {"kgwe", "first-fit", "most-free", "count-based"}
    assert 0 < first.metrics["optimum_unrefusing"] <= first.metrics["optimum"] <= 1
    timed = {"decision_us", "wall_s"}
    for key in set(first.metrics) - timed:
        assert first.metrics[key] == again.metrics[key]


def test_without_short_streams_there_is_no_optimum():
    options = bench.Options(
        models=("A30-24GB",), cards=2, requests=40, mixes=("mixed",), loads=(0.5,), seeds=1, short=0
    )
    assert bench.run(options, progress.Silent()).metrics["optimum"] is None


def test_sizes_a_model_has_not_are_left_out_of_the_mix():
    a30 = mig.GEOMETRIES["A30-24GB"]
    assert streams.name_profiles(layout_graph.get_layout_graph(a30), streams.MIXES["even"]) == {
        "1g.6gb": 1,
        "2g.12gb": 1,
        "4g.24gb": 1,
    }
    every = layout_graph.get_layout_graph(A100, [*layout_graph.plain_profiles(A100), "1g.20gb"])
    assert streams.name_profiles(every, {"1g": 1, "1g2": 2}) == {"1g.10gb": 1, "1g.20gb": 2}


def test_margins_are_ours_less_the_best_of_the_others():
    def cells(mix, served):
        return [bench.Cell("m", mix, 1.0, 0, policy, Outcome(n, 10, n, 10)) for policy, n in served.items()]

    found = bench.summarize([*cells("a", {"kgwe": 9, "x": 8, "y": 5}), *cells("b", {"kgwe": 6, "x": 7, "y": 1})])
    assert found["acceptance"] == {"kgwe": 0.75, "x": 0.75, "y": 0.3}
    assert (found["settings"], found["settings_behind"]) == (2, 1)
    assert (found["worst_margin"], found["mean_margin"]) == (-0.1, 0.0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (bench.Options(cards=0), "--cards 0"),
        (bench.Options(models=("K80",)), "--models K80: known are A100-40GB"),
        (bench.Options(mixes=("odd",)), "--mixes odd"),
        (bench.Options(loads=(0.0,)), "loads must be above 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, why):
    with pytest.raises(errors.Permanent, match=why):
        options.check()


def test_the_load_of_a_stream_is_the_load_asked_for():
    mix = {"1g.10gb": 1.0, "3g.40gb": 1.0}
    requests = streams.draw(PLAIN, mix, cards=10, load=0.8, requests=20_000, rng=np.random.default_rng(1))
    work = sum((each.end - each.start) * PLAIN.profiles[each.profile].compute for each in requests)
    assert work / requests[-1].start / (10 * 7) == pytest.approx(0.8, rel=0.03)


def test_places_come_free_when_work_ends():
    whole = PLAIN.find_profile("7g.80gb")
    requests = [Request(0.0, 1.0, whole), Request(0.5, 2.0, whole), Request(1.0, 3.0, whole)]
    policy = policies.POLICIES["first-fit"](PLAIN, {}, 1)
    assert streams.replay(PLAIN, policy, 1, requests) == Outcome(2, 3, 14, 21)


def test_who_knows_the_future_refuses_the_whole_card_that_blocks_seven():
    whole, small = PLAIN.find_profile("7g.80gb"), PLAIN.find_profile("1g.10gb")
    requests = [Request(0.0, 9.0, whole), *(Request(1.0 + n / 10, 9.0, small) for n in range(7))]
    assert optimum.most_served(PLAIN, 1, requests) == 7
    assert optimum.most_served(PLAIN, 1, requests, may_refuse=False) == 1
    assert optimum.most_served(PLAIN, 2, requests) == 8


def test_an_optimum_that_would_take_too_long_is_refused():
    requests = streams.draw(PLAIN, {"1g.10gb": 1.0}, cards=2, load=1.0, requests=12, rng=np.random.default_rng(0))
    with pytest.raises(errors.Permanent, match="too many for an exact optimum"):
        optimum.most_served(PLAIN, 2, requests, limit=10)
