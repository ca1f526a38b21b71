"""A pod that consents is moved for a cut: controller, agent on the driver library, kubelet, scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from tests.support.clusters.mig import FLEET, QUICK_AGENT
from tests.support.fakes import kubelet as stand_in
from tests.support.fakes.kubelet import Kubelet

from kgwe.apps.mig.drains import ANNOTATION
from kgwe.kube.api import resources
from kgwe.local.fleet import agents, apply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.clusters.mig import MigBed

    from kgwe.kube.api import core
    from kgwe.kube.client.informer import Change

AS_BUILT = "3g.40gb@0 2g.20gb@4 1g.10gb@6"
CUT = "a100-mig-0000"
ON_CUT = {"gpu-autoscaler.io/node-pool": "a100-mig"}
SMALL = {"mig": {"profile": "1g.10gb", "count": 1}}
PLUGIN = {"enable_device_plugin": "true", "enable_pod_resources": "true"}


@contextlib.asynccontextmanager
async def kubelet_of(bed: MigBed, node: str) -> AsyncIterator[str]:
    """The kubelet of a node, as far as devices go: admits what is bound to it. Yields its folder."""
    bound: asyncio.Queue[core.Pod] = asyncio.Queue()

    def on_pod(change: Change[Any]) -> None:
        if change.new is None:
            if change.old is not None:
                kubelet.end(change.old)
        elif change.new.spec.nodeName == node and (change.old is None or not change.old.spec.nodeName):
            bound.put_nowait(change.new)

    async def admit() -> None:
        while True:
            await kubelet.admit(await bound.get())

    with stand_in.folder() as root:
        kubelet = Kubelet(root)
        await kubelet.start()
        bed.pods.on_change(on_pod)
        task = asyncio.create_task(admit())
        try:
            yield str(root)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            bed.pods._handlers.remove(on_pod)
            await kubelet.stop()


async def test_a_pod_that_consents_makes_way_and_the_others_are_not_touched(bed: MigBed) -> None:
    await apply.apply_fleet(bed.client, FLEET, 4)
    async with kubelet_of(bed, CUT) as root:
        machine = bed.agent(CUT, host_root=root, kubelet_folder="/", **PLUGIN)
        await bed.until(lambda: CUT in bed.gpu_nodes.store and bed.gpu_nodes.store[CUT].spec.source == "Agent")
        shares = {"3g.40gb": 0.5, "2g.20gb": 0.25, "1g.10gb": 0.13}
        await bed.strategy("pool", nodeSelector=ON_CUT, profileDistribution=shares, allowDynamicReconfig=True)
        await bed.until(lambda: bed.ready("pool") == "Applied")
        # A small slice of each card is taken: no card can be given whole unless somebody makes way.
        for number in range(7):
            await bed.workload(f"stays-{number}", SMALL)
        goes = await bed.workload("goes", SMALL, {ANNOTATION: "consent"})
        await bed.until(lambda: len(bed.running()) == 8)
        (old,) = (each.metadata.uid for each in bed.pods.store.values() if each.metadata.name.startswith("goes"))
        stay = {uid: node for uid, node in bed.running().items() if uid != old}
        selector = {"matchLabels": {"kgwe.nvidia.io/workload": "goes"}}
        body = {"metadata": {"name": "keep"}, "spec": {"minAvailable": 1, "selector": selector}}
        await bed.client.create(resources.POD_DISRUPTION_BUDGET, body, "default")
        big = await bed.workload("big", {"mig": {"profile": "7g.80gb", "count": 1}})
        # A budget keeps it where it is: nothing is cut for now.
        await bed.until(lambda: "drain_refused" in (bed.folder / "mig.log").read_text())
        assert old in bed.running()
        assert bed.cuts(CUT) == [AS_BUILT] * 8
        await bed.client.delete(resources.POD_DISRUPTION_BUDGET, "keep", "default")
        await bed.until(lambda: old not in bed.running())
        # The controller and the agent die meanwhile.
        bed.processes[1].kill()
        machine.kill()
        bed.run("mig", "kgwe-mig")
        machine.start(
            agents.write_kubeconfig(bed.cluster), host_root=root, kubelet_folder="/", **{**QUICK_AGENT, **PLUGIN}
        )
        await bed.until(lambda: bed.phase(big) == "Running", 120)
        await bed.until(lambda: bed.phase(goes) == "Running" and len(bed.running()) == 9, 120)
        now = bed.running()
        assert {uid: now.get(uid) for uid in stay} == stay, "nobody else was touched"
        assert old not in now
        assert sum("7g.80gb@0" in cut for cut in bed.cuts(CUT)) == 1
        assert all(card.drain is None for card in bed.gpu_nodes.store[CUT].spec.cards)
