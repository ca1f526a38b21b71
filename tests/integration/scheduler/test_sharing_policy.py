"""GPUSharingPolicies on a real control plane: notebooks become shares, and policies that conflict say so."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from tests.support.clusters.bed import condition, kgwe
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.support.clusters.bed import Bed


def notebook(name: str, image: str = "jupyter", **annotations: str) -> dict[str, Any]:
    body = kgwe(name, 1, workloadType="Visualization")
    body["spec"]["podTemplate"] = {"spec": {"containers": [{"name": "main", "image": image}]}}
    body["metadata"]["annotations"] = {f"kgwe.nvidia.io/{key}": value for key, value in annotations.items()}
    return body


@contextlib.asynccontextmanager
async def policies(bed: Bed, **specs: dict[str, Any]) -> AsyncIterator[None]:
    for name, spec in specs.items():
        body = {"apiVersion": "kgwe.nvidia.io/v1", "kind": "GPUSharingPolicy", "metadata": {"name": name}, "spec": spec}
        await bed.client.create(resources.GPU_SHARING_POLICY, body)
    try:
        for name in specs:
            await until_reported(bed, name, lambda status: status.observedGeneration == 1)
        yield
    finally:
        for name in specs:
            with contextlib.suppress(errors.NotFound):
                await bed.client.delete(resources.GPU_SHARING_POLICY, name)


async def until_reported(bed: Bed, name: str, is_so: Callable[[Any], bool]) -> Any:
    """The status of a policy, once it is so. No informer of the bed watches policies."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = (await bed.client.get(resources.GPU_SHARING_POLICY, name)).status
            if is_so(found):
                return found
            await asyncio.sleep(0.2)


def held(bed: Bed, resource: str) -> int:
    return sum(
        1
        for pod in bed.pods.store.values()
        if pod.spec.nodeName and resource in pod.spec.containers[0].resources.limits
    )


async def test_notebooks_share_gpus_and_none_waits_because_of_the_policy(bed: Bed):
    labels = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    await bed.node("shared", 0, labels=labels, more={amounts.SHARED: "4"})
    await bed.node("whole", 8)
    await bed.controller()
    before = [await bed.submit(notebook(f"before-{number}")) for number in range(4)]
    for each in before:
        await bed.until_phase(each, "Running")
    assert (held(bed, amounts.GPU), held(bed, amounts.SHARED)) == (4, 0), "4 notebooks needed 4 GPUs"
    for each in before:
        await bed.delete(each)
    await bed.until(lambda: not held(bed, amounts.GPU))

    auto = {"strategy": "auto", "namespaceSelector": {"kubernetes.io/metadata.name": "default"}, "priority": 10}
    whole = {"strategy": "exclusive", "priority": 1}
    async with policies(bed, notebooks=auto, careful=whole):
        after = await asyncio.gather(*(bed.submit(notebook(f"after-{number}")) for number in range(6)))
        opted_out = await bed.submit(notebook("mine", optimize="false"))
        engine = await bed.submit(notebook("engine", image="vllm/vllm-openai"))
        for each in (*after, opted_out, engine):
            await bed.until_phase(each, "Running")
        # 4 notebooks share one GPU; the shares are taken, so the 2 others have whole GPUs, like those that refuse.
        assert (held(bed, amounts.SHARED), held(bed, amounts.GPU)) == (4, 4)
        small = next(each for each in map(bed.now, after) if each.status.effectiveRequirements is not None)
        assert (small.spec.gpuRequirements.count, small.status.effectiveRequirements.effective) == (1, "0.25")
        assert "policy notebooks" in small.status.effectiveRequirements.reason

        found = await until_reported(
            bed, "notebooks", lambda status: status.appliedPods == 4 and len(status.notApplied) == 3
        )
        assert (found.wholeGPUs, found.effectiveGPUs) == (4, 1.0)
        assert {each.reason: each.workloads for each in found.notApplied} == {
            "NoFreePart": 2, "OptedOut": 1, "Preallocates": 1,
        }  # fmt: skip
        for name, words in (("notebooks", "lower priority"), ("careful", "higher priority")):
            told = condition(await bed.client.get(resources.GPU_SHARING_POLICY, name), "Conflict")
            assert (told.status, words in told.message) == ("True", True)
