"""`kgwe bench waste`: right and wrong judgements of simulated pods, findings in gaps, and time per pod."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.waste import fleet, published, scenes, sources, speed
from kgwe.bench.waste.tally import Tally
from kgwe.forecast.waste.rules import DEFAULT

if TYPE_CHECKING:
    from kgwe.local.host.progress import Progress

DUTY_FILE: Final = published.DUTY_FILE
SOURCES: Final = ("embedded", "prometheus")
_START_S: Final = 1_800_000_000.0
# Real storage holds the recent past only.
_RECENT_S: Final = 2 * 3600.0
_SCRAPE_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    seeds: int = 100
    first_seed: int = 0
    pods: int = 10_000
    source: str = "embedded"
    gap_minutes: float = 15.0
    rounds: int = 3
    data: Path | None = None
    """Folder of the published data; None: without it."""


def run(options: Options, progress: Progress) -> report.Report:
    """Run all parts."""
    if options.source not in SOURCES:
        raise errors.Permanent(f"unknown source {options.source!r}; choose {' or '.join(SOURCES)}")
    if options.seeds < 1 or options.pods < 1 or options.rounds < 1 or options.gap_minutes < 1:
        raise errors.Permanent("--seeds, --pods, --rounds and --gap-minutes must be at least 1")
    machine = report.examine_machine()
    with progress.step(f"{options.seeds} seeds of simulated pods, source {options.source}"):
        tally = judge_scenes(options)
    with progress.step(f"{options.pods} pods at once"):
        measured = speed.measure_speed(options.pods, options.rounds)
    metrics: dict[str, Any] = {**tally.to_metrics(), "ms_per_pod": measured.pop("ms_per_pod"), "speed": measured}
    if tally.mistakes:
        metrics["mistakes"] = tally.mistakes
    if options.data is not None:
        with progress.step("published usage of serving containers"):
            metrics.update(published.judge_published(options.data, DEFAULT))
    params = {
        "seeds": options.seeds,
        "first_seed": options.first_seed,
        "source": options.source,
        "pods": options.pods,
        "window_s": DEFAULT.window_s,
        "step_s": DEFAULT.interval_s,
        "scrape_s": _SCRAPE_S,
        "gap_minutes": options.gap_minutes,
    }
    return report.Report("waste", params, metrics, machine)


def find_data(named: Path | None) -> Path | None:
    """Return the folder of the published data: the named one, $KGWE_DATA or shared/data nearby; None if absent."""
    given = named or (Path(os.environ["KGWE_DATA"]) if "KGWE_DATA" in os.environ else None)
    places = [given] if given else [base / "shared" / "data" for base in (Path.cwd(), *Path.cwd().parents)]
    return next((place for place in places if (place / DUTY_FILE).is_file()), None)


def judge_scenes(options: Options) -> Tally:
    """Simulate the pods of all seeds and judge them."""
    is_real = options.source == "prometheus"
    start_s = (time.time() - _RECENT_S) // 60 * 60 if is_real else _START_S
    timeline = fleet.Timeline(start_s, _SCRAPE_S, DEFAULT.interval_s, DEFAULT.window_s, options.gap_minutes * 60)
    built = scenes.build_scenes(range(options.first_seed, options.first_seed + options.seeds), start_s)
    tally = Tally(fleet.make_exporters(built, timeline, seed=options.first_seed), timeline, DEFAULT)
    judge = sources.judge_prometheus if is_real else sources.judge_embedded
    asyncio.run(judge(tally.exporters, timeline, tally.judge))
    return tally
