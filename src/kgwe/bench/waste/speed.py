"""Time to judge and advise many pods at once."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from kgwe.forecast.waste import findings, recommend, verdicts
from kgwe.forecast.waste.alternatives import Needs
from kgwe.forecast.waste.recommend import Prices
from kgwe.forecast.waste.rules import DEFAULT
from kgwe.forecast.waste.verdicts import PodFacts
from kgwe.model.usage.window import Device, DeviceKey, PodKey, UsageWindow, make_window

_STEPS: Final = 20
_STEP_S: Final = 30.0
_START_S: Final = 1_800_000_000.0
_PRICES: Final = Prices({"H100-SXM5-80GB": 3.0, "A100-SXM4-80GB": 2.5, "L4": 0.7}, {"H100-SXM5-80GB": 1.2})
# Share of steps with a burst, or without a sample.
_RARE: Final = 0.3
_MODEL: Final = "NVIDIA H100 80GB HBM3"


def measure_speed(pods: int, rounds: int) -> dict[str, Any]:
    """Return the time per pod: judgement, findings and recommendations of all pods; the best round counts."""
    window, facts = make_fleet(pods)
    needs = Needs(history_s=86_400.0)
    best: tuple[float, float, int] = (float("inf"), 0.0, 0)
    for _ in range(rounds):
        started = time.perf_counter()
        judged = verdicts.judge_pods(window, facts, DEFAULT)
        found = findings.find_waste(judged, DEFAULT)
        halfway = time.perf_counter()
        for each in judged:
            recommend.recommend(each, needs, _PRICES, DEFAULT, lambda _: True)
        ended = time.perf_counter()
        best = min(best, (ended - started, halfway - started, len(found)))
    total_s, judge_s, count = best
    return {
        "pods": pods,
        "ms_per_pod": total_s * 1000 / pods,
        "judge_ms_per_pod": judge_s * 1000 / pods,
        "round_s": total_s,
        "findings": count,
    }


def make_fleet(pods: int, seed: int = 1) -> tuple[UsageWindow, list[PodFacts]]:
    """Return a window with one GPU per pod: idle, holding, bursty, busy and with gaps, a fifth each."""
    rng = np.random.default_rng(seed)
    keys = [PodKey(f"team-{number % 50}", f"pod-{number}") for number in range(pods)]
    devices = tuple(
        Device(DeviceKey(f"node-{number // 8}", f"GPU-{number}", "", key, "main"), _MODEL)
        for number, key in enumerate(keys)
    )
    window = make_window(_START_S, _STEP_S, _STEPS, devices)
    kind = np.arange(pods)[:, None] % 5
    draw = rng.random((pods, _STEPS))
    levels = [
        0.0 * draw,
        0.0 * draw,
        np.where(draw < _RARE, 0.8, 0.02),
        0.85 + 0.1 * draw,
        np.where(draw < _RARE, np.nan, 0),
    ]
    window.activity[:] = np.choose(kind, levels)
    window.memory_used_mib[:] = np.choose(kind, [500.0, 40_000.0, 6000.0, 60_000.0, 500.0])
    window.memory_total_mib[:] = 81_000.0
    window.power_w[:] = 80.0 + 500.0 * np.nan_to_num(window.activity)
    window.dram[:] = 0.4 * window.activity
    return window, [PodFacts(key, _START_S - 86_400.0, 1) for key in keys]
