"""Combines driver readings, DCGM values, processes and device holders into one sample of the machine."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kgwe import errors
from kgwe.model.gpu import catalog, mig
from kgwe.model.gpu.driver_data import Remote
from kgwe.model.telemetry import attribution
from kgwe.model.telemetry.rates import Rates
from kgwe.model.telemetry.sample import Activity, GpuSample, InstanceSample, Sample, Series, Traffic
from kgwe.sharing.mig import share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.gpu.driver_data import Device, Instance, Machine, Process, Reading
    from kgwe.model.telemetry.attribution import Load, TimeShares
    from kgwe.model.telemetry.sample import Unit

_BYTES_PER_GB = 1e9


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Data that the driver does not have: the pods of processes, the holders of devices, and DCGM's values.

    A pod is `namespace/name` if known, else its uid.
    """

    pods: Mapping[int, str] = field(default_factory=dict)
    """pid -> pod, for processes in pods."""
    holders: Mapping[str, Sequence[str]] | None = None
    """UUID of a GPU or slice -> pods that hold it; None if unknown."""
    mps: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """pid of an MPS server -> pids of its clients."""
    activities: Mapping[Unit, Activity] = field(default_factory=dict)

    def holders_of(self, uuid: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.holders or {}).get(uuid, ())))


class _Port(NamedTuple):
    """One direction of one NVLink."""

    uuid: str
    link: int
    is_tx: bool


class Sampler:
    """Computes samples; keeps the counters of the previous sample for rates."""

    def __init__(self) -> None:
        self._rates: Rates[_Port] = Rates()

    def take(
        self, machine: Machine, readings: Iterable[Reading], at_s: float, around: Surroundings | None = None
    ) -> Sample:
        """Return a sample at `at_s` of a monotonic clock; a GPU without a reading is left out."""
        around = around or Surroundings()
        by_uuid = {reading.uuid: reading for reading in readings}
        present = [device for device in machine.devices if device.uuid in by_uuid]
        rates = self._nvlink_rates(present, by_uuid, at_s)
        buses = {device.slot.bus.lower(): device.uuid for device in machine.devices}
        return Sample(at_s, tuple(_card(device, by_uuid[device.uuid], rates, buses, around) for device in present))

    def _nvlink_rates(
        self, devices: Sequence[Device], readings: Mapping[str, Reading], at_s: float
    ) -> dict[_Port, float]:
        counts: dict[_Port, int] = {}
        most: dict[_Port, float] = {}
        for device in devices:
            reading = readings[device.uuid]
            limits = {link.index: link_gb_per_s(link.version, link.gb_per_s) for link in device.links}
            for is_tx, counters in ((True, reading.nvlink_tx_bytes), (False, reading.nvlink_rx_bytes)):
                for link, value in counters:
                    port = _Port(device.uuid, link, is_tx)
                    counts[port] = value
                    if limit := limits.get(link):
                        most[port] = limit * _BYTES_PER_GB
        return self._rates.update(counts, at_s, most)


def list_pids(readings: Iterable[Reading]) -> set[int]:
    """Return all processes on any GPU."""
    return {process.pid for reading in readings for process in reading.processes}


def link_gb_per_s(version: int | None, said: float | None) -> float | None:
    """Return the rate of one link in one direction: from the driver, else the usual one of the generation; None if
    unknown.
    """
    if said:
        return said
    usual = catalog.NVLINK_GB_PER_S.get(version) if version is not None else None
    return None if usual is None else float(usual)


# --- cards ----------------------------------------------------------------------------------------------


def _card(
    device: Device, reading: Reading, rates: Mapping[_Port, float], buses: Mapping[str, str], around: Surroundings
) -> GpuSample:
    if reading.is_lost or device.is_lost:
        return GpuSample(device, reading, attribution.UNKNOWN)
    links = {link for link, _ in (*reading.nvlink_tx_bytes, *reading.nvlink_rx_bytes)}
    activity = around.activities.get((device.uuid, None), Activity())
    nvlink = _sum_traffic(device.uuid, links, rates)
    peers = {
        peer: _sum_traffic(device.uuid, [link for link in theirs if link in links], rates)
        for peer, theirs in _list_peer_links(device, buses).items()
    }
    if device.mig.is_enabled:
        instances = tuple(_instance(device, each, reading, around) for each in device.mig.instances)
        shares = _cut_shares(device, instances)
        return GpuSample(device, reading, shares, activity, None, nvlink, peers, instances)
    on_it = _list_loads(reading.processes, around, device.uuid)
    busy = reading.util if reading.util is not None else activity.engine
    shares = attribution.split_time(busy, on_it, _find_sole_holder(around.holders_of(device.uuid)))
    memory = attribution.split_memory(_total_mib(device, reading), reading.memory_used_mib, on_it)
    return GpuSample(device, reading, shares, activity, memory, nvlink, peers)


def _instance(device: Device, instance: Instance, reading: Reading, around: Surroundings) -> InstanceSample:
    processes = [each for each in reading.processes if each.instance_id == instance.instance_id]
    held = around.holders_of(instance.uuid) if instance.uuid else ()
    on_it = _list_loads(processes, around, instance.uuid)
    activity = around.activities.get((device.uuid, instance.instance_id), Activity())
    used = dict(reading.instance_memory_mib).get(instance.instance_id)
    return InstanceSample(
        instance,
        attribution.split_time(activity.engine, on_it, _find_sole_holder(held)),
        activity,
        used,
        attribution.split_memory(instance.memory_mib, used, on_it),
        in_use=bool(held or processes),
    )


def _total_mib(device: Device, reading: Reading) -> int | None:
    return reading.memory_total_mib if reading.memory_total_mib is not None else device.memory_mib


