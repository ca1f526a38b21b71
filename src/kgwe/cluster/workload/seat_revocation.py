"""Revokes the seats in the pod template of a Job, which cannot be changed.

The policy kgwe-seats (deploy/admission.yaml) leaves the scheduling gate on pods of the Jobs listed in the only
SeatRevocation. Such pods get their seats from the scheduler, as pods of Jobs without seats in their template do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe import seatrevocation

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.client.client import KubeClient


async def revoke_seats(client: KubeClient, job: ObjectMeta, is_live: Callable[[str], bool]) -> None:
    """List the Job, and remove Jobs that no longer exist. An API server learns of it within milliseconds.

    A pod created before that gets its old seat, is found to be misplaced, and is deleted.
    """
    try:
        listed = (await client.get(resources.SEAT_REVOCATION, seatrevocation.NAME)).spec.jobs
    except errors.NotFound:
        body = {"metadata": {"name": seatrevocation.NAME}, "spec": {"jobs": {job.uid: job.key}}}
        await client.create(resources.SEAT_REVOCATION, body)
        return
    if job.uid not in listed:
        gone = dict.fromkeys(uid for uid in listed if not is_live(uid))
        change = {"spec": {"jobs": {**gone, job.uid: job.key}}}
        await client.patch(resources.SEAT_REVOCATION, seatrevocation.NAME, change)
