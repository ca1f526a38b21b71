"""Generated workloads: named mixes of jobs, drawn from a seed.

A mix is a list of templates with weights. Durations are log-normal: most jobs are short, most time is in the long
ones, as in all published traces (Philly: median 874 s, mean 18,006 s). Arrivals are a Poisson process, twice as dense
by day as by night in mixes of interactive users. The rate is chosen so that the requested GPU time is `load` times
that of the fleet while jobs arrive; at 1 and above the queue keeps growing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.placement.fleet.node import Gpus, Preference, Request
from kgwe.sim.traces.workload import CHECKPOINT_S, Job, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

_CPU_MILLI_PER_CARD: Final = 8_000
_MEMORY_PER_CARD: Final = 48 << 30
_LONGEST_S: Final = 7 * 24 * 3600.0
_SHORTEST_S: Final = 10.0
_DAY_S: Final = 24 * 3600.0
# No job requests more than this fraction of the fleet.
_LARGEST_PART: Final = 4


@dataclass(frozen=True, slots=True)
class Template:
    weight: float
    gpus: Gpus
    median_s: float
    #: standard deviation of the logarithm: 1 is a factor of 2.7
    sigma: float = 1.2
    #: the number is one of these
    pods: tuple[int, ...] = (1,)
    priority: int = 0
    preference: Preference = Preference.NONE
    #: one of these, which determines the slowdown by a spread placement
    models: tuple[str, ...] = ()
    checkpoint_s: float = CHECKPOINT_S

    @property
    def request(self) -> Request:
        cards = self.gpus.count + self.gpus.milli / 1000
        return Request(
            self.gpus,
            cpu_milli=round(_CPU_MILLI_PER_CARD * cards),
            memory_bytes=round(_MEMORY_PER_CARD * cards),
            preference=self.preference,
        )


@dataclass(frozen=True, slots=True)
class Mix:
    summary: str
    templates: tuple[Template, ...]
    users: int = 24
    #: interactive users follow the time of day
    daily: bool = True


_HOUR: Final = 3600.0
_VISION: Final = ("imagenet", "cifar10", "yolov3")
_LANGUAGE: Final = ("bert", "deepspeech2")

MIXES: Final[Mapping[str, Mix]] = {
    "research": Mix(
        "notebooks, experiments on 1 to 8 GPUs, some multi-node training",
        (
            Template(16, Gpus(milli=250), 2 * _HOUR, checkpoint_s=0),
            Template(8, Gpus(milli=500), 2 * _HOUR, checkpoint_s=0),
            Template(36, Gpus(count=1), 0.5 * _HOUR, 1.6, models=(*_VISION, "ncf")),
            Template(12, Gpus(count=2), 1 * _HOUR, 1.5, models=(*_VISION, *_LANGUAGE)),
            Template(6, Gpus(count=1), 1 * _HOUR, 1.5, pods=(2, 4), models=(*_VISION, *_LANGUAGE)),
            Template(10, Gpus(count=4), 2 * _HOUR, 1.4, models=(*_VISION, *_LANGUAGE)),
            Template(8, Gpus(count=8), 3 * _HOUR, 1.3, models=_LANGUAGE),
            Template(4, Gpus(count=8), 6 * _HOUR, 1.0, pods=(2, 4, 8), models=("bert",)),
        ),
    ),
    "inference-heavy": Mix(
        "many small services and GPU shares, batch inference, some fine-tuning",
        (
            Template(30, Gpus(milli=200), 8 * _HOUR, 1.0, priority=10, checkpoint_s=0),
            Template(18, Gpus(milli=500), 8 * _HOUR, 1.0, priority=10, checkpoint_s=0),
            Template(22, Gpus(count=1), 12 * _HOUR, 1.0, priority=10, checkpoint_s=0),
            Template(
                8,
                Gpus(count=2),
                12 * _HOUR,
                1.0,
                priority=10,
                preference=Preference.NVLINK_OPTIMAL,
                checkpoint_s=0,
            ),
            Template(4, Gpus(count=4), 12 * _HOUR, 0.8, priority=10, checkpoint_s=0),
            Template(14, Gpus(count=1), 0.3 * _HOUR, 1.2),
            Template(4, Gpus(count=8), 3 * _HOUR, 1.0, models=_LANGUAGE),
        ),
        users=40,
    ),
    "llm-pretrain": Mix(
        "gangs of 8-GPU pods that run for days, fine-tuning, and short evaluations with priority",
        (
            Template(30, Gpus(count=1), 0.2 * _HOUR, 1.0, priority=5, models=("bert",)),
            Template(24, Gpus(count=8), 2 * _HOUR, 1.2, models=("bert",)),
            Template(18, Gpus(count=8), 4 * _HOUR, 1.2, pods=(2, 4), models=("bert",)),
            Template(6, Gpus(count=4), 4 * _HOUR, 1.0, pods=(2, 4, 8), models=("bert",)),
            Template(12, Gpus(count=8), 8 * _HOUR, 1.0, pods=(8, 16), models=("bert",)),
            Template(4, Gpus(count=8), 24 * _HOUR, 0.8, pods=(32, 64), models=("bert",)),
        ),
        users=8,
        daily=False,
    ),
}


def generate(mix_name: str, *, jobs: int, cards: int, seed: int, load: float = 0.9) -> Workload:
    """Return `jobs` jobs of a mix for a fleet of `cards` GPUs."""
    if mix_name not in MIXES:
        raise errors.Permanent(f"unknown mix {mix_name!r}; known mixes: {', '.join(MIXES)}")
    if jobs < 1 or cards < 1 or not 0 < load < math.inf:
        raise errors.Permanent("a workload needs at least one job, one GPU, and a load above 0")
    mix = MIXES[mix_name]
    rng = np.random.default_rng(seed)
    weights = np.array([template.weight for template in mix.templates])
    drawn = rng.choice(len(weights), size=jobs, p=weights / weights.sum())
    bodies = [_body(mix.templates[each], cards, rng) for each in drawn]
    work = sum(pods * (t.gpus.count + t.gpus.milli / 1000) * duration for t, pods, duration, _ in bodies)
    arrivals = _draw_arrivals(jobs, work / (cards * load), rng, daily=mix.daily)
    users = rng.integers(mix.users, size=jobs)
    width = len(str(jobs - 1))
    requests = {template: template.request for template in mix.templates}
    return Workload.from_jobs(
        mix_name,
        (
            Job(
                name=f"{mix_name}-{number:0{width}}",
                arrival_s=float(arrivals[number]),
                duration_s=duration,
                request=requests[template],
                pods=pods,
                priority=template.priority,
                user=f"user-{users[number]:02}",
                model=model,
                checkpoint_s=template.checkpoint_s,
            )
            for number, (template, pods, duration, model) in enumerate(bodies)
        ),
    )


def _body(template: Template, cards: int, rng: np.random.Generator) -> tuple[Template, int, float, str]:
    pods = int(rng.choice(template.pods))
    most = max(1, cards // _LARGEST_PART // max(template.gpus.count, 1))
    duration = float(np.clip(template.median_s * math.exp(template.sigma * rng.normal()), _SHORTEST_S, _LONGEST_S))
    model = str(rng.choice(template.models)) if template.models else ""
    return template, min(pods, most), round(duration, 1), model


def _draw_arrivals(jobs: int, span_s: float, rng: np.random.Generator, *, daily: bool) -> np.ndarray:
    """Return ordered times in 0..span_s."""
    times = rng.random(jobs) * span_s
    if daily and span_s > _DAY_S:
        # Density 1 + sin/3: twice as many arrivals at noon as at midnight. Uniform times are moved by the inverse of
        # its integral; one Newton step is close enough.
        phase = 2 * np.pi * times / _DAY_S
        times = np.clip(times + _DAY_S / (6 * np.pi) * (np.cos(phase) - 1), 0, span_s)
    ordered: np.ndarray = np.round(np.sort(times), 1)
    return ordered
