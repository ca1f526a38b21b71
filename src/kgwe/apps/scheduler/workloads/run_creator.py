"""Reads what a workload asks for, and creates the Job or Deployment that runs it at its place."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.cluster import names
from kgwe.cluster.workload import metadata_keys, runs
from kgwe.cluster.workload.manifests import pod_template, run_manifest, run_metadata, workload_ask
from kgwe.cluster.workload.plan_text import PlanTooLarge
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.apps.scheduler.workloads.seat_policy import SeatPolicy
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.planning.plan import Plan

# Errors that a malformed template causes: it is free-form.
_TEMPLATE_ERRORS: Final = (errors.Permanent, KeyError, TypeError, AttributeError, ValueError)


class InvalidTemplate(errors.Permanent):
    """The workload's podTemplate cannot be run."""


class NameTaken(errors.Permanent):
    """Another object has the name of the workload's Job or Deployment."""


class RunCreator:
    """Creates runs; child names are fixed, so a run is never created twice."""

    def __init__(self, client: KubeClient, state: ClusterState, default_image: str, seat_policy: SeatPolicy) -> None:
        self._client = client
        self._seat_policy = seat_policy
        self._state = state
        self._default_image = default_image

    def read_ask(self, workload: Workload, avoid: frozenset[str]) -> Ask:
        """What the workload asks for, without the nodes of `avoid`; InvalidTemplate if its template cannot be read."""
        try:
            return workload_ask.build_ask(
                workload, pod_template.build_pod_template(workload, self._default_image), avoid
            )
        except _TEMPLATE_ERRORS as exc:
            raise InvalidTemplate(str(exc)) from exc

    async def create(self, workload: Workload, plan: Plan) -> bool:
        """Create the run. Returns False when it exists already, from before a restart.

        Raises Permanent: PlanTooLarge, InvalidTemplate, NameTaken, or a refusal of the API server.
        """
        is_indexed = len(plan.seats) > 1 and not workload.serves and not workload.claims
        body = self._build_run(workload, plan, seats_in_template=is_indexed and await self._seat_policy.is_installed())
        companions = run_manifest.build_companions(workload, plan, self._state.reader.cards)
        return await self._create(workload, body, companions)

    async def create_queued(self, workload: Workload, ask: Ask) -> bool:
        """Create the suspended Job of a workload that Kueue admits; returns and raises like `create`."""
        if workload.claims:
            raise InvalidTemplate(
                "deviceMode DRA names the planned GPUs, and a Job in a queue of Kueue has no plan yet"
            )
        try:
            template = self._build_template(workload)
            body = run_manifest.build_queued_run(workload, template, ask.pods)
        except _TEMPLATE_ERRORS as exc:
            raise InvalidTemplate(str(exc)) from exc
        if self._state.signer is not None:
            self._state.signer.sign_run(body, workload.meta.uid, ())
        service = [(resources.SERVICE, run_manifest.build_service(workload))] if ask.pods > 1 else []
        return await self._create(workload, body, service)

    async def _create(
        self, workload: Workload, body: dict[str, Any], companions: Iterable[tuple[Resource[Any], dict[str, Any]]]
    ) -> bool:
        resource, namespace = run_metadata.resource_of(workload), workload.meta.namespace
        try:
            for kind, companion in companions:
                with contextlib.suppress(errors.AlreadyExists):
                    await self._client.create(kind, companion, namespace)
            await self._client.create(resource, body, namespace)
        except errors.AlreadyExists as exc:
            if await self._find_own(workload) is not None:
                return False
            raise NameTaken(f"{exc} and belongs to something else; rename or delete it") from exc
        return True

    async def delete_unseen(self, workload: Workload) -> None:
        """Delete a run that the watch has not shown yet, if there is one. Another object of its name is left alone."""
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            run = await self._find_own(workload)
            if run is not None:
                await self._client.delete(run.resource, run.meta.name, run.meta.namespace, uid=run.meta.uid)

    async def _find_own(self, workload: Workload) -> Run | None:
        """Read the object with the name of the workload's run; None: it belongs to something else."""
        resource, name = run_metadata.resource_of(workload), run_metadata.job_name(workload)
        stored = await self._client.get(resource, name, workload.meta.namespace)
        is_managed = stored.metadata.labels.get(metadata_keys.MANAGED_BY) == metadata_keys.CONTROLLER_NAME
        run = runs.read_deployment(stored) if workload.serves else runs.read_job(stored)
        return run if is_managed and runs.belongs_to(run, workload) else None

    def _build_template(self, workload: Workload) -> dict[str, Any]:
        template = pod_template.build_pod_template(workload, self._default_image)
        if self._state.scheduler_name != names.DEFAULT_SCHEDULER:
            template["spec"].setdefault("schedulerName", self._state.scheduler_name)
        return template

    def _build_run(self, workload: Workload, plan: Plan, *, seats_in_template: bool) -> dict[str, Any]:
        """The Job or Deployment, signed."""
        try:
            template = self._build_template(workload)
            body = run_manifest.build_run(workload, template, plan, f"{time.time_ns():x}", self._state.reader.cards)
        except PlanTooLarge:
            raise
        except _TEMPLATE_ERRORS as exc:
            raise InvalidTemplate(str(exc)) from exc
        if self._state.signer is not None:
            self._state.signer.sign_run(body, workload.meta.uid, plan.seats, seats_in_template=seats_in_template)
        return body
