"""The metrics of one simulated node, as its dcgm-exporter would read them now.

Counters (energy, NVLink traffic) sum up what was read between readings, so they only grow. Energy starts at the
consumption of an idle GPU since the node exists. The labels of each row are built when GPUs or their pods change, not
at a scrape.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kgwe.hardware.dcgm import metrics
from kgwe.kube.api import timestamp
from kgwe.model.gpu import catalog
from kgwe.model.simfleet import sensors, usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.kube.api.kgwe import gpunode
    from kgwe.local.fleet.device_assignment import Holder, Unit


@dataclass(slots=True)
class _Row:
    """A GPU, or one slice of it."""

    device: metrics.Device
    labels: str
    memory_mib: int = 0
    share: float = 1.0
    """Fraction of the GPU's compute."""
    holder: Holder | None = None


@dataclass(slots=True)
class _Card:
    model: catalog.GpuModel
    rows: list[_Row]
    """Its slices; for a whole GPU the GPU itself, and again for each further pod that shares it."""
    is_cut: bool
    links: int
    has_nvlink: bool
    faults: metrics.Faults
    energy_j: float
    nvlink_bytes: float = 0.0
    power_w: float = 0.0
    read_at_s: float = 0.0
    idle: sensors.Sensors | None = field(default=None)


class NodeMeter:
    """Reads the GPUs of one node."""

    def __init__(self, obj: gpunode.GPUNode, now_s: float) -> None:
        self.name = obj.metadata.name
        self._cards: list[_Card] = []
        self._holders: Mapping[Unit, Holder] = {}
        self.update(obj, now_s)

    def update(self, obj: gpunode.GPUNode, now_s: float) -> None:
        """Update the GPUs of the node: slices, health, links."""
        before = {card.rows[0].device.uuid: card for card in self._cards if card.rows}
        created = obj.metadata.creationTimestamp
        age_s = max(now_s - timestamp.parse(created).timestamp(), 0.0) if created else 0.0
        self._cards = []
        for device in sorted(obj.status.gpus, key=lambda device: device.index):
            card = self._build_rows(obj, device, age_s)
            if old := before.get(device.uuid):
                card.energy_j, card.nvlink_bytes = old.energy_j, old.nvlink_bytes
                card.power_w, card.read_at_s = old.power_w, old.read_at_s
            self._cards.append(card)
        self.set_holders(self._holders)

    def _build_rows(self, obj: gpunode.GPUNode, device: gpunode.GPUDevice, age_s: float) -> _Card:
        model = catalog.find_model(device.model)
        slices = model.geometry.compute if model.geometry else 1
        rows = [
            _Row(
                self._build_labels(obj, device, instance),
                labels="",
                memory_mib=instance.memoryMiB,
                share=int(instance.profile.split("g.")[0]) / slices,
            )
            for instance in device.mig.instances
        ]
        return _Card(
            model=model,
            rows=rows or [_Row(self._build_labels(obj, device, None), labels="")],
            is_cut=bool(rows),
            links=device.nvlink.links if device.nvlink else 0,
            has_nvlink=device.nvlink is not None,
            faults=metrics.Faults(device.health.lastXID or 0),
            energy_j=model.idle_w * age_s,
        )

    @staticmethod
    def _build_labels(
        obj: gpunode.GPUNode, device: gpunode.GPUDevice, instance: gpunode.MIGInstance | None
    ) -> metrics.Device:
        return metrics.Device(
            index=device.index,
            uuid=device.uuid,
            bus_id=device.pcie.busID if device.pcie else "",
            model_name=device.model,
            hostname=obj.metadata.name,
            driver_version=obj.status.driverVersion,
            mig_profile=instance.profile if instance else "",
            mig_instance=instance.instanceID if instance else 0,
        )

    def set_holders(self, holders: Mapping[Unit, Holder]) -> None:
        """Set which container has which GPU."""
        self._holders = holders
        shared: dict[int, list[Holder]] = collections.defaultdict(list)
        for (index, part), sharer in sorted(holders.items(), key=lambda each: -(each[0][1] or 0)):
            if part is not None and part < 0:
                shared[index].append(sharer)
        for card in self._cards:
            if not card.is_cut and self._share(card, shared.get(card.rows[0].device.index, [])):
                continue
            for row in card.rows:
                instance = row.device.mig_instance if row.device.mig_profile else None
                holder = holders.get((row.device.index, instance))
                if not row.labels or _describe_owner(holder) != _describe_owner(row.holder):
                    row.labels = metrics.label_block(row.device, _describe_owner(holder))
                row.holder = holder

    @staticmethod
    def _share(card: _Card, holders: Sequence[Holder]) -> bool:
        """Return a row for each pod that shares the GPU, with the values of the GPU: the metrics cannot separate
        them.
        """
        device = card.rows[0].device
        if not holders:
            card.rows = card.rows[:1]
            return False
        card.rows = [_Row(device, metrics.label_block(device, _describe_owner(each)), holder=each) for each in holders]
        return True

    def rows(self, now_s: float) -> list[metrics.Row]:
        """Return all rows of the node with current values."""
        found: list[metrics.Row] = []
        for card in self._cards:
            uses = [row.holder.use_at(now_s) if row.holder else usage.IDLE for row in card.rows]
            reading = self._read(card, uses, now_s)
            for row, how in zip(card.rows, uses, strict=True):
                if card.is_cut:
                    values = metrics.read_instance_values(reading, how, row.memory_mib)
                else:
                    values = metrics.read_gpu_values(reading, how if len(uses) == 1 else _combine(card, uses))
                found.append((row.labels, values))
        return found

    @staticmethod
    def _read(card: _Card, uses: list[usage.Usage], now_s: float) -> metrics.Reading:
        if all(how is usage.IDLE for how in uses):
            read = card.idle = card.idle or sensors.read_sensors(card.model, usage.IDLE, links=card.links)
        else:
            read = sensors.read_sensors(card.model, _combine(card, uses), links=card.links)
        passed_s = max(now_s - card.read_at_s, 0.0) if card.read_at_s else 0.0
        card.energy_j += passed_s * (card.power_w + read.power_w) / 2
        card.nvlink_bytes += passed_s * read.nvlink_bytes_per_s
        card.power_w, card.read_at_s = read.power_w, now_s
        counters = metrics.Counters(int(card.energy_j * 1000), int(card.nvlink_bytes))
        return metrics.Reading(card.model, read, counters, card.faults, card.has_nvlink)


def _describe_owner(holder: Holder | None) -> metrics.Owner | None:
    return None if holder is None else holder.owner


def _combine(card: _Card, uses: list[usage.Usage]) -> usage.Usage:
    """Return the combined load of the slices or sharing pods on the GPU."""
    if len(uses) == 1 and not card.is_cut:
        return uses[0]
    parts = [(row.share, how) for row, how in zip(card.rows, uses, strict=True)]
    return usage.Usage(
        util=min(sum(share * how.util for share, how in parts), 1.0),
        # On a partitioned GPU each slice has its own.
        memory=0.0 if card.is_cut else min(sum(how.memory for how in uses), 1.0),
        tensor=min(sum(share * how.tensor for share, how in parts), 1.0),
        dram=min(sum(share * how.dram for share, how in parts), 1.0),
    )
