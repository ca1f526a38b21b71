"""Spot nodes and kinds of hardware on a real control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.clusters.bed import condition, kgwe, warp
from tests.support.clusters.distributed import nodes_of

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed

ARCH, PRODUCT, SPOT = "kubernetes.io/arch", "nvidia.com/gpu.product", "karpenter.sh/capacity-type"


async def mixed_fleet(bed: Bed) -> None:
    """Two x86 nodes on demand, two as spot, which come first by name, and two ARM nodes with other GPUs."""
    for number in range(2):
        x86 = {ARCH: "amd64", PRODUCT: "NVIDIA-H100-80GB-HBM3"}
        await bed.node(f"amd{number}", labels=x86 | {SPOT: "on-demand"})
        await bed.node(f"a-spot{number}", labels=x86 | {SPOT: "spot"})
        await bed.node(f"arm{number}", labels={ARCH: "arm64", PRODUCT: "NVIDIA-GB200", SPOT: "on-demand"})


async def test_work_that_may_not_be_stopped_avoids_spot_while_there_is_other_room(bed: Bed):
    await mixed_fleet(bed)
    await bed.controller()
    made = [await bed.submit(kgwe(f"w{number}", 8)) for number in range(3)]
    made += [await bed.submit(warp("small", 8))]
    for workload in made:
        await bed.until_phase(workload, "Running")
    assert sorted(bed.gpus_bound()) == ["amd0", "amd1", "arm0", "arm1"]

    late = await bed.submit(kgwe("late", 8))
    running = await bed.until_phase(late, "Running")
    assert running.status.scheduledNode in ("a-spot0", "a-spot1"), "a preference, not a wall"


async def test_spot_is_required_and_never_relaxed(bed: Bed):
    await mixed_fleet(bed)
    await bed.controller()
    made = [await bed.submit(kgwe(f"w{number}", 8, spotPolicy="Require")) for number in range(2)]
    for workload in made:
        await bed.until_phase(workload, "Running")
    assert sorted(bed.gpus_bound()) == ["a-spot0", "a-spot1"]
    late = await bed.submit(kgwe("late", 8, spotPolicy="Require"))
    waiting = await bed.until_phase(late, "Pending")
    assert condition(waiting, "Scheduled").reason == "InsufficientGPU"


async def test_replicas_of_a_service_are_on_nodes_of_their_own_and_of_one_kind(bed: Bed):
    await mixed_fleet(bed)
    await bed.controller()
    service = await bed.submit(kgwe("service", 4, gpusPerPod=2, workloadType="Inference"))
    await bed.until(lambda: len(bed.gpus_bound()) == 2)
    await bed.until_phase(service, "Running")
    nodes = {name: bed.nodes.store[name].metadata.labels for name in nodes_of(bed, service)}
    assert len(nodes) == 2
    assert len({(labels[ARCH], labels[PRODUCT]) for labels in nodes.values()}) == 1
    assert {labels[SPOT] for labels in nodes.values()} == {"on-demand"}

    large = await bed.submit(kgwe("large", 36, gpusPerPod=4, workloadType="Inference"))
    waiting = await bed.until_phase(large, "Pending")
    assert condition(waiting, "Scheduled").reason == "TooLarge", "four x86 nodes of one kind are all there are"
    assert "mix" in waiting.status.reasons
