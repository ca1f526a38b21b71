"""Cards are cut for work that gets its slices by ResourceClaims: workloads of ours, and pods of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.clusters.mig import FLEET

from kgwe.kube.api import resources
from kgwe.kube.api.resource import MIG_CLASS
from kgwe.local.fleet import apply

if TYPE_CHECKING:
    from tests.support.clusters.mig import MigBed

CUT = "a100-mig-0000"
ON_CUT = {"gpu-autoscaler.io/node-pool": "a100-mig"}
BUILT = {"3g.40gb": 0.5, "2g.20gb": 0.25, "1g.10gb": 0.13}


async def claiming_pod(bed: MigBed, name: str, profile: str) -> None:
    expression = f"device.attributes['gpu.nvidia.com'].profile == '{profile}'"
    exactly = {"deviceClassName": MIG_CLASS, "count": 1, "selectors": [{"cel": {"expression": expression}}]}
    spec = {"devices": {"requests": [{"name": "slice", "exactly": exactly}]}}
    await bed.client.create(
        resources.RESOURCE_CLAIM_TEMPLATE, {"metadata": {"name": name}, "spec": {"spec": spec}}, "default"
    )
    container = {"name": "c", "image": "example.com/app:1", "resources": {"claims": [{"name": "x"}]}}
    body: dict[str, Any] = {
        "metadata": {"name": name},
        "spec": {"containers": [container], "resourceClaims": [{"name": "x", "resourceClaimTemplateName": name}]},
    }
    await bed.client.create(resources.POD, body, "default")


async def test_claims_that_no_slice_serves_are_cut_for(bed: MigBed) -> None:
    await apply.apply_fleet(bed.client, FLEET, 4, dra=True)
    await bed.strategy("pool", nodeSelector=ON_CUT, profileDistribution=BUILT, allowDynamicReconfig=True)
    await bed.until(lambda: bed.ready("pool") == "Applied")
    wants = {"mig": {"profile": "7g.80gb", "count": 1}}
    whole = await bed.workload("whole", wants, spec={"deviceMode": "DRA"})
    await bed.until(lambda: bed.phase(whole) == "Running")
    await claiming_pod(bed, "theirs", "4g.40gb")
    await bed.until(lambda: bed.is_running("theirs"))
    cuts = [cut for node in bed.gpu_nodes.store for cut in bed.cuts(node)]
    assert sum("7g.80gb@0" in cut for cut in cuts) == 1
    assert sum("4g.40gb@0" in cut for cut in cuts) == 1
    await bed.client.delete(resources.RESOURCE_CLAIM_TEMPLATE, "theirs", "default")
