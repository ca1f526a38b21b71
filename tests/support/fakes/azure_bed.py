"""A stand-in of Azure's scale sets with the documented REST shapes, and the bed of the provider contract on it."""

from __future__ import annotations

import itertools
import re
import time
from typing import TYPE_CHECKING, Any

from tests.support.fakes.rest_server import RestAnswer, RestFault, RestRequest, RestServer

from kgwe.cloud.azure.client import AzureClient, AzureScaleSet, AzureSettings
from kgwe.cloud.azure.scale_sets import AzureScaleSets
from kgwe.cloud.provider import CapacityType, LaunchErrorKind, LaunchRequest

if TYPE_CHECKING:
    from kgwe.cloud.provider import Provider

_SETS = "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Compute/virtualMachineScaleSets"
_NUMBERS = itertools.count()


def refusal(status: int, code: str) -> RestAnswer:
    return RestAnswer(status, {"error": {"code": code, "message": f"as asked by the test: {code}"}})


ANSWERS = {
    LaunchErrorKind.NO_CAPACITY: refusal(409, "ZonalAllocationFailed"),
    LaunchErrorKind.QUOTA: refusal(409, "OperationNotAllowed"),
    LaunchErrorKind.LIMIT: refusal(400, "SubnetIsFull"),
    LaunchErrorKind.AUTHENTICATION: refusal(403, "AuthorizationFailed"),
    LaunchErrorKind.BAD_TEMPLATE: refusal(400, "InvalidParameter"),
    LaunchErrorKind.THROTTLED: refusal(429, "TooManyRequests"),
    LaunchErrorKind.TRANSIENT: refusal(500, "InternalServerError"),
}


class ScaleSets:
    """Scale sets and their VMs in one resource group."""

    def __init__(self) -> None:
        self.capacity = 1000
        self.sets: dict[str, dict[str, Any]] = {}
        self.machines: dict[str, dict[str, dict[str, Any]]] = {}
        self.fail_raises: list[RestAnswer] = []
        self._operations: dict[str, dict[str, Any]] = {}

    def add(self, name: str) -> None:
        self.sets[name] = {
            "id": f"{_SETS}/{name}",
            "name": name,
            "location": "eastus",
            "sku": {"name": "Standard_ND96isr_H100_v5", "tier": "Standard", "capacity": 0},
            "tags": {},
            "etag": '"1"',
        }
        self.machines[name] = {}

    def handle(self, request: RestRequest) -> RestAnswer:
        if match := re.fullmatch(r"/operations/(\d+)", request.path):
            return RestAnswer(200, self._operations[match[1]])
        match = re.fullmatch(rf"{_SETS}/([\w-]+)(/.*)?", request.path)
        if match is None or match[1] not in self.sets:
            return refusal(404, "ResourceNotFound")
        name, rest = match[1], match[2] or ""
        if rest == "/virtualMachines":
            return RestAnswer(200, {"value": list(self.machines[name].values())})
        if rest == "/delete":
            for each in request.body["instanceIds"]:
                if self.machines[name].pop(each, None):
                    self.capacity += 1
                    self.sets[name]["sku"]["capacity"] -= 1
            return self._follow(request, {"status": "Succeeded"})
        return self._update(name, request) if request.method == "PATCH" else RestAnswer(200, self.sets[name])

    def _follow(self, request: RestRequest, outcome: dict[str, Any]) -> RestAnswer:
        number = str(len(self._operations))
        self._operations[number] = outcome
        return RestAnswer(
            202, None, {"Azure-AsyncOperation": f"{request.base}/operations/{number}", "Retry-After": "0"}
        )

    def _update(self, name: str, request: RestRequest) -> RestAnswer:
        there = self.sets[name]
        if request.headers.get("if-match", there["etag"]) != there["etag"]:
            return refusal(412, "PreconditionFailed")
        wanted = request.body.get("sku", {}).get("capacity", there["sku"]["capacity"])
        if wanted > there["sku"]["capacity"] and self.fail_raises:
            return self.fail_raises.pop(0)
        there["etag"] = f'"{int(there["etag"].strip(chr(34))) + 1}"'
        if "tags" in request.body:
            there["tags"] = request.body["tags"]
        there["sku"]["capacity"] = wanted
        missing = wanted - len(self.machines[name])
        got = min(max(missing, 0), self.capacity)
        self.capacity -= got
        for _ in range(got):
            self._create(name)
        if missing > got:
            error = {"code": "OverconstrainedZonalAllocationRequest", "message": "not enough capacity"}
            answer = self._follow(request, {"status": "Failed", "error": error})
            return RestAnswer(200, there, answer.headers)
        return RestAnswer(200, there)

    def _create(self, name: str) -> None:
        number = str(next(_NUMBERS))
        self.machines[name][number] = {
            "id": f"{_SETS}/{name}/virtualMachines/{number}",
            "instanceId": number,
            "name": f"{name}_{number}",
            "location": "eastus",
            "zones": ["1"],
            "sku": {"name": "Standard_ND96isr_H100_v5"},
            "properties": {
                "provisioningState": "Succeeded",
                "timeCreated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "osProfile": {"computerName": f"{name}{number}"},
                "instanceView": {"statuses": [{"code": "PowerState/running"}]},
            },
        }