def _find_sole_holder(holders: Sequence[str]) -> str:
    return holders[0] if len(holders) == 1 else attribution.NO_POD


def _list_loads(processes: Sequence[Process], around: Surroundings, uuid: str) -> tuple[Load, ...]:
    """Return processes as loads of pods. If one pod holds the device, a process of an unknown pod counts for that
    pod.
    """
    pods: Mapping[int, str] = around.pods
    if sole := _find_sole_holder(around.holders_of(uuid)):
        pods = {pid: pod if "/" in pod else sole for pid, pod in pods.items()}
    return attribution.group_loads(processes, pods, around.mps)


def _cut_shares(device: Device, instances: Sequence[InstanceSample]) -> TimeShares:
    weights = _compute_weights(
        device.product, tuple((each.instance.profile, each.instance.start) for each in instances)
    )
    if weights is None:
        return attribution.UNKNOWN
    parts, whole = weights
    return attribution.combine_instances(
        [(part, each.shares) for part, each in zip(parts, instances, strict=True)], whole
    )


@functools.lru_cache(maxsize=256)
def _compute_weights(product: str, layout: tuple[tuple[str, int], ...]) -> tuple[tuple[int, ...], int] | None:
    """Return the fraction of its GPU that each instance is, over a common denominator; None if GPU or layout is
    unknown.
    """
    try:
        geometry = catalog.find_model(product).geometry
        if geometry is None:
            return None
        placements = [mig.Placement(geometry.profile(name), start) for name, start in layout]
        settled = share.settle_shares(geometry, placements)
    except errors.Permanent:
        return None
    whole = math.lcm(1, *(part.denominator for part in settled))
    return tuple(int(part * whole) for part in settled), whole


# --- links ----------------------------------------------------------------------------------------------


def _list_peer_links(device: Device, buses: Mapping[str, str]) -> dict[str, list[int]]:
    """Return uuid -> links that lead directly to that GPU."""
    found: dict[str, list[int]] = {}
    for link in device.links:
        peer = buses.get(link.remote_bus.lower()) if link.remote is Remote.GPU else None
        if peer is not None and link.is_up is not False:
            found.setdefault(peer, []).append(link.index)
    return found


def _sum_traffic(uuid: str, links: Iterable[int], rates: Mapping[_Port, float]) -> Traffic:
    """Return the traffic of several links; None unless all are known, because a partial sum would look like a drop."""
    chosen = list(links)
    return Traffic(
        *(
            math.fsum(rates[_Port(uuid, link, is_tx)] for link in chosen)
            if chosen and all(_Port(uuid, link, is_tx) in rates for link in chosen)
            else None
            for is_tx in (True, False)
        )
    )


def pair_gbit_per_s(machine: Machine) -> dict[tuple[str, str], float]:
    """Return the NVLink capacity between two GPUs of the machine, in one direction at line rate, each pair once.

    With a switch each link of a GPU reaches all other GPUs: a pair has the capacity of the poorer GPU, shared with
    its other peers. Links that are down do not count; a pair with unknown rate is left out.
    """
    found: dict[tuple[str, str], float] = {}
    for i, one in enumerate(machine.devices):
        for other in machine.devices[i + 1 :]:
            rate = _pair_gb_per_s(one, other)
            if rate:
                found[one.uuid, other.uuid] = rate * 8
    return found


def _pair_gb_per_s(one: Device, other: Device) -> float | None:
    direct = [
        link_gb_per_s(link.version, link.gb_per_s)
        for link in one.links
        if link.remote is Remote.GPU and link.is_up and link.remote_bus.lower() == other.slot.bus.lower()
    ]
    if direct:
        return _sum(direct)
    mine, theirs = _switched_gb_per_s(one), _switched_gb_per_s(other)
    return None if mine is None or theirs is None else min(mine, theirs)


def _switched_gb_per_s(device: Device) -> float | None:
    links = [link for link in device.links if link.remote is Remote.SWITCH and link.is_up]
    return _sum([link_gb_per_s(link.version, link.gb_per_s) for link in links])


def _sum(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return math.fsum(known) if known and len(known) == len(rates) else None


# --- windows --------------------------------------------------------------------------------------------


def list_series(sample: Sample) -> dict[Series, float | None]:
    """Return the values of a sample to aggregate over time, per device and per pod; None if not measured."""
    found: dict[Series, float | None] = {}
    for card in sample.gpus:
        uuid, reading = card.device.uuid, card.reading
        found |= {
            Series(uuid, "util"): _busy_share(card.shares),
            Series(uuid, "memory_used_mib"): reading.memory_used_mib,
            Series(uuid, "power_w"): reading.power_w,
            Series(uuid, "tensor"): card.activity.tensor,
        }
        for each in card.instances:
            if each.instance.uuid:
                found |= {
                    Series(each.instance.uuid, "util"): each.util,
                    Series(each.instance.uuid, "memory_used_mib"): each.memory_used_mib,
                    Series(each.instance.uuid, "tensor"): each.activity.tensor,
                }
        for pod, part in card.shares.pods:
            found[Series(uuid, "share", pod)] = part / attribution.WHOLE if not card.shares.unknown else None
        for pod, mib in _pod_memory(card).items():
            found[Series(uuid, "memory_mib", pod)] = mib
    return found


def _busy_share(shares: TimeShares) -> float | None:
    return None if shares.unknown else shares.busy / attribution.WHOLE


def _pod_memory(card: GpuSample) -> dict[str, int]:
    found: dict[str, int] = {}
    for memory in (card.memory, *(each.memory for each in card.instances)):
        for pod, mib in memory.pods if memory else ():
            found[pod] = found.get(pod, 0) + mib
    return found
