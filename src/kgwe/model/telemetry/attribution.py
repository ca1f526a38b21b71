"""Attribution of GPU usage to pods.

A *unit* is what processes run on: a GPU, or one MIG slice of a partitioned GPU. Drivers and exporters know how busy a
unit is, and sometimes how busy each process keeps it. The two are measured at different moments and never quite agree.
Here they are reconciled, in integers, so that nothing is counted twice and nothing is lost:

    pods + other + idle + unknown = WHOLE, exactly, for every unit and for every GPU

    pods      the usage of each pod's processes
    other     busy, but not by a process of a known pod: host processes, or processes that ended too soon
    idle      measured, and nothing ran
    unknown   not measured: never shown as idle

The usage of the whole unit is never exceeded: four processes that each report 99 % of one GPU had a quarter each. Where
processes account for less than the whole, the rest is `other`, unless one pod has the unit to itself. Processes without
a figure of their own share the remainder by the memory they hold: an estimate, and marked as one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.gpu.driver_data import Process

#: All of a unit; a share is a number of millionths.
WHOLE: Final = 1_000_000

NO_POD: Final = ""


@dataclass(frozen=True, slots=True)
class Load:
    """The usage of a unit by one process."""

    pod: str
    """The pod of the process; empty: unknown."""
    util: float | None = None
    memory_mib: int | None = None
    is_estimate: bool = False


@dataclass(frozen=True, slots=True)
class TimeShares:
    """The time of a unit, split. The parts must add up to WHOLE."""

    pods: tuple[tuple[str, int], ...] = ()
    """(pod, part), each pod once, in order of name; a pod that is there and did nothing has 0."""
    other: int = 0
    idle: int = 0
    unknown: int = 0
    is_estimate: bool = False
    """Part of it was split by memory, because it was not measured."""

    def __post_init__(self) -> None:
        parts = [*(part for _, part in self.pods), self.other, self.idle, self.unknown]
        if sum(parts) != WHOLE or min(parts) < 0:
            raise errors.InvariantBroken(f"shares of a GPU do not add up: {self.pods}, {parts}")

    @property
    def busy(self) -> int:
        return WHOLE - self.idle - self.unknown

    def share_of(self, pod: str) -> int:
        return dict(self.pods).get(pod, 0)


UNKNOWN: Final = TimeShares(unknown=WHOLE)


@dataclass(frozen=True, slots=True)
class Memory:
    """A unit's memory in MiB, split: pods + other + free = total."""

    pods: tuple[tuple[str, int], ...]
    other: int
    """Of no pod that is known: the host's processes, the driver's own."""
    free: int

    @property
    def total(self) -> int:
        return sum(part for _, part in self.pods) + self.other + self.free


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole numbers in proportion to the weights, by largest remainder; the sum is exact.

    Weights that are all zero count as equal. Of equal remainders the first gets more.
    """
    if not weights:
        return []
    whole = sum(weights)
    if whole == 0:
        weights, whole = [1] * len(weights), len(weights)
    parts = [total * weight // whole for weight in weights]
    left = total - sum(parts)
    # Sorting is stable, so equal remainders keep their order.
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in by_remainder[:left]:
        parts[i] += 1
    return parts


# --- processes ------------------------------------------------------------------------------------------


def group_loads(
    processes: Iterable[Process], pods: Mapping[int, str], mps: Mapping[int, Sequence[int]] | None = None
) -> tuple[Load, ...]:
    """The processes of a unit as loads of pods; `pods` is pid -> pod, `mps` the clients of each MPS server by pid.

    All clients of an MPS server run in the server's one context. Where the driver books their work on the server, it is
    handed on to those clients that have no figure of their own, or 0, by memory; a client the driver does not list is
    added. The server itself keeps only what no client can have done.
    """
    found = {process.pid: process for process in processes}
    given: dict[int, Load] = {
        pid: Load(pods.get(pid, NO_POD), process.util, process.memory_mib) for pid, process in found.items()
    }
    for server, clients in (mps or {}).items():
        if server in given:
            _pass_on_to_clients(given, server, clients, pods)
    return tuple(given.values())


def _pass_on_to_clients(given: dict[int, Load], server: int, clients: Sequence[int], pods: Mapping[int, str]) -> None:
    for pid in clients:
        given.setdefault(pid, Load(pods.get(pid, NO_POD)))
    silent = [pid for pid in dict.fromkeys(clients) if pid != server and not given[pid].util]
    util = given[server].util
    if not silent or not util:
        return
    parts = apportion(_parts(util), [given[pid].memory_mib or 0 for pid in silent])
    for pid, part in zip(silent, parts, strict=True):
        given[pid] = replace(given[pid], util=part / WHOLE, is_estimate=len(silent) > 1)
    given[server] = replace(given[server], util=0.0)


# --- time -----------------------------------------------------------------------------------------------


def split_time(busy: float | None, on_it: Sequence[Load], holder: str = NO_POD) -> TimeShares:
    """A unit's time among the pods on it; `busy` is what was measured of the unit as a whole.

    `holder`: the one pod that has the unit to itself, if that is known; what no other process did is then its own.
    """
    measured = [load for load in on_it if load.util is not None]
    silent = [load for load in on_it if load.util is None]
    weights = [_parts(load.util or 0.0) for load in measured]
    if busy is None:
        return _split_processes_only(measured, weights, silent)
    whole = _parts(busy)
    given = min(sum(weights), whole)
    parts = apportion(given, weights) if given else [0] * len(weights)
    rest = whole - given
    rests = apportion(rest, [load.memory_mib or 0 for load in silent])
    mine = rest if not silent else 0
    return _shares(
        [*zip(measured, parts, strict=True), *zip(silent, rests, strict=True), (Load(holder), mine)],
        idle=WHOLE - whole,
        is_estimate=rest > 0 and len({load.pod for load in silent}) > 1,
    )


def _split_processes_only(measured: Sequence[Load], weights: list[int], silent: Sequence[Load]) -> TimeShares:
    """Only processes were measured: they are the whole if every one was, else the least there is."""
    if not measured:
        pods = tuple((pod, 0) for pod in sorted(_pods(silent)))
        return TimeShares(pods, unknown=WHOLE)
    given = min(sum(weights), WHOLE)
    parts = apportion(given, weights) if given else [0] * len(weights)
    booked = [*zip(measured, parts, strict=True), *((load, 0) for load in silent)]
    if silent:
        return _shares(booked, unknown=WHOLE - given)
    return _shares(booked, idle=WHOLE - given)


def _shares(
    booked: Iterable[tuple[Load, int]], *, idle: int = 0, unknown: int = 0, is_estimate: bool = False
) -> TimeShares:
    pods: dict[str, int] = {}
    other = 0
    for load, part in booked:
        is_estimate = is_estimate or (load.is_estimate and part > 0)
        if load.pod == NO_POD:
            other += part
        else:
            pods[load.pod] = pods.get(load.pod, 0) + part
    return TimeShares(tuple(sorted(pods.items())), other, idle, unknown, is_estimate)


def _pods(on_it: Iterable[Load]) -> set[str]:
    return {load.pod for load in on_it if load.pod != NO_POD}


def _parts(util: float) -> int:
    return min(max(round(util * WHOLE), 0), WHOLE)


def combine_instances(parts: Sequence[tuple[int, TimeShares]], whole: int) -> TimeShares:
    """A cut GPU's time: of each instance its weight (of `whole`) and its shares; what is not cut is idle."""
    cut = sum(weight for weight, _ in parts)
    if cut > whole or min((weight for weight, _ in parts), default=0) < 0:
        raise errors.InvariantBroken(f"instances are {cut} of {whole} of a GPU")
    pods: dict[str, int] = {}
    other = unknown = 0
    idle = (whole - cut) * WHOLE
    for weight, shares in parts:
        for pod, part in shares.pods:
            pods[pod] = pods.get(pod, 0) + weight * part
        other += weight * shares.other
        idle += weight * shares.idle
        unknown += weight * shares.unknown
    names = sorted(pods)
    *of_pods, other, idle, unknown = apportion(WHOLE, [*(pods[name] for name in names), other, idle, unknown])
    is_estimate = any(shares.is_estimate for _, shares in parts)
    return TimeShares(tuple(zip(names, of_pods, strict=True)), other, idle, unknown, is_estimate)