class AzureServer:
    def __init__(self) -> None:
        self.cloud = ScaleSets()
        self.rest = RestServer(self.cloud)
        self.client = AzureClient(self.make_settings("none", {}))

    def make_settings(self, cluster: str, scale_sets: dict[str, AzureScaleSet]) -> AzureSettings:
        return AzureSettings(
            cluster=cluster,
            subscription="sub",
            resource_group="rg",
            scale_sets=scale_sets,
            endpoint=f"http://{self.rest.address}",
            poll_s=0,
            wait_s=10,
        )

    def stop(self) -> None:
        self.client.close()
        self.rest.stop()


class ScaleSetBed:
    """A scale set of a new cluster."""

    def __init__(self, server: AzureServer) -> None:
        self.server = server
        server.rest.faults.clear()
        server.rest.lost_answers = 0
        server.cloud.capacity = 1000
        server.cloud.fail_raises.clear()
        self.cluster = f"cluster-{next(_NUMBERS)}"
        self.name = f"set-{self.cluster}"
        server.cloud.add(self.name)
        self.scale_sets = {"h100": AzureScaleSet(name=self.name, capacity_type=CapacityType.SPOT)}
        self.provider: Provider = self.reopen()
        self.kinds = tuple(LaunchErrorKind)

    def reopen(self) -> Provider:
        return AzureScaleSets(self.server.make_settings(self.cluster, self.scale_sets), self.server.client)

    def make_request(self, request_id: str, count: int = 1, *, atomic: bool = False) -> LaunchRequest:
        return LaunchRequest(
            request_id=request_id,
            pool="h100",
            instance_type="Standard_ND96isr_H100_v5",
            zone="eastus-1",
            capacity_type=CapacityType.SPOT,
            count=count,
            atomic=atomic,
            template=self.name,
        )

    def set_capacity(self, instances: int) -> None:
        self.server.cloud.capacity = instances

    def fail_next(self, kind: LaunchErrorKind) -> None:
        if kind is LaunchErrorKind.THROTTLED:
            self.server.rest.faults.append(RestFault(ANSWERS[kind], only_writes=False))
        else:
            self.server.cloud.fail_raises.append(ANSWERS[kind])

    def lose_answer(self) -> None:
        # Not of the write that only adds a tag: of the one that buys.
        self.server.rest.loses = lambda request: bool(request.body and "sku" in request.body)
        self.server.rest.lost_answers = 1

    async def add_foreign(self) -> str:
        self.server.cloud._create(self.name)
        found = list(self.server.cloud.machines[self.name].values())[-1]
        self.server.cloud.sets[self.name]["sku"]["capacity"] += 1
        return f"azure://{found['id']}"

    def is_alive(self, provider_id: str) -> bool:
        return provider_id.rpartition("/")[2] in self.server.cloud.machines[self.name]

    def count_alive(self) -> int:
        return len(self.server.cloud.machines[self.name])
