"""`kgwe bench mig`: the fraction of MIG requests that each policy serves.

Long streams compare policies: all get the same requests on the same fleet, for several mixes, loads and seeds. The
served fraction is counted after the fleet has filled up. Short streams on one and two GPUs compare a policy with two
exact optima that know all requests in advance. One may refuse requests; the other, like the policies, serves each
request that fits.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.mig import optimum, policies, streams
from kgwe.model.gpu import mig
from kgwe.sharing.mig import layout_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kgwe.bench.mig.optimum import Request
    from kgwe.bench.mig.streams import Outcome
    from kgwe.local.host.progress import Progress
    from kgwe.sharing.mig.layout_graph import LayoutGraph

OURS = "kgwe"
ALL_MIXES = tuple(streams.MIXES)
# The fleets of the short streams. Their request counts keep the exact optimum a matter of seconds.
_SHORT = {1: 20, 2: 12}
_SHORT_LOAD = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    models: tuple[str, ...] = ("A100-80GB", "H100-80GB")
    cards: int = 16
    requests: int = 2500
    mixes: tuple[str, ...] = ALL_MIXES
    loads: tuple[float, ...] = (0.7, 0.85, 1.0)
    seeds: int = 3
    # Short streams per model, mix and fleet size; 0 skips the optimum.
    short: int = 12
    seed: int = 1

    @property
    def warm_up(self) -> int:
        """Return the number of requests that fill the fleet: twice those that run at a time."""
        return min(self.requests // 4, self.cards * 14)

    def check(self) -> None:
        for name in ("cards", "requests", "seeds"):
            if getattr(self, name) < 1:
                raise errors.Permanent(f"--{name} {getattr(self, name)}: must be at least 1")
        if not (self.models and self.mixes and self.loads) or min(self.loads) <= 0:
            raise errors.Permanent(
                "--models, --mixes and --loads need at least one value each, and loads must be above 0"
            )
        for kind, given, known in (("models", self.models, mig.GEOMETRIES), ("mixes", self.mixes, streams.MIXES)):
            if unknown := [name for name in given if name not in known]:
                raise errors.Permanent(f"--{kind} {' '.join(unknown)}: known are {', '.join(known)}")


class Cell(NamedTuple):
    """The result of one stream with one policy."""

    model: str
    mix: str
    load: float
    seed: int
    policy: str
    outcome: Outcome


@dataclass(slots=True)
class Clock:
    """The seconds that each policy took, and the number of requests."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    requests: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def run(options: Options, progress: Progress) -> report.Report:
    """Replay all streams."""
    options.check()
    machine = report.examine_machine()
    began = time.monotonic()
    clock = Clock()
    cells: list[Cell] = []
    short: dict[str, list[float]] = defaultdict(list)
    for number, model in enumerate(options.models):
        with progress.step(f"Serving streams on {options.cards} x {model}") as step:
            _warm_up(options, model)
            for mix in options.mixes:
                step.update(mix)
                cells += _long_streams(options, model, (number, ALL_MIXES.index(mix)), mix, clock)
                found = _short_streams(options, model, (number, ALL_MIXES.index(mix)), mix)
                for name, rates in found.items():
                    short[name] += rates
    metrics = {**summarize(cells), **_summarize_optimum(short), "decision_us": _decision_us(clock)}
    metrics["wall_s"] = round(time.monotonic() - began, 1)
    params = {**asdict(options), "warm_up": options.warm_up, "short_fleets": _SHORT, "short_load": _SHORT_LOAD}
    return report.Report("mig", params, metrics, machine)


def summarize(cells: Iterable[Cell]) -> dict[str, Any]:
    """Return rates per policy: total, by model, mix and load, by compute slices, and KGWE's margin in each setting."""
    cells = list(cells)
    settings = defaultdict(list)
    for cell in cells:
        settings[cell.model, cell.mix, cell.load].append(cell)
    by_setting = {f"{model} {mix} {load}": _compute_margin(each) for (model, mix, load), each in settings.items()}
    margins = list(by_setting.values())
    per_seed = defaultdict(list)
    for cell in cells:
        per_seed[cell.seed].append(cell)
    return {
        "acceptance": _summarize_rates(cells),
        "accepted_slices": _summarize_rates(cells, slices=True),
        "by_model": _group_cells(cells, lambda cell: cell.model),
        "by_mix": _group_cells(cells, lambda cell: cell.mix),
        "by_load": _group_cells(cells, lambda cell: str(cell.load)),
        "slices_by_mix": _group_cells(cells, lambda cell: cell.mix, slices=True),
        "settings": len(margins),
        "settings_behind": sum(margin < 0 for margin in margins),
        "worst_setting": min(by_setting, key=lambda each: by_setting[each]),
        "worst_margin": round(min(margins), 4),
        "mean_margin": round(statistics.fmean(margins), 4),
        "worst_margin_of_a_seed": round(min(_compute_margin(each) for each in per_seed.values()), 4),
    }


