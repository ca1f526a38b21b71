"""The openb traces (Alibaba cluster-trace-gpu-v2023) and the protocol of the FGD experiment.

An experiment takes each pod of a list once, in random order, and continues with random clones until the pods request
130 % of the fleet's GPUs; a list that requests more loses random pods. Times in the files are not used: no pod
leaves. A policy may know the mix of the pods, counted from the original list.

A seed gives the same order on all machines, but not the order of the original (Go) program.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from kgwe import errors
from kgwe.model.units.phrasing import format_count
from kgwe.placement.packing.fleet import GPU_MILLI, Demand, NodeSpec, Pod
from kgwe.placement.packing.policy import Mix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.placement.packing.fleet import IntArray

#: arrivals end when they request this share of the fleet
TUNE = 1.3
#: the mix holds the most frequent demands that cover this share of the pods
TYPICAL_SHARE = 0.95
NODE_FILE = "openb_node_list_gpu_node.csv"
PUBLISHED_FILE = Path("published") / "alloc_by_policy.csv"


@dataclass(frozen=True, slots=True)
class Trace:
    """A pod list, sorted by pod name."""

    name: str
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """The order of arrivals and of nodes for one seed."""

    nodes: tuple[NodeSpec, ...]
    arrivals: tuple[Pod, ...]


def find_folder() -> Path:
    """Return the directory of the openb files: $KGWE_DATA/openb, or shared/data/openb in the current directory or
    above.
    """
    named = os.environ.get("KGWE_DATA")
    places = [Path(named)] if named else [base / "shared" / "data" for base in (Path.cwd(), *Path.cwd().parents)]
    for place in places:
        if (place / "openb" / NODE_FILE).is_file():
            return place / "openb"
    raise errors.NotFound(
        f"no openb/{NODE_FILE} under {', '.join(map(str, places))}; set KGWE_DATA to the folder that holds openb/,"
        " or name files with --trace and --nodes"
    )


def read_nodes(path: Path) -> tuple[NodeSpec, ...]:
    """Return the nodes with GPUs of a node list."""
    nodes = tuple(node for _, node in _read(path, "node list", _node) if node.gpus)
    if not nodes:
        raise errors.Permanent(f"{path} has no node with a GPU")
    return nodes


def read_trace(path: Path) -> Trace:
    """Return a pod list; shares are capped at a whole GPU."""
    named = sorted(_read(path, "pod list", _pod))
    if not any(pod.demand.num_gpu for _, pod in named):
        raise errors.Permanent(f"{path} has no pod that requests a GPU")
    return Trace(path.stem.removeprefix("openb_pod_list_"), tuple(pod for _, pod in named))


def count_mix(pods: Sequence[Pod]) -> Mix:
    """Return the typical demands: the most frequent ones, ties by larger demand, until they cover 95 % of the pods."""
    counts = Counter(pod.demand for pod in pods)
    ranked = sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True)
    covered = np.cumsum([count for _, count in ranked])
    kept = ranked[: int(np.searchsorted(covered, TYPICAL_SHARE * len(pods))) + 1]
    return Mix(tuple(demand for demand, _ in kept), tuple(count for _, count in kept))


def draw_experiment(trace: Trace, nodes: Sequence[NodeSpec], seed: int, tune: float = TUNE) -> Experiment:
    """Return the order of arrivals and nodes for a seed."""
    rng = np.random.default_rng(seed)
    milli: IntArray = np.array([pod.demand.total_milli for pod in trace.pods])
    target = tune * GPU_MILLI * sum(node.gpus for node in nodes)
    order = rng.permutation(len(trace.pods))
    order = _trim(order, milli, target, rng) if milli.sum() > target else _extend(order, trace, milli, target, rng)
    if not len(order):
        raise errors.Permanent(
            f"trace {trace.name}: its pods request more than {format_count(len(nodes), 'node')} can hold"
        )
    renamed = rng.permutation(len(nodes))
    return Experiment(tuple(nodes[i] for i in renamed), tuple(trace.pods[i] for i in order))


def _extend(order: IntArray, trace: Trace, milli: IntArray, target: float, rng: np.random.Generator) -> IntArray:
    """Append clones until the next one (its share of one GPU, as in the original) would exceed the target."""
    asked = int(milli.sum())
    clones: list[int] = []
    while asked < target:
        clone = int(rng.integers(len(trace.pods)))
        if asked + trace.pods[clone].demand.gpu_milli > target:
            break
        asked += int(milli[clone])
        clones.append(clone)
    return np.concatenate([order, np.array(clones, dtype=np.int64)])


def _trim(order: IntArray, milli: IntArray, target: float, rng: np.random.Generator) -> IntArray:
    """Delete random pods until the rest requests no more than the target."""
    victims = rng.permutation(len(order))
    left = milli.sum() - np.cumsum(milli[order[victims]])
    return np.delete(order, victims[: int(np.argmax(left <= target)) + 1])


_Row = TypeVar("_Row")


def _read(path: Path, kind: str, parse: Callable[[dict[str, str]], tuple[str, _Row]]) -> list[tuple[str, _Row]]:
    """Return all rows by name."""
    line = 1
    found = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for line, row in enumerate(csv.DictReader(file), start=2):  # noqa: B007 -- told in the error
                found.append(parse(row))
    except OSError as exc:
        raise errors.NotFound(f"cannot read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise errors.Permanent(f"{path} is not an openb {kind}: not text") from exc
    except (KeyError, ValueError, TypeError, csv.Error) as exc:
        problem = f"no column {exc}" if isinstance(exc, KeyError) else str(exc)
        raise errors.Permanent(f"{path} is not an openb {kind}: row {line}: {problem}") from exc
    return found


def _node(row: dict[str, str]) -> tuple[str, NodeSpec]:
    cpu, memory, cards = (_amount(row, column) for column in ("cpu_milli", "memory_mib", "gpu"))
    return row["sn"], NodeSpec(row["sn"], cpu, memory, cards, row["model"])


def _pod(row: dict[str, str]) -> tuple[str, Pod]:
    num = _amount(row, "num_gpu")
    milli = GPU_MILLI if num > 1 else min(_amount(row, "gpu_milli"), GPU_MILLI)
    if num and not milli:
        raise ValueError("num_gpu is 1, but gpu_milli is 0")
    spec = row.get("gpu_spec") or ""
    demand = Demand(_amount(row, "cpu_milli"), milli if num else 0, num, spec if num else "")
    return row["name"], Pod(demand, _amount(row, "memory_mib"))


def _amount(row: dict[str, str], column: str) -> int:
    text = row[column]
    if not (text or "").strip().isdecimal():
        raise ValueError(f"{column} is {text!r}, not a whole number")
    return int(text)
