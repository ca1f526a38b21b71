"""Calls of Azure's compute service through azure-mgmt-compute, and the table of its error codes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.cloud.error_table import find_kind
from kgwe.cloud.provider import CapacityType, LaunchError
from kgwe.cloud.provider import LaunchErrorKind as Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ERRORS: Final = {
    "AllocationFailed": Kind.NO_CAPACITY,
    "ZonalAllocationFailed": Kind.NO_CAPACITY,
    "OverconstrainedAllocationRequest": Kind.NO_CAPACITY,
    "OverconstrainedZonalAllocationRequest": Kind.NO_CAPACITY,
    "SkuNotAvailable": Kind.NO_CAPACITY,
    "SpotMaxPriceTooLow": Kind.NO_CAPACITY,
    "QuotaExceeded": Kind.QUOTA,
    # Azure reports exceeded quotas of cores with this code.
    "OperationNotAllowed": Kind.QUOTA,
    "SubnetIsFull": Kind.LIMIT,
    "PublicIPCountLimitReached": Kind.LIMIT,
    "InstanceCountExceedsLimit": Kind.LIMIT,
    "AuthorizationFailed": Kind.AUTHENTICATION,
    "InvalidAuthenticationToken": Kind.AUTHENTICATION,
    "ExpiredAuthenticationToken": Kind.AUTHENTICATION,
    "AuthenticationFailed": Kind.AUTHENTICATION,
    "LinkedAuthorizationFailed": Kind.AUTHENTICATION,
    "InvalidParameter": Kind.BAD_TEMPLATE,
    "ResourceNotFound": Kind.BAD_TEMPLATE,
    "ResourceGroupNotFound": Kind.BAD_TEMPLATE,
    "PropertyChangeNotAllowed": Kind.BAD_TEMPLATE,
    "ImageNotFound": Kind.BAD_TEMPLATE,
    "TooManyRequests": Kind.THROTTLED,
    "SubscriptionRequestsThrottled": Kind.THROTTLED,
    "PreconditionFailed": Kind.TRANSIENT,
    "Conflict": Kind.TRANSIENT,
    "InternalServerError": Kind.TRANSIENT,
    "InternalExecutionError": Kind.TRANSIENT,
    "NetworkingInternalOperationError": Kind.TRANSIENT,
    "RetryableError": Kind.TRANSIENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureScaleSet:
    """A scale set. It must not over-provision: extra instances would be bought for a moment."""

    name: str
    capacity_type: CapacityType = CapacityType.ON_DEMAND
    limit: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings:
    """Where to buy. azure-identity finds the credential: workload identity, managed identity or environment."""

    cluster: str
    subscription: str
    resource_group: str
    scale_sets: Mapping[str, AzureScaleSet] = field(default_factory=dict)
    """Pool -> its scale set."""
    endpoint: str = ""
    """URL of a stand-in without authentication; empty: Azure's own."""
    poll_s: float = 5.0
    wait_s: float = 300.0


class AzureClient:
    """Scale sets and their VMs, called in threads. Every failure is a LaunchError."""

    def __init__(self, settings: AzureSettings) -> None:
        try:
            from azure.core.pipeline.policies import SansIOHTTPPolicy  # noqa: PLC0415 -- an extra
            from azure.identity import DefaultAzureCredential  # noqa: PLC0415
            from azure.mgmt.compute import ComputeManagementClient, models  # noqa: PLC0415
        except ImportError as error:
            raise errors.Permanent("pools on Azure need azure-mgmt-compute; install kgwe[azure]") from error
        self.models: Any = models
        self._settings = settings
        # The caller has its own back-off.
        options: dict[str, Any] = {"retry_total": 0, "polling_interval": settings.poll_s}
        if settings.endpoint:
            options |= {"base_url": settings.endpoint, "authentication_policy": SansIOHTTPPolicy()}
        credential: Any = object() if settings.endpoint else DefaultAzureCredential()
        self._client: Any = ComputeManagementClient(credential, settings.subscription, **options)

    async def get_set(self, name: str) -> Any:
        group = self._settings.resource_group
        return await self._run(lambda: self._client.virtual_machine_scale_sets.get(group, name))

    async def update_set(self, name: str, change: Any, etag: str) -> None:
        """Change a scale set if no other client has changed it meanwhile, and wait for the end."""
        from azure.core import MatchConditions  # noqa: PLC0415 -- an extra

        def act() -> None:
            poller = self._client.virtual_machine_scale_sets.begin_update(
                self._settings.resource_group,
                name,
                change,
                etag=etag or None,
                match_condition=MatchConditions.IfNotModified if etag else None,
            )
            poller.result(self._settings.wait_s)

        await self._run(act)

    async def list_machines(self, name: str) -> list[Any]:
        group = self._settings.resource_group
        found: list[Any] = await self._run(
            lambda: list(self._client.virtual_machine_scale_set_vms.list(group, name, expand="instanceView"))
        )
        return found

    async def delete_machines(self, name: str, instance_ids: list[str]) -> None:
        """Ask for the deletion of VMs; the capacity of the scale set shrinks with them."""
        wanted = self.models.VirtualMachineScaleSetVMInstanceRequiredIDs(instance_ids=instance_ids)
        group = self._settings.resource_group
        await self._run(lambda: self._client.virtual_machine_scale_sets.begin_delete_instances(group, name, wanted))

    def close(self) -> None:
        self._client.close()

    async def _run(self, function: Callable[[], Any]) -> Any:
        from azure.core import exceptions as azure  # noqa: PLC0415 -- an extra

        try:
            return await asyncio.to_thread(function)
        except azure.ClientAuthenticationError as error:
            raise LaunchError(Kind.AUTHENTICATION, f"no credentials for Azure: {error.message}") from error
        except azure.HttpResponseError as error:
            raise translate_answer(error) from error
        except azure.AzureError as error:
            raise LaunchError(Kind.TRANSIENT, f"no answer from Azure: {error}") from error


def translate_answer(error: Any) -> LaunchError:
    """Return the error that an answer of Azure describes. The inner code is the more exact one."""
    found = getattr(error, "error", None)
    inner = [each.code for each in (getattr(found, "details", None) or ()) if getattr(each, "code", "") in ERRORS]
    code = inner[0] if inner else getattr(found, "code", None) or ""
    headers = getattr(error.response, "headers", {}) if error.response is not None else {}
    after = headers.get("Retry-After", "") or headers.get("retry-after", "")
    return LaunchError(
        find_kind(code, ERRORS, int(error.status_code or 0)),
        f"{code or error.status_code}: {getattr(found, 'message', None) or error.message}",
        code=code,
        retry_after_s=float(after) if str(after).isdigit() else None,
    )
