"""How well methods find the GPUs' part of a node's price, on GCP, which lists GPUs and hosts separately.

    market     CPU and memory prices from CPU-only nodes and from hosts of other families, never of the judged one
    fixed      95 % GPUs
    gpu-only   100 % GPUs
    opencost   the rule of OpenCost: a default price per GPU, vCPU and GiB, scaled to the node

An error is the difference of the GPUs' part in percentage points. Each shape counts once: the mean over its zones.
A harder variant leaves out the whole generation (a2, a3, g2).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.forecast import data
from kgwe.costing import money
from kgwe.costing.prices import gcp
from kgwe.costing.split import GIB, HostSample, HostShape, SplitMethod, estimate_host_price, split_rate
from kgwe.store.ledger.price_files import load_default_book

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

# The default prices of OpenCost, in dollars per hour.
_OPENCOST_GPU: Final = 0.95
_OPENCOST_VCPU: Final = 0.031611
_OPENCOST_GIB: Final = 0.004237
_LEAST_FAMILIES: Final = 2


class Shape(NamedTuple):
    """A GCP instance type in one zone, with the listed prices of its host and of its GPUs."""

    name: str
    family: str
    gpus: int
    vcpus: Fraction
    gib: Fraction
    host: int
    accelerators: int

    @property
    def node(self) -> int:
        return self.host + self.accelerators

    @property
    def generation(self) -> str:
        return self.family.partition("-")[0]


@dataclass(frozen=True, slots=True)
class Options:
    data: Path


def run(options: Options) -> report.Report:
    """Measure all methods; Permanent if the file has no usable shapes."""
    machine = report.examine_machine()
    shapes = read_shapes(options.data)
    if len({each.family for each in shapes}) < _LEAST_FAMILIES:
        raise errors.Permanent(
            f"{options.data} has fewer than {_LEAST_FAMILIES} GCP families with separate host prices"
        )
    by_method: dict[str, Callable[[Shape], float]] = {
        "market": _make_market(shapes, lambda each: each.family),
        "market_by_generation": _make_market(shapes, lambda each: each.generation),
        "fixed": lambda each: _split_share(SplitMethod.FIXED, each),
        "gpu-only": lambda each: _split_share(SplitMethod.GPU_ONLY, each),
        "opencost": _share_by_opencost,
    }
    found = {name: _measure(shapes, share) for name, share in by_method.items()}
    metrics: dict[str, Any] = {
        "mean_error_points": {name: statistics.fmean(map(abs, errors_.values())) for name, errors_ in found.items()},
        "worst_error_points": {name: max(map(abs, errors_.values())) for name, errors_ in found.items()},
        "error_points": {name: dict(sorted(errors_.items())) for name, errors_ in found.items()},
        "shapes": len({each.name for each in shapes}),
    }
    return report.Report("pricesplit", {"data": options.data.name}, metrics, machine)


def read_shapes(path: Path) -> list[Shape]:
    """Return the GCP shapes whose host and GPUs are both priced. A host that costs nothing is bundled: left out."""
    rows = data.read_rows(path, ("cloud", "instance_type", "accelerator", "price_usd_h", "zone"))
    accelerators = {
        (row["accelerator"], int(float(row["accelerator_count"])), row["zone"]): money.parse_dollars(row["price_usd_h"])
        for row in rows
        if row["cloud"] == "gcp" and row["price_usd_h"]
    }
    shapes = []
    for row in rows:
        gpus = gcp.find_gpus(row["instance_type"]) if row["cloud"] == "gcp-host" else None
        listed = accelerators.get((gpus.accelerator, gpus.gpus, row["zone"])) if gpus else None
        host = money.parse_dollars(row["price_usd_h"] or "0")
        if gpus and listed and host:
            size = Fraction(row["vcpus"]), Fraction(row["memory_gib"])
            shapes.append(Shape(row["instance_type"], gpus.family, gpus.gpus, *size, host, listed))
    return shapes


def _make_market(shapes: Sequence[Shape], group_of: Callable[[Shape], str]) -> Callable[[Shape], float]:
    """Return the market method that never sees a host of the judged group."""
    basis = load_default_book().host_samples
    prices = {
        group: estimate_host_price(
            [*basis, *(_make_sample(each) for each in shapes if group_of(each) != group)],
        )
        for group in {group_of(each) for each in shapes}
    }

    def share(each: Shape) -> float:
        rates = split_rate(SplitMethod.MARKET, each.node, _host_shape(each), prices[group_of(each)])
        return rates.gpu / rates.total

    return share


def _make_sample(each: Shape) -> HostSample:
    return HostSample(each.family, each.vcpus, each.gib, each.host)


def _host_shape(each: Shape) -> HostShape:
    return HostShape(int(each.vcpus * 1000), int(each.gib * GIB))


def _split_share(method: SplitMethod, each: Shape) -> float:
    rates = split_rate(method, each.node, _host_shape(each), None)
    return rates.gpu / rates.total


def _share_by_opencost(each: Shape) -> float:
    gpu = _OPENCOST_GPU * each.gpus
    return gpu / (gpu + _OPENCOST_VCPU * float(each.vcpus) + _OPENCOST_GIB * float(each.gib))


def _measure(shapes: Sequence[Shape], share: Callable[[Shape], float]) -> Mapping[str, float]:
    """Return the mean error of each shape over its zones, in points."""
    found: dict[str, list[float]] = {}
    for each in shapes:
        found.setdefault(each.name, []).append(100 * (share(each) - each.accelerators / each.node))
    return {name: statistics.fmean(values) for name, values in found.items()}
