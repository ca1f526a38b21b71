"""Jobs whose seats were changed: which of them are listed."""

from __future__ import annotations

from tests.support.builders.objects import TWO, job
from tests.support.fakes.memory_api import MemoryApi

from kgwe.cluster.workload import seat_revocation
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient


async def listed(api: KubeClient) -> dict[str, str]:
    return dict((await api.get(resources.SEAT_REVOCATION, "default")).spec.jobs)


async def test_a_job_is_listed_once_and_deleted_jobs_are_removed() -> None:
    api = KubeClient(MemoryApi())
    first, second = job("job-1", seats=TWO).metadata, job("job-2", seats=TWO).metadata
    await seat_revocation.revoke_seats(api, first, lambda _uid: True)
    version = (await api.get(resources.SEAT_REVOCATION, "default")).metadata.resourceVersion
    await seat_revocation.revoke_seats(api, first, lambda _uid: True)
    assert (await api.get(resources.SEAT_REVOCATION, "default")).metadata.resourceVersion == version
    assert await listed(api) == {"job-1": first.key}
    await seat_revocation.revoke_seats(api, second, lambda uid: uid == "job-2")
    assert await listed(api) == {"job-2": second.key}
