"""A node with two MIG cards whose slices are almost all taken."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.fakes.mig_world import World

from kgwe import errors
from kgwe.apps.mig.drains import ANNOTATION
from kgwe.kube.api.kgwe.gpunode import CardSpec, HeldDevices
from kgwe.local.fleet import mig_layout

CONSENT = {ANNOTATION: "consent"}


BUILT = {"3g.40gb": 0.5, "2g.20gb": 0.25, "1g.10gb": 0.125}


class Crowd(World):
    """Card 0: 3g taken, 1g taken by `small`, who may go; card 1: all taken but the 1g."""

    def __init__(self, *, small: dict[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(cards=2, **settings)
        (self.name,) = self.gpu_nodes
        self.has: dict[str, str] = {}
        self.strategy(shares=BUILT, allowDynamicReconfig=True)
        self.settle()
        for pod, profile, where in (("a", "3g.40gb", "0@0"), ("b", "3g.40gb", "1@0"), ("c", "2g.20gb", "1@4")):
            self.hold(pod, profile, where)
        self.hold("small", "1g.10gb", "0@6", **{"annotations": CONSENT, **(small or {})})

    def hold(self, pod: str, profile: str, where: str, **more: Any) -> None:
        self.pod(pod, profile, node=self.name, **more)
        self.has[pod] = where
        self._tell()

    def end(self, pod: str) -> None:
        del self.pods[pod], self.has[pod]
        self._tell()

    def _tell(self) -> None:
        self.set_status(self.name, held=tuple(HeldDevices(f"team/{p}", p, "", (w,)) for p, w in self.has.items()))

    def agents(self, *held: str) -> None:
        there = {
            f"{device.index}@{each.start}": each.uuid
            for device in self.gpu_nodes[self.name].status.gpus
            for each in device.mig.instances
        }
        super().agents(*(there[where] for where in self.has.values() if where in there), *held)

    def stop_short(self) -> None:
        """A round in which the last thing that succeeds is what is written to the GPUNode."""
        self.is_down = True
        with pytest.raises(errors.Transient):
            self.round()
        self.is_down = False

    @property
    def asked(self) -> list[CardSpec]:
        return [card for card in self.gpu_nodes[self.name].spec.cards if card.drain is not None]

    @property
    def open(self) -> int:
        """1g slices that the node offers."""
        return mig_layout.count_devices(self.gpu_nodes[self.name])[1]["nvidia.com/mig-1g.10gb"]
