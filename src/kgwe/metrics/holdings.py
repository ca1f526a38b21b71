"""Pods that hold devices by the kubelet's word, for exporters that do not name them. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kgwe.metrics.exposition import Scrape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.model.usage.window import Device, PodKey


class Holding(NamedTuple):
    """A pod holds a device now."""

    node: str
    uuid: str
    instance: str
    """GPU instance id of a MIG slice; empty for a whole GPU."""
    pod: PodKey
    container: str = ""


Holders = dict[tuple[str, str, str], list[Holding]]
"""(node, uuid, instance) -> the pods that hold it."""


def index_holdings(holdings: Iterable[Holding]) -> Holders:
    """Return the holdings by device."""
    held: Holders = {}
    for each in holdings:
        held.setdefault(each[:3], []).append(each)
    return held


def attach_holders(scrape: Scrape, held: Holders) -> Scrape:
    """Return the scrape with a row per holder for devices whose rows name no pod.

    Pods that the exporter names stay. A shared GPU without names gets one row for each pod that holds it.
    """
    named = {(device.key[:3], device.key.pod) for device in scrape.devices}
    devices: list[Device] = []
    rows: list[int] = []
    for row, device in enumerate(scrape.devices):
        holders = held.get(device.key[:3], ()) if device.key.pod is None else ()
        missing = [each for each in holders if (device.key[:3], each.pod) not in named]
        keep = not missing or len(missing) < len(holders)
        if keep:
            devices.append(device)
            rows.append(row)
        for each in missing:
            devices.append(replace(device, key=device.key._replace(pod=each.pod, container=each.container)))
            rows.append(row)
    return Scrape(tuple(devices), scrape.values[np.array(rows, dtype=np.int64)], scrape.at_s, scrape.rejected)
