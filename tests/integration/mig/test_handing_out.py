"""Cutting beside a kubelet: what is about to change is not handed out, and what was handed out is not cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.clusters.mig import FLEET
from tests.support.fakes import kubelet as stand_in
from tests.support.fakes.kubelet import Kubelet, Refused
from tests.support.patience import PATIENCE_S

from kgwe.kube.api import resources
from kgwe.local.fleet import apply

if TYPE_CHECKING:
    from tests.support.clusters.mig import MigBed

CUT = "a100-mig-0000"
SMALL, MIDDLE, WIDE = (f"nvidia.com/mig-{name}" for name in ("1g.10gb", "2g.20gb", "3g.40gb"))


async def test_a_slice_that_a_pod_was_given_is_not_cut_and_one_to_be_cut_is_not_given(bed: MigBed) -> None:
    await apply.apply_fleet(bed.client, FLEET, 4)
    with stand_in.folder() as root:
        kubelet = Kubelet(root)
        await kubelet.start()
        try:
            await _cut_beside(bed, kubelet, str(root))
        finally:
            await kubelet.stop()


async def _cut_beside(bed: MigBed, kubelet: Kubelet, root: str) -> None:
    settings = {"enable_device_plugin": "true", "enable_pod_resources": "true"}
    machine = bed.agent(CUT, host_root=root, kubelet_folder="/", **settings)
    await stand_in.until(lambda: all(len(kubelet.healthy(name)) == 8 for name in (SMALL, MIDDLE, WIDE)), PATIENCE_S)
    holder = stand_in.pod("holder", 1, resource=SMALL)
    await kubelet.admit(holder)
    (mine,) = kubelet.held("team/holder", SMALL)
    card = next(n for n in range(8) if any(mine in cut.uuids for cut in machine.hardware.list_instances(n)))
    uuid = bed.gpu_nodes.store[CUT].status.gpus[card].uuid
    before = {cut.profile: cut.uuids for cut in machine.hardware.list_instances(card)}
    # The card is to become two 3g: the free 2g goes at once, the slice in use is waited for.
    layout = {"enabled": True, "instances": ["3g.40gb@0", "3g.40gb@4"]}
    body = {"metadata": {"name": CUT}, "spec": {"cards": [{"uuid": uuid, "mig": layout}]}}
    await bed.client.apply(resources.GPU_NODE, body)
    await bed.until(lambda: bed.gpu_nodes.store[CUT].status.gpus[card].mig.phase == "Waiting")
    now = {cut.profile: cut.uuids for cut in machine.hardware.list_instances(card)}
    assert now == {"3g.40gb": before["3g.40gb"], "1g.10gb": before["1g.10gb"]}
    await stand_in.until(lambda: len(kubelet.healthy(MIDDLE)) == 7, PATIENCE_S)
    await stand_in.until(lambda: mine not in kubelet.healthy(SMALL), PATIENCE_S)
    assert set(before["3g.40gb"]) <= kubelet.healthy(WIDE), "its neighbour stays in service"
    with pytest.raises(Refused):
        await kubelet.allocate(mine, resource=SMALL)
    # It ends, and the card is cut to the end.
    kubelet.end(holder)
    await stand_in.until(lambda: len(kubelet.healthy(WIDE)) == 9, PATIENCE_S)
    assert [cut.profile for cut in machine.hardware.list_instances(card)] == ["3g.40gb", "3g.40gb"]
    await bed.until(lambda: bed.gpu_nodes.store[CUT].status.gpus[card].mig.phase == "")
