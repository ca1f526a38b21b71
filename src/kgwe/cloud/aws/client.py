"""Calls of EC2 and Auto Scaling through boto3, and the table of their error codes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.cloud.error_table import find_kind
from kgwe.cloud.provider import LaunchError
from kgwe.cloud.provider import LaunchErrorKind as Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Error codes of EC2, Auto Scaling and STS.
ERRORS: Final = {
    "InsufficientInstanceCapacity": Kind.NO_CAPACITY,
    "InsufficientHostCapacity": Kind.NO_CAPACITY,
    "InsufficientReservedInstanceCapacity": Kind.NO_CAPACITY,
    "InsufficientCapacity": Kind.NO_CAPACITY,
    "InsufficientVolumeCapacity": Kind.NO_CAPACITY,
    "ReservationCapacityExceeded": Kind.NO_CAPACITY,
    "SpotMaxPriceTooLow": Kind.NO_CAPACITY,
    "UnfulfillableCapacity": Kind.NO_CAPACITY,
    # The type is not offered in this zone: another zone may have it.
    "Unsupported": Kind.NO_CAPACITY,
    "MaxSpotInstanceCountExceeded": Kind.QUOTA,
    "MaxSpotFleetRequestCountExceeded": Kind.QUOTA,
    "SpotInstanceCountExceeded": Kind.QUOTA,
    "VcpuLimitExceeded": Kind.QUOTA,
    "InstanceLimitExceeded": Kind.QUOTA,
    "VolumeLimitExceeded": Kind.QUOTA,
    "MaxIOPSLimitExceeded": Kind.QUOTA,
    "FleetLimitExceeded": Kind.QUOTA,
    "InsufficientFreeAddressesInSubnet": Kind.LIMIT,
    "PrivateIpAddressLimitExceeded": Kind.LIMIT,
    "PlacementGroupLimitExceeded": Kind.LIMIT,
    "ScalingActivityInProgress": Kind.TRANSIENT,
    "ResourceContention": Kind.TRANSIENT,
    "UnauthorizedOperation": Kind.AUTHENTICATION,
    "AuthFailure": Kind.AUTHENTICATION,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": Kind.AUTHENTICATION,
    "AccessDenied": Kind.AUTHENTICATION,
    "AccessDeniedException": Kind.AUTHENTICATION,
    "Blocked": Kind.AUTHENTICATION,
    "ExpiredToken": Kind.AUTHENTICATION,
    "ExpiredTokenException": Kind.AUTHENTICATION,
    "InvalidClientTokenId": Kind.AUTHENTICATION,
    "InvalidIdentityToken": Kind.AUTHENTICATION,
    "MissingAuthenticationToken": Kind.AUTHENTICATION,
    "OptInRequired": Kind.AUTHENTICATION,
    "PendingVerification": Kind.AUTHENTICATION,
    "RequestExpired": Kind.AUTHENTICATION,
    "SignatureDoesNotMatch": Kind.AUTHENTICATION,
    "UnrecognizedClientException": Kind.AUTHENTICATION,
    "InvalidParameterValue": Kind.BAD_TEMPLATE,
    "InvalidParameterCombination": Kind.BAD_TEMPLATE,
    "InvalidParameter": Kind.BAD_TEMPLATE,
    "InvalidFleetConfiguration": Kind.BAD_TEMPLATE,
    "InvalidAMIID.NotFound": Kind.BAD_TEMPLATE,
    "InvalidLaunchTemplateName.NotFoundException": Kind.BAD_TEMPLATE,
    "InvalidSubnetID.NotFound": Kind.BAD_TEMPLATE,
    "IdempotentParameterMismatch": Kind.BAD_TEMPLATE,
    "MissingParameter": Kind.BAD_TEMPLATE,
    "ValidationError": Kind.BAD_TEMPLATE,
    "RequestLimitExceeded": Kind.THROTTLED,
    "ResourceCountExceeded": Kind.THROTTLED,
    "Throttling": Kind.THROTTLED,
    "ThrottlingException": Kind.THROTTLED,
    "EC2ThrottledException": Kind.THROTTLED,
    "InternalError": Kind.TRANSIENT,
    "InternalFailure": Kind.TRANSIENT,
    "RequestTimeout": Kind.TRANSIENT,
    "ServiceUnavailable": Kind.TRANSIENT,
    "Unavailable": Kind.TRANSIENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSettings:
    """Where to buy. Without keys, boto3 finds credentials itself: IRSA, pod identity, environment or instance role."""

    cluster: str
    """Name of the owning cluster, in the tags of all its instances."""
    region: str
    subnets: Mapping[str, str] = field(default_factory=dict)
    """Zone -> subnet of the nodes. Zones without one use the default subnet."""
    endpoint_url: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 60.0


class AwsClient:
    """The two services, called in threads. Every failure is a LaunchError."""

    def __init__(self, settings: AwsSettings) -> None:
        try:
            import boto3  # noqa: PLC0415 -- an extra
            from botocore.config import Config  # noqa: PLC0415
        except ImportError as error:
            raise errors.Permanent("pools on AWS need boto3; install kgwe[aws]") from error
        # The caller has its own back-off: a hidden retry would only add to a throttled account's calls.
        config = Config(
            connect_timeout=settings.connect_timeout_s,
            read_timeout=settings.read_timeout_s,
            retries={"total_max_attempts": 1},
            user_agent_extra="kgwe",
        )
        session = boto3.Session(
            aws_access_key_id=settings.access_key_id,
            aws_secret_access_key=settings.secret_access_key,
            region_name=settings.region,
        )
        self._services = {
            name: session.client(name, endpoint_url=settings.endpoint_url, config=config)
            for name in ("ec2", "autoscaling")
        }

    async def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation by its method name."""
        method = getattr(self._services[service], operation)
        answer: dict[str, Any] = await self._run(lambda: method(**arguments))
        return answer

    async def list_all(self, service: str, operation: str, key: str, **arguments: Any) -> list[dict[str, Any]]:
        """Return the items of all pages."""
        paginator = self._services[service].get_paginator(operation)
        found: list[dict[str, Any]] = await self._run(
            lambda: [item for page in paginator.paginate(**arguments) for item in page[key]]
        )
        return found

    def close(self) -> None:
        for service in self._services.values():
            service.close()

    async def _run(self, function: Any) -> Any:
        from botocore import exceptions  # noqa: PLC0415 -- an extra

        try:
            return await asyncio.to_thread(function)
        except exceptions.ClientError as error:
            raise translate_answer(error.response) from error
        except exceptions.ParamValidationError as error:
            raise LaunchError(Kind.BAD_TEMPLATE, str(error)) from error
        except (exceptions.NoCredentialsError, exceptions.CredentialRetrievalError) as error:
            raise LaunchError(Kind.AUTHENTICATION, f"no credentials for AWS: {error}") from error
        except exceptions.BotoCoreError as error:
            raise LaunchError(Kind.TRANSIENT, f"no answer from AWS: {error}") from error


def translate_answer(response: Mapping[str, Any]) -> LaunchError:
    """Return the error that an answer of AWS describes."""
    details = response.get("Error", {})
    code = str(details.get("Code", "unknown"))
    metadata = response.get("ResponseMetadata", {})
    kind = find_kind(code, ERRORS, int(metadata.get("HTTPStatusCode", 0)))
    after = metadata.get("HTTPHeaders", {}).get("retry-after", "")
    return LaunchError(
        kind,
        f"{code}: {details.get('Message') or 'no message'}",
        code=code,
        retry_after_s=float(after) if after.isdigit() else None,
    )
