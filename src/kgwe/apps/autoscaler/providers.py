"""The clouds that this process can buy from, by the name in `spec.provider`. An SDK is imported if its cloud is set."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kgwe.cloud.kwok import KwokProvider
from kgwe.cloud.provider import LaunchError, LaunchErrorKind, LaunchResult

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine

    from kgwe.apps.autoscaler import cloud_settings
    from kgwe.apps.autoscaler.settings import Settings
    from kgwe.cloud.provider import Instance, InterruptionNotice, LaunchRequest, Provider, Traits
    from kgwe.kube.client.client import KubeClient

T = TypeVar("T")

#: A call that has not returned after so many time-outs is given up, and the cloud is asked again.
_PATIENCE: Final = 10.0
#: Instances given back that are remembered.
_MOST_RETURNED: Final = 4096


class TimedProvider:
    """A provider whose calls end in time: with its answer, or with a LaunchError.

    A call that is late is not cancelled at once, as the thread of an SDK cannot be. It goes on, its answer is not used,
    and no second call of its kind begins before it ends. So a cloud that does not answer costs one time-out and one
    thread, not one in each round. All calls may be repeated, so an answer that is not used loses nothing.
    """

    def __init__(self, inner: Provider, timeout_s: float) -> None:
        self._inner = inner
        self._timeout_s = timeout_s
        self._late: dict[str, tuple[asyncio.Task[Any], float]] = {}
        """Call -> the one that has not returned, and when it was late."""
        self.timeouts = 0
        self.returned: dict[str, None] = {}
        """Instances that this process gave back, the last ones."""

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def traits(self) -> Traits:
        return self._inner.traits

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        """Buy instances. Without an answer in time the outcome is unknown, and the same request is repeated."""
        try:
            return await self._call("launch", self._inner.launch(request))
        except LaunchError as exc:
            return LaunchResult(error=exc)

    async def list_instances(self) -> tuple[Instance, ...]:
        return tuple(await self._call("list_instances", self._inner.list_instances()))

    async def terminate(self, provider_ids: Collection[str]) -> None:
        self.returned.update(dict.fromkeys(provider_ids))
        for old in list(self.returned)[:-_MOST_RETURNED]:
            del self.returned[old]
        await self._call("terminate", self._inner.terminate(provider_ids))

    async def list_notices(self) -> tuple[InterruptionNotice, ...]:
        return await self._call("list_notices", self._inner.list_notices())

    async def close(self) -> None:
        await self._inner.close()

    def describe_late(self, call: str) -> str:
        """Return that a call has not returned; empty: none is late."""
        found = self._late.get(call)
        return "" if found is None or found[0].done() else str(self._make_error(call))

    async def _call(self, name: str, asked: Coroutine[Any, Any, T]) -> T:
        if self._is_late(name):
            asked.close()
            raise self._make_error(name)
        task = asyncio.create_task(asked)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            return task.result()
        self.timeouts += 1
        self._late[name] = task, asyncio.get_running_loop().time()
        task.add_done_callback(_forget_result)
        raise self._make_error(name)

    def _is_late(self, name: str) -> bool:
        if (found := self._late.get(name)) is None:
            return False
        task, since = found
        waited_s = asyncio.get_running_loop().time() - since
        if not task.done() and waited_s < _PATIENCE * self._timeout_s:
            return True
        task.cancel()
        del self._late[name]
        return False

    def _make_error(self, name: str) -> LaunchError:
        message = f"provider {self.name} has not answered {name} within {self._timeout_s:g} s"
        return LaunchError(LaunchErrorKind.TRANSIENT, message, code="TimedOut")


def _forget_result(task: asyncio.Task[Any]) -> None:
    """Read the error of a call for which no one waits, so that it is not logged as lost."""
    if not task.cancelled():
        task.exception()


def make_providers(client: KubeClient, settings: Settings) -> dict[str, Provider]:
    """Return the configured providers."""
    found: dict[str, Provider] = {"kwok": KwokProvider(client, cluster=settings.cluster, namespace=settings.namespace)}
    if settings.aws is not None:
        found["aws"] = _make_aws(settings.cluster, settings.aws)
    if settings.gcp is not None:
        found["gcp"] = _make_gcp(settings.cluster, settings.gcp)
    if settings.azure is not None:
        found["azure"] = _make_azure(settings.cluster, settings.azure)
    if settings.karpenter is not None:
        from kgwe.cloud.kubernetes.node_claims import KarpenterClaims  # noqa: PLC0415 - only where it is set

        found["custom"] = KarpenterClaims(client, cluster=settings.cluster, namespace=settings.namespace)
    return found


def _make_aws(cluster: str, said: cloud_settings.Aws) -> Provider:
    from kgwe.cloud.aws.client import AwsSettings  # noqa: PLC0415
    from kgwe.cloud.aws.fleets import AwsFleets  # noqa: PLC0415
    from kgwe.cloud.aws.groups import AwsGroups  # noqa: PLC0415

    settings = AwsSettings(
        cluster=cluster, region=said.region, subnets=said.subnets, endpoint_url=said.endpoint_url or None
    )
    return AwsGroups(settings) if said.groups else AwsFleets(settings)


def _make_gcp(cluster: str, said: cloud_settings.Gcp) -> Provider:
    from kgwe.cloud.gcp.bulk import GcpBulk  # noqa: PLC0415
    from kgwe.cloud.gcp.client import GcpGroup, GcpSettings  # noqa: PLC0415
    from kgwe.cloud.gcp.groups import GcpGroups  # noqa: PLC0415
    from kgwe.cloud.provider import CapacityType  # noqa: PLC0415

    groups = {
        pool: GcpGroup(
            name=each.name,
            zone=each.zone,
            instance_type=each.instance_type,
            capacity_type=CapacityType(each.capacity_type),
        )
        for pool, each in said.groups.items()
    }
    settings = GcpSettings(cluster=cluster, project=said.project, groups=groups, endpoint=said.endpoint)
    return GcpGroups(settings) if groups else GcpBulk(settings)


def _make_azure(cluster: str, said: cloud_settings.Azure) -> Provider:
    from kgwe.cloud.azure.client import AzureScaleSet, AzureSettings  # noqa: PLC0415
    from kgwe.cloud.azure.scale_sets import AzureScaleSets  # noqa: PLC0415
    from kgwe.cloud.provider import CapacityType  # noqa: PLC0415

    scale_sets = {
        pool: AzureScaleSet(name=each.name, capacity_type=CapacityType(each.capacity_type), limit=each.limit)
        for pool, each in said.scale_sets.items()
    }
    return AzureScaleSets(
        AzureSettings(
            cluster=cluster,
            subscription=said.subscription,
            resource_group=said.resource_group,
            scale_sets=scale_sets,
            endpoint=said.endpoint,
        )
    )
