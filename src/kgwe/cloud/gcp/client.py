"""Calls of Compute Engine through google-cloud-compute, and the table of its error codes."""

from __future__ import annotations

import asyncio
import importlib
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.cloud.error_table import choose_error, find_kind
from kgwe.cloud.provider import CapacityType, LaunchError
from kgwe.cloud.provider import LaunchErrorKind as Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: Codes of operations, and reasons of refused requests.
ERRORS: Final = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": Kind.NO_CAPACITY,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": Kind.NO_CAPACITY,
    "STOCKOUT": Kind.NO_CAPACITY,
    "RESOURCE_POOL_EXHAUSTED": Kind.NO_CAPACITY,
    "UNSUPPORTED_OPERATION": Kind.BAD_TEMPLATE,
    "VM_MIN_COUNT_NOT_REACHED": Kind.NO_CAPACITY,
    "QUOTA_EXCEEDED": Kind.QUOTA,
    "quotaExceeded": Kind.QUOTA,
    "LIMIT_EXCEEDED": Kind.LIMIT,
    "limitExceeded": Kind.LIMIT,
    "IP_SPACE_EXHAUSTED": Kind.LIMIT,
    "PERMISSIONS_ERROR": Kind.AUTHENTICATION,
    "forbidden": Kind.AUTHENTICATION,
    "authError": Kind.AUTHENTICATION,
    "required": Kind.BAD_TEMPLATE,
    "invalid": Kind.BAD_TEMPLATE,
    "notFound": Kind.BAD_TEMPLATE,
    "INVALID_USAGE": Kind.BAD_TEMPLATE,
    "RESOURCE_NOT_FOUND": Kind.BAD_TEMPLATE,
    "CONDITION_NOT_MET": Kind.BAD_TEMPLATE,
    "rateLimitExceeded": Kind.THROTTLED,
    "userRateLimitExceeded": Kind.THROTTLED,
    "RATE_LIMIT_EXCEEDED": Kind.THROTTLED,
    "backendError": Kind.TRANSIENT,
    "INTERNAL_ERROR": Kind.TRANSIENT,
    "RESOURCE_NOT_READY": Kind.TRANSIENT,
    "resourceNotReady": Kind.TRANSIENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpGroup:
    """A managed instance group, with what its instance template says: its lists do not repeat it."""

    name: str
    zone: str
    instance_type: str
    capacity_type: CapacityType = CapacityType.ON_DEMAND


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpSettings:
    """Where to buy. Without credentials, Google's own search is used: Workload Identity, environment or metadata."""

    cluster: str
    project: str
    groups: Mapping[str, GcpGroup] = field(default_factory=dict)
    """Pool -> its managed instance group, for resize requests."""
    endpoint: str = ""
    """host:port of a stand-in without TLS; empty: Google's own."""
    timeout_s: float = 60.0
    wait_s: float = 180.0
    """How long an operation is followed before the call ends as transient."""
    poll_s: float = 1.0


_SERVICES: Final = {
    "instances": ("instances", "Instances"),
    "operations": ("zone_operations", "ZoneOperations"),
    "groups": ("instance_group_managers", "InstanceGroupManagers"),
    "resizes": ("instance_group_manager_resize_requests", "InstanceGroupManagerResizeRequests"),
}


class GcpClient:
    """The services of Compute Engine, called in threads. Every failure is a LaunchError."""

    def __init__(self, settings: GcpSettings) -> None:
        try:
            credentials = importlib.import_module("google.auth.credentials")

            self.types = importlib.import_module("google.cloud.compute_v1")
        except ImportError as error:
            raise errors.Permanent("pools on GCP need google-cloud-compute; install kgwe[gcp]") from error
        self._settings = settings
        self._services: dict[str, Any] = {}
        for name, (module, title) in _SERVICES.items():
            client = getattr(self.types, f"{title}Client")
            transport = None
            if settings.endpoint:
                transports = importlib.import_module(f"google.cloud.compute_v1.services.{module}.transports")
                transport = getattr(transports, f"{title}RestTransport")(
                    host=settings.endpoint, url_scheme="http", credentials=credentials.AnonymousCredentials()
                )
            self._services[name] = client(transport=transport) if transport else client()

    async def call(self, service: str, method: str, request: dict[str, Any]) -> Any:
        """Call a method with a request as a dictionary."""
        function = getattr(self._services[service], method)
        timeout = self._settings.timeout_s
        return await self._run(lambda: function(request=request, timeout=timeout, retry=None))

    async def list_all(self, service: str, method: str, request: dict[str, Any]) -> list[Any]:
        """Return the items of all pages."""
        function = getattr(self._services[service], method)
        timeout = self._settings.timeout_s
        found: list[Any] = await self._run(lambda: list(function(request=request, timeout=timeout, retry=None)))
        return found

    async def follow(self, zone: str, operation: Any) -> None:
        """Wait until an operation is done; raise what it reports."""
        ends = time.monotonic() + self._settings.wait_s
        while operation.status != self.types.Operation.Status.DONE:
            if time.monotonic() >= ends:
                raise LaunchError(Kind.TRANSIENT, f"operation {operation.name} is not done yet")
            await asyncio.sleep(self._settings.poll_s)
            wanted = {"project": self._settings.project, "zone": zone, "operation": operation.name}
            operation = await self.call("operations", "get", wanted)
        error = choose_error(read_errors((each.code, each.message) for each in operation.error.errors))
        if error:
            raise error

    def close(self) -> None:
        for service in self._services.values():
            service.transport.close()

    async def _run(self, function: Callable[[], Any]) -> Any:
        from google.api_core import exceptions as api  # noqa: PLC0415 -- an extra
        from google.auth import exceptions as auth  # noqa: PLC0415

        try:
            return await asyncio.to_thread(function)
        except api.GoogleAPICallError as error:
            raise translate_refusal(error) from error
        except auth.GoogleAuthError as error:
            raise LaunchError(Kind.AUTHENTICATION, f"no credentials for GCP: {error}") from error
        except (api.RetryError, OSError) as error:
            raise LaunchError(Kind.TRANSIENT, f"no answer from GCP: {error}") from error
        except ValueError as error:
            raise LaunchError(Kind.BAD_TEMPLATE, str(error)) from error


def read_errors(found: Iterable[tuple[str, str]]) -> list[LaunchError]:
    """Return errors of an operation."""
    return [LaunchError(find_kind(code, ERRORS), f"{code}: {message}", code=code) for code, message in found]


def translate_refusal(error: Any) -> LaunchError:
    """Return the error of a refused request, by the reason in its body, else by its HTTP status."""
    reasons = [each.get("reason", "") for each in getattr(error, "errors", ()) if isinstance(each, dict)]
    code = next((each for each in reasons if each), "")
    after = error.response.headers.get("retry-after", "") if getattr(error, "response", None) is not None else ""
    return LaunchError(
        find_kind(code, ERRORS, int(error.code or 0)),
        f"{code or error.code}: {error.message}",
        code=code,
        retry_after_s=float(after) if after.isdigit() else None,
    )


def make_request_id(cluster: str, request_id: str) -> str:
    """Return the UUID by which Compute Engine recognizes a repeated call."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"kgwe:{cluster}/{request_id}"))