def _compute_margin(cells: Iterable[Cell]) -> float:
    """Return KGWE's rate minus the best rate of the others."""
    rates = _summarize_rates(cells, digits=9)
    return rates[OURS] - max((rate for policy, rate in rates.items() if policy != OURS), default=0.0)


def _summarize_rates(cells: Iterable[Cell], *, slices: bool = False, digits: int = 4) -> dict[str, float]:
    served: dict[str, int] = defaultdict(int)
    asked: dict[str, int] = defaultdict(int)
    for cell in cells:
        served[cell.policy] += cell.outcome.served_slices if slices else cell.outcome.served
        asked[cell.policy] += cell.outcome.asked_slices if slices else cell.outcome.asked
    return {policy: round(served[policy] / asked[policy], digits) for policy in served}


def _group_cells(
    cells: Iterable[Cell], key: Callable[[Cell], str], *, slices: bool = False
) -> dict[str, dict[str, float]]:
    groups = defaultdict(list)
    for cell in cells:
        groups[key(cell)].append(cell)
    return {name: _summarize_rates(group, slices=slices) for name, group in groups.items()}


def _summarize_optimum(short: Mapping[str, list[float]]) -> dict[str, Any]:
    if not short:
        return {"optimum": None}
    means = {name: statistics.fmean(rates) for name, rates in short.items()}
    plain = {name: mean for name, mean in means.items() if name in policies.POLICIES}
    return {
        "optimum": round(means["optimum"], 4),
        "optimum_unrefusing": round(means["optimum_unrefusing"], 4),
        "short_acceptance": {name: round(mean, 4) for name, mean in plain.items()},
        "share_of_optimum": {name: round(mean / means["optimum"], 4) for name, mean in plain.items()},
        "short_streams": len(short["optimum"]),
    }


def _warm_up(options: Options, model: str) -> None:
    """Build tables and caches before the timed part."""
    atlas = _build_atlas(model)
    _replay_all(atlas, "mixed", _draw(options, atlas, (), "mixed", 1.0)[:200], options.cards)


def _long_streams(options: Options, model: str, key: tuple[int, int], mix: str, clock: Clock) -> list[Cell]:
    atlas = _build_atlas(model)
    cells = []
    for load in options.loads:
        for seed in range(options.seeds):
            requests = _draw(options, atlas, (*key, round(load * 1000), seed), mix, load)
            found = _replay_all(atlas, mix, requests, options.cards, clock=clock, warm_up=options.warm_up)
            cells += [Cell(model, mix, load, seed, policy, outcome) for policy, outcome in found.items()]
    return cells


def _short_streams(options: Options, model: str, key: tuple[int, int], mix: str) -> dict[str, list[float]]:
    """Return the served fraction of each short stream, by policy and by optimum."""
    atlas = _build_atlas(model)
    named = streams.name_profiles(atlas, streams.MIXES[mix])
    rates: dict[str, list[float]] = defaultdict(list)
    for cards, length in _SHORT.items():
        for number in range(options.short):
            rng = np.random.default_rng([options.seed, 2, *key, cards, number])
            requests = streams.draw(atlas, named, cards=cards, load=_SHORT_LOAD, requests=length, rng=rng)
            served = {name: each.served for name, each in _replay_all(atlas, mix, requests, cards).items()}
            served["optimum_unrefusing"] = optimum.most_served(
                atlas, cards, requests, at_least=max(served.values()), may_refuse=False
            )
            served["optimum"] = optimum.most_served(atlas, cards, requests, at_least=served["optimum_unrefusing"])
            for name, count in served.items():
                rates[name].append(count / length)
    return rates


def _draw(options: Options, atlas: LayoutGraph, key: tuple[int, ...], mix: str, load: float) -> list[Request]:
    named = streams.name_profiles(atlas, streams.MIXES[mix])
    rng = np.random.default_rng([options.seed, 1, *key])
    return streams.draw(atlas, named, cards=options.cards, load=load, requests=options.requests, rng=rng)


def _replay_all(
    atlas: LayoutGraph, mix: str, requests: list[Request], cards: int, *, clock: Clock | None = None, warm_up: int = 0
) -> dict[str, Outcome]:
    named = streams.name_profiles(atlas, streams.MIXES[mix])
    found = {}
    for name, make in policies.POLICIES.items():
        policy = make(atlas, named, cards)
        began = time.perf_counter()
        found[name] = streams.replay(atlas, policy, cards, requests, warm_up)
        if clock:
            clock.seconds[name] += time.perf_counter() - began
            clock.requests[name] += len(requests)
    return found


def _decision_us(clock: Clock) -> dict[str, float]:
    return {name: round(seconds / clock.requests[name] * 1e6, 1) for name, seconds in clock.seconds.items()}


def _build_atlas(model: str) -> LayoutGraph:
    """Return the layout graph of all profiles without a suffix."""
    geometry = mig.GEOMETRIES[model]
    return layout_graph.get_layout_graph(
        geometry, [name for name, profile in geometry.profiles.items() if profile.is_plain]
    )
