"""The exporters of the simulated nodes, in simulated time, with nodes that do not respond for a while."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe.hardware.dcgm import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kgwe.bench.waste.scenes import Expectation, Scene
    from kgwe.local.fleet.meter import NodeMeter

_POD: Final = re.compile(r'pod="([^"]*)"')
_GPU_UTIL: Final = list(metrics.Field).index(metrics.Field.GPU_UTIL)
_MOST_GAPS: Final = 3
_LONGEST_GAP_S: Final = 360.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """When exporters are scraped and pods are judged."""

    start_s: float
    scrape_s: float
    step_s: float
    window_s: float
    gap_phase_s: float
    """After the first window; gaps are in it."""

    @property
    def clean_end_s(self) -> float:
        """Return the end of the window without gaps."""
        return self.start_s + self.window_s

    @property
    def scrapes(self) -> list[float]:
        """Return the times of scrapes. They are inside steps, never on their borders."""
        count = round((self.window_s + self.gap_phase_s) / self.scrape_s)
        return [self.start_s + (number + 0.5) * self.scrape_s for number in range(count)]

    @property
    def ends(self) -> list[float]:
        """Return the ends of windows in the phase with gaps."""
        count = round(self.gap_phase_s / self.step_s)
        return [self.clean_end_s + (number + 1) * self.step_s for number in range(count)]


@dataclass(slots=True)
class SimulatedExporters:
    """Responds for every node, and remembers what was sent."""

    meters: Mapping[str, NodeMeter]
    expectations: tuple[Expectation, ...]
    gaps: Mapping[str, Sequence[tuple[float, float]]]
    sent: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Node -> times at which it responded."""
    utilization: dict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(dict))
    """Pod -> time -> GPU_UTIL: what simple detectors read."""
    _pods: dict[str, str] = field(default_factory=dict)

    def respond(self, node: str, now_s: float) -> bytes | None:
        """Return the exposition of a node; None if it does not respond."""
        rows = self.read(node, now_s)
        return None if rows is None else metrics.render_metrics(rows)

    def read(self, node: str, now_s: float) -> list[metrics.Row] | None:
        """Return the rows of a node; None if it does not respond."""
        if any(begin_s <= now_s < end_s for begin_s, end_s in self.gaps.get(node, ())):
            return None
        rows = self.meters[node].rows(now_s)
        self.sent[node].append(now_s)
        for labels, values in rows:
            if pod := self._find_pod(labels):
                self.utilization[pod][now_s] = float(values[_GPU_UTIL] or 0) / 100
        return rows

    def _find_pod(self, labels: str) -> str:
        if labels not in self._pods:
            match = _POD.search(labels)
            self._pods[labels] = match[1] if match else ""
        return self._pods[labels]

    def count_missing(self, node: str, end_s: float, timeline: Timeline) -> tuple[int, bool]:
        """Return how many steps of a window have no sample, and whether the last one has none."""
        steps = round(timeline.window_s / timeline.step_s)
        start_s = end_s - timeline.window_s
        seen = {int((at_s - start_s) // timeline.step_s) for at_s in self.sent[node] if start_s < at_s < end_s}
        return steps - len(seen), steps - 1 not in seen


def make_exporters(scenes: Sequence[Scene], timeline: Timeline, seed: int) -> SimulatedExporters:
    """Return the exporters of all scenes, with random gaps after the first window."""
    rng = random.Random(seed)  # noqa: S311 -- reproducible, not secret
    meters = {name: meter for scene in scenes for name, meter in scene.meters.items()}
    gaps = {name: list(_draw_gaps(rng, timeline)) for name in meters}
    return SimulatedExporters(meters, tuple(each for scene in scenes for each in scene.expectations), gaps)


def _draw_gaps(rng: random.Random, timeline: Timeline) -> Iterator[tuple[float, float]]:
    for _ in range(rng.randint(1, _MOST_GAPS)):
        begin_s = timeline.clean_end_s + rng.uniform(0, timeline.gap_phase_s)
        yield begin_s, begin_s + rng.uniform(timeline.step_s, _LONGEST_GAP_S)