def split_by_shares(pieces: Mapping[str, int], of: int) -> TimeShares:
    """The parts of a unit that pods hold, if it is offered in `of` equal shares; shares that no pod holds are idle.

    If pods hold more shares than are offered, each gets its part of the whole.
    """
    names = sorted(name for name, count in pieces.items() if count > 0)
    weights = [pieces[name] for name in names]
    *parts, idle = apportion(WHOLE, [*weights, max(of - sum(weights), 0 if names else 1)])
    return TimeShares(tuple(zip(names, parts, strict=True)), idle=idle)


# --- memory ---------------------------------------------------------------------------------------------


def split_memory(total_mib: int | None, used_mib: int | None, on_it: Sequence[Load]) -> Memory | None:
    """A unit's memory among the pods on it; None where it was not measured."""
    if total_mib is None or used_mib is None:
        return None
    sizes = [load.memory_mib or 0 for load in on_it]
    if sum(sizes) > total_mib:
        # Processes that share memory each report all of it.
        sizes = apportion(total_mib, sizes)
    used = min(max(used_mib, sum(sizes)), total_mib)
    pods: dict[str, int] = {}
    for load, size in zip(on_it, sizes, strict=True):
        if load.pod != NO_POD:
            pods[load.pod] = pods.get(load.pod, 0) + size
    return Memory(tuple(sorted(pods.items())), used - sum(pods.values()), total_mib - used)
