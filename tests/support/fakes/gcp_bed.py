"""A stand-in of Compute Engine with the documented REST shapes, and beds of the provider contract on it."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

from tests.support.fakes.rest_server import RestAnswer, RestFault, RestRequest, RestServer

from kgwe.cloud.gcp.bulk import GcpBulk
from kgwe.cloud.gcp.client import GcpClient, GcpGroup, GcpSettings
from kgwe.cloud.gcp.groups import GcpGroups
from kgwe.cloud.provider import CapacityType, LaunchErrorKind, LaunchRequest

if TYPE_CHECKING:
    from kgwe.cloud.provider import Provider

PROJECT, ZONE = "acme", "us-central1-a"
_NUMBERS = itertools.count()
_ZONES = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}"
_CREATED = "2026-01-01T00:00:00.000-08:00"


def refusal(status: int, reason: str) -> RestAnswer:
    """A refused request as the API answers it."""
    message = f"as asked by the test: {reason}"
    return RestAnswer(
        status, {"error": {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}}
    )


def failed_operation(code: str) -> RestAnswer:
    return RestAnswer(
        200, {"name": "op-failed", "status": "DONE", "error": {"errors": [{"code": code, "message": "m"}]}}
    )


ANSWERS = {
    LaunchErrorKind.NO_CAPACITY: failed_operation("ZONE_RESOURCE_POOL_EXHAUSTED"),
    LaunchErrorKind.QUOTA: refusal(403, "quotaExceeded"),
    LaunchErrorKind.LIMIT: failed_operation("LIMIT_EXCEEDED"),
    LaunchErrorKind.AUTHENTICATION: refusal(403, "forbidden"),
    LaunchErrorKind.BAD_TEMPLATE: refusal(400, "invalid"),
    LaunchErrorKind.THROTTLED: refusal(403, "rateLimitExceeded"),
    LaunchErrorKind.TRANSIENT: refusal(503, "backendError"),
}


class ComputeEngine:
    """Instances, operations, groups and resize requests of one project."""

    def __init__(self) -> None:
        self.capacity = 1000
        self.instances: dict[str, dict[str, Any]] = {}
        self.managed: dict[str, dict[str, dict[str, Any]]] = {}
        self.resizes: dict[tuple[str, str], dict[str, Any]] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._requests: dict[str, str] = {}

    def handle(self, request: RestRequest) -> RestAnswer:
        path = request.path
        if path == f"{_ZONES}/instances/bulkInsert":
            return self._once(request, lambda: self._bulk_insert(request.body))
        if match := re.fullmatch(rf"{_ZONES}/operations/([\w-]+)", path):
            self._operations[match[1]]["status"] = "DONE"
            return RestAnswer(200, self._operations[match[1]])
        if path == f"/compute/v1/projects/{PROJECT}/aggregated/instances":
            return self._list(request.query["filter"])
        if match := re.fullmatch(rf"{_ZONES}/instances/([\w-]+)", path):
            if self.instances.pop(match[1], None) is None:
                return refusal(404, "notFound")
            self.capacity += 1
            return self._operation()
        if match := re.fullmatch(rf"{_ZONES}/instanceGroupManagers/([\w-]+)/(.*)", path):
            return self._handle_group(request, match[1], match[2])
        return refusal(404, "notFound")

    def _once(self, request: RestRequest, act: Any) -> RestAnswer:
        """A repeated request id gives the same operation."""
        token = request.query["requestId"]
        if token not in self._requests:
            self._requests[token] = act().body["name"]
        return RestAnswer(200, self._operations[self._requests[token]])

    def _operation(self, code: str = "") -> RestAnswer:
        name = f"op-{len(self._operations)}"
        found: dict[str, Any] = {"name": name, "status": "RUNNING"}
        if code:
            found["error"] = {"errors": [{"code": code, "message": "the zone has not enough resources"}]}
        self._operations[name] = found
        return RestAnswer(200, found)

    def _bulk_insert(self, body: dict[str, Any]) -> RestAnswer:
        count, least = int(body["count"]), int(body.get("minCount", body["count"]))
        got = min(count, self.capacity)
        if got < least:
            return self._operation("VM_MIN_COUNT_NOT_REACHED")
        self.capacity -= got
        properties = body["instanceProperties"]
        for number in range(got):
            name = body["namePattern"].replace("####", f"{number + 1:04d}")
            self.instances[name] = {
                "name": name,
                "zone": f"https://compute/zones/{ZONE}",
                "machineType": f"https://compute/zones/{ZONE}/machineTypes/{properties['machineType']}",
                "labels": properties.get("labels", {}),
                "scheduling": properties.get("scheduling", {}),
                "status": "RUNNING",
                "creationTimestamp": _CREATED,
            }
        return self._operation("" if got == count else "ZONE_RESOURCE_POOL_EXHAUSTED")

    def _list(self, wanted: str) -> RestAnswer:
        pairs = [part.removeprefix("labels.").split("=") for part in wanted.split(" AND ")]
        found = [
            each for each in self.instances.values() if all(each["labels"].get(key) == value for key, value in pairs)
        ]
        zone: dict[str, Any] = {"instances": found} if found else {"warning": {"code": "NO_RESULTS_ON_PAGE"}}
        return RestAnswer(200, {"items": {f"zones/{ZONE}": zone}})

    def _handle_group(self, request: RestRequest, group: str, rest: str) -> RestAnswer:
        if group not in self.managed:
            return refusal(404, "notFound")
        there = self.managed[group]
        if rest == "listManagedInstances":
            return RestAnswer(200, {"managedInstances": list(there.values())})
        if rest == "deleteInstances":
            for url in request.body["instances"]:
                if there.pop(url.rpartition("/")[2], None):
                    self.capacity += 1
            return self._operation()
        if rest == "resizeRequests":
            return self._once(request, lambda: self._resize(group, request.body))
        found = self.resizes.get((group, rest.rpartition("/")[2]))
        return RestAnswer(200, found) if found else refusal(404, "notFound")

    def _resize(self, group: str, body: dict[str, Any]) -> RestAnswer:
        names = [each["name"] for each in body["instances"]]
        found: dict[str, Any] = {"name": body["name"], "state": "SUCCEEDED"}
        if len(names) > self.capacity:
            error = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "not enough resources"}
            found |= {"state": "FAILED", "status": {"error": {"errors": [error]}}}
        else:
            self.capacity -= len(names)
            self.managed[group] |= {
                name: {"name": name, "currentAction": "NONE", "instanceStatus": "RUNNING"} for name in names
            }
        self.resizes[group, body["name"]] = found
        return self._operation()


class GcpServer:
    def __init__(self) -> None:
        self.cloud = ComputeEngine()
        self.rest = RestServer(self.cloud)
        self.client = GcpClient(self.make_settings("none", {}))

    def make_settings(self, cluster: str, groups: dict[str, GcpGroup]) -> GcpSettings:
        return GcpSettings(
            cluster=cluster, project=PROJECT, groups=groups, endpoint=self.rest.address, poll_s=0.01, timeout_s=10
        )

    def stop(self) -> None:
        self.client.close()
        self.rest.stop()


class BulkBed:
    """Bulk inserts of a new cluster."""

    def __init__(self, server: GcpServer) -> None:
        self.server = server
        server.rest.faults.clear()
        server.rest.lost_answers = 0
        server.cloud.capacity = 1000
        server.cloud.instances.clear()
        self.cluster = f"cluster-{next(_NUMBERS)}"
        self.groups: dict[str, GcpGroup] = {}
        self.provider: Provider = self.reopen()
        self.kinds = tuple(LaunchErrorKind)

    def settings(self, cluster: str = "") -> GcpSettings:
        return self.server.make_settings(cluster or self.cluster, self.groups)

    def reopen(self) -> Provider:
        return GcpBulk(self.settings(), self.server.client)

    def make_request(self, request_id: str, count: int = 1, *, atomic: bool = False) -> LaunchRequest:
        return LaunchRequest(
            request_id=request_id,
            pool="h100",
            instance_type="a3-highgpu-8g",
            zone=ZONE,
            capacity_type=CapacityType.SPOT,
            count=count,
            atomic=atomic,
            template="gpu",
        )

    def set_capacity(self, instances: int) -> None:
        self.server.cloud.capacity = instances

    def fail_next(self, kind: LaunchErrorKind) -> None:
        is_any = kind is LaunchErrorKind.THROTTLED
        self.server.rest.faults.append(RestFault(ANSWERS[kind], only_writes=not is_any))

    def lose_answer(self) -> None:
        self.server.rest.lost_answers = 1

    async def add_foreign(self) -> str:
        other = GcpBulk(self.settings("another"), self.server.client)
        return (await other.launch(self.make_request(f"foreign-{next(_NUMBERS)}"))).instances[0].provider_id

    def is_alive(self, provider_id: str) -> bool:
        return provider_id.rpartition("/")[2] in self.server.cloud.instances

    def count_alive(self) -> int:
        return sum(each["labels"].get("kgwe-cluster") == self.cluster for each in self.server.cloud.instances.values())


class ResizeBed(BulkBed):
    """A managed instance group of a new cluster, with an instance that was there before."""

    def __init__(self, server: GcpServer) -> None:
        super().__init__(server)
        name = f"group-{self.cluster}"
        server.cloud.managed = {name: {}}
        self.groups["h100"] = GcpGroup(
            name=name, zone=ZONE, instance_type="a3-highgpu-8g", capacity_type=CapacityType.SPOT
        )
        self.provider = self.reopen()

    def reopen(self) -> Provider:
        return GcpGroups(self.settings(), self.server.client)

    def make_request(self, request_id: str, count: int = 1, *, atomic: bool = False) -> LaunchRequest:
        found = super().make_request(request_id, count, atomic=atomic)
        name = self.groups["h100"].name if self.groups else ""
        return LaunchRequest(**{each: getattr(found, each) for each in found.__slots__} | {"template": name})

    def _there(self) -> dict[str, dict[str, Any]]:
        return self.server.cloud.managed[self.groups["h100"].name]

    async def add_foreign(self) -> str:
        self._there()["old-vm"] = {"name": "old-vm", "currentAction": "NONE"}
        return f"gce://{PROJECT}/{ZONE}/old-vm"

    def is_alive(self, provider_id: str) -> bool:
        return provider_id.rpartition("/")[2] in self._there()

    def count_alive(self) -> int:
        return len(self._there())
