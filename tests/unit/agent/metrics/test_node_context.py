"""What is known of the processes and devices of a machine besides what its driver says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.support.builders.samples import A100, card, cut_into, machine, reading
from tests.support.patience import until

from kgwe.apps.agent.metrics import node_context
from kgwe.apps.agent.metrics.node_context import NodeContext
from kgwe.apps.agent.metrics.sampler import Sampler
from kgwe.kube.api import core
from kgwe.kube.api.meta import ObjectMeta
from kgwe.model.devices.holdings import ContainerDevices, PodDevices
from kgwe.model.gpu.driver_data import Process

UID = "8d5f1a3c-02be-4f7a-9c1d-5e6f7a8b9c0d"
HASH = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"


def pod(name: str, uid: str, **annotations: str) -> core.Pod:
    found = {key.replace("__", "/").replace("_", "."): value for key, value in annotations.items()}
    return core.Pod(metadata=ObjectMeta(name=name, namespace="team", uid=uid, annotations=found))


def holding(name: str, *ids: str) -> PodDevices:
    return PodDevices("team", name, (ContainerDevices("main", (("nvidia.com/gpu", ids),)),))


def test_cards_slices_and_pieces_are_told_by_who_has_them():
    on = machine(card(0), card(1, A100, cut=cut_into("3g.40gb@0", index=1)))
    pods = [holding("a", "GPU-0::1"), holding("b", "GPU-0::2"), holding("c", "MIG-1-0"), holding("d", "GPU-x")]
    assert node_context.map_holders(pods, on) == {"GPU-0": ["team/a", "team/b"], "MIG-1-0": ["team/c"]}
    assert node_context.map_holders(pods, None) == {}


async def test_processes_have_the_names_of_their_pods_static_ones_too(tmp_path):
    for pid, uid in ((11, UID), (12, HASH), (13, "f" * 32)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"0::/kubepods/burstable/pod{uid}/{'a' * 64}\n")
    known = [pod("a", UID), pod("b", "another", kubernetes_io__config_hash=HASH)]
    assert known[1].metadata.annotations == {"kubernetes.io/config.hash": HASH}
    source: Any = SimpleNamespace(pods=lambda: known)
    seen = NodeContext(tmp_path, pods=source)
    processes = tuple(Process(pid) for pid in (11, 12, 13, 14))
    named = {11: "team/a", 12: "team/b", 13: "f" * 32}
    running = asyncio.create_task(seen.run(60))
    await until(lambda: seen.take_surroundings([reading(0, processes=processes)]).pods == named)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_clients_only_their_mps_server_knows_have_pods_too(tmp_path):
    (tmp_path / "11").mkdir()
    (tmp_path / "11" / "cgroup").write_text(f"0::/kubepods/burstable/pod{UID}/{'a' * 64}\n")
    seen = NodeContext(tmp_path, mps_servers=lambda: {7: (11,)})
    found = seen.take_surroundings([reading(0, processes=(Process(7, 30, 0.8),))])
    assert (found.pods, found.mps) == ({11: UID}, {7: (11,)})
    told = Sampler().take(machine(card(0)), [reading(0, util=0.8, processes=(Process(7, 30, 0.8),))], 0.0, found)
    assert told.gpus[0].shares.pods == ((UID, 800_000),)
