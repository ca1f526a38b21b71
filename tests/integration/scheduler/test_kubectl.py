"""What kubectl shows and waits for: short names, columns, conditions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.support.clusters.bed import condition, kgwe, warp
from tests.support.clusters.broken import break_nodes, gang, racks, running, until_metric
from tests.support.patience import PATIENCE_S

from kgwe.apps.whatif.subject import LISTED
from kgwe.local.fleet import faults
from kgwe.local.toolchain import binaries

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed


async def kubectl(bed: Bed, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(binaries.find().found["kubectl"].path), *arguments, "--kubeconfig", str(bed.cluster.kubeconfig),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def table(bed: Bed, *arguments: str) -> dict[str, dict[str, str]]:
    """Row by row what `kubectl get` prints, by name and column."""
    title, *rows = (await kubectl(bed, "get", *arguments)).splitlines()
    starts = [title.index(name) for name in title.split()]
    cells = [[line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)] for line in rows]
    return {each[0]: dict(zip(title.split(), each, strict=True)) for each in cells}


async def test_each_kind_has_a_short_name_of_its_own_and_the_command_of_explain_shows_both(bed: Bed):
    await bed.submit(kgwe("large", 1))
    await bed.submit(warp("small", 1))
    assert set(await table(bed, "gw")) == {"large"}
    assert set(await table(bed, "gpuw")) == {"small"}
    both = await kubectl(bed, "get", LISTED)
    assert "gpuworkload.kgwe.nvidia.io/large" in both
    assert "gpuworkload.gpu.warp.dev/small" in both


async def test_columns_show_gpus_and_nodes_as_people_write_them(bed: Bed):
    await racks(bed, {"a": 3})
    await bed.controller()
    await running(bed, gang("trains", 3), 3)
    slices = kgwe("slices")
    slices["spec"]["gpuRequirements"] = {"mig": {"profile": "1g.10gb", "count": 2}}
    share = kgwe("share")
    share["spec"]["gpuRequirements"] = {"share": 0.5}
    for body in (slices, share):
        await bed.until_phase(await bed.submit(body), "Pending")

    rows = await table(bed, "gw")
    assert rows["trains"] | {"NODE": rows["trains"]["NODE"][1:]} | {"AGE": ""} == {
        "NAME": "trains", "GPUS": "24", "STATUS": "Running", "NODE": f"{rows['trains']['NODE'][1]} +2", "DEGRADED": "",
        "AGE": "", "SUSPENDED": "",
    }  # fmt: skip
    assert (rows["slices"]["GPUS"], rows["share"]["GPUS"]) == ("2×1g.10gb", "0.5")


async def test_kubectl_waits_for_the_end_of_both_kinds(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    await bed.submit(kgwe("short", 1, duration="1s"))
    await bed.submit(warp("small", 1))
    bad = kgwe("bad", 1, duration="1s")
    bad["spec"]["podTemplate"]["metadata"]["annotations"]["kgwe.nvidia.io/simulated-outcome"] = "Failed"
    await bed.submit(bad)
    await kubectl(bed, "wait", "--for=condition=Complete", "gw/short", "--timeout=60s")
    await kubectl(bed, "wait", "--for=condition=Failed", "gw/bad", "--timeout=60s")
    await kubectl(bed, "wait", "--for=condition=Scheduled", "gpuw/small", "--timeout=60s")


async def test_work_that_cannot_move_off_a_lost_node_is_degraded_until_the_node_is_back(bed: Bed):
    await racks(bed, {"a": 2})
    await bed.controller()
    workload, before = await running(bed, gang("g", 2), 2)
    lost = before[0].spec.nodeName

    await break_nodes(bed, lost)
    await bed.until(lambda: "Degraded" in {c.type for c in bed.now(workload).status.conditions})
    said = condition(bed.now(workload), "Degraded")
    assert (said.status, said.reason) == ("True", "NoCapacity")
    assert said.message.startswith(f"Node {lost} is ")
    assert "1 pod must move, but no free GPUs" in said.message
    assert (await table(bed, "gw"))["g"]["DEGRADED"] == "NoCapacity"
    assert bed.phase(workload) == "Running"

    await faults.clear(bed.client, lost)
    await bed.until(lambda: "Degraded" not in {c.type for c in bed.now(workload).status.conditions})


async def test_a_new_leader_does_not_call_degraded_work_whole(bed: Bed):
    await racks(bed, {"a": 2})
    first = await bed.controller()
    workload, before = await running(bed, gang("g", 2), 2)
    await break_nodes(bed, before[1].spec.nodeName)
    await bed.until(lambda: "Degraded" in {c.type for c in bed.now(workload).status.conditions})
    seen = bed.workloads["kgwe.nvidia.io"]
    whole: list[Any] = []
    seen.on_change(
        lambda change: (
            whole.append(change)
            if change.new and "Degraded" not in {c.type for c in change.new.status.conditions}
            else None
        )
    )

    first.kill()
    second = await bed.controller()
    await until_metric(second, "kgwe_scheduler_leader", 1)
    later = await bed.submit(kgwe("later", 8))
    await bed.until_phase(later, "Pending")
    assert not [each for each in whole if each.new.metadata.uid == workload.metadata.uid]
    assert condition(bed.now(workload), "Degraded").reason == "NoCapacity"
