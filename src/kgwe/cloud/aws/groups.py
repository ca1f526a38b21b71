"""Instances of existing Auto Scaling groups: the group's desired capacity is raised.

A group has no idempotency token. The request is therefore written to the group as a tag before its capacity is raised,
and instances get the tags of their request when they appear. A repeated request counts what it has and what is under
way, and raises the capacity only by the rest; once it was fulfilled it raises nothing. Gangs are best effort: a part
that the group could not complete is returned. Only one process at a time may launch from a group: the leader.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kgwe.cloud.aws.client import ERRORS, AwsClient
from kgwe.cloud.aws.fleets import describe_rest
from kgwe.cloud.aws.instances import make_tags, read_instance, read_instance_ids
from kgwe.cloud.error_table import find_kind
from kgwe.cloud.provider import (
    CLUSTER_TAG,
    REQUEST_TAG,
    GangSupport,
    Instance,
    InstanceState,
    InterruptionNotice,
    LaunchError,
    LaunchErrorKind,
    LaunchResult,
    TopologySupport,
    Traits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kgwe.cloud.aws.client import AwsSettings
    from kgwe.cloud.provider import LaunchRequest

_ALIVE: Final = frozenset({InstanceState.LAUNCHING, InstanceState.RUNNING, InstanceState.STOPPED})
_MARK: Final = f"{REQUEST_TAG}/"
_PRESENT: Final = frozenset({"Pending", "Pending:Wait", "Pending:Proceed", "InService"})


@dataclass(frozen=True, slots=True)
class _Mark:
    """What a group's tag says about a request: when it began, and whether it ended."""

    began_at: int
    is_done: bool

    def write(self) -> str:
        return f"{self.began_at}:{'done' if self.is_done else 'open'}"

    @classmethod
    def read(cls, text: str) -> _Mark | None:
        began, _, state = text.partition(":")
        return cls(int(began), state == "done") if began.isdecimal() else None


class AwsGroups:
    """Provider of Auto Scaling groups. The template of a request is the group's name."""

    name: Final = "aws-asg"
    traits: Final = Traits(gangs=GangSupport.BEST_EFFORT, topology=TopologySupport.OBSERVED_AFTER_JOIN, settle_s=120.0)

    def __init__(
        self,
        settings: AwsSettings,
        client: AwsClient | None = None,
        *,
        wait_s: float = 20.0,
        poll_s: float = 1.0,
        clock: Callable[[], float] = time.time,
        most_marks: int = 24,
    ) -> None:
        self._settings = settings
        self._client = client or AwsClient(settings)
        self._wait_s = wait_s
        """How long a launch waits for the group. After that it is repeated by the caller."""
        self._poll_s = poll_s
        self._clock = clock
        self._most_marks = most_marks
        """A group may have 50 tags. Marks of old requests that are done make room."""
        self._lock = asyncio.Lock()

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        # Requests of one process change a group's capacity one after the other.
        async with self._lock:
            try:
                return await self._launch(request)
            except LaunchError as error:
                return LaunchResult(error=error)

    async def _launch(self, request: LaunchRequest) -> LaunchResult:
        group = await self._read_group(request.template)
        marks = _read_marks(group)
        mark = marks.get(request.request_id)
        if mark and mark.is_done:
            alive = await self._find_instances(request.request_id)
            return LaunchResult(instances=alive, error=describe_rest(request, len(alive)))
        if not mark:
            mark = _Mark(int(self._clock()), is_done=False)
            self._check_limit(group, request, request.count)
            await self._prune(request.template, marks)
            await self._write_mark(request, mark)
        found = await self._adopt(request, mark)
        under_way = int(group["DesiredCapacity"]) - sum(
            each["LifecycleState"] in _PRESENT for each in group["Instances"]
        )
        if missing := max(request.count - len(found) - max(under_way, 0), 0):
            self._check_limit(group, request, missing)
            await self._set_capacity(request.template, int(group["DesiredCapacity"]) + missing)
        return await self._wait(request, mark)

    @staticmethod
    def _check_limit(group: dict[str, Any], request: LaunchRequest, more: int) -> None:
        needed = int(group["DesiredCapacity"]) + more
        if needed > int(group["MaxSize"]):
            text = f"group {request.template} may have {group['MaxSize']} instances; {needed} are needed"
            raise LaunchError(LaunchErrorKind.LIMIT, text)

    async def _prune(self, name: str, marks: Mapping[str, _Mark]) -> None:
        """Remove the oldest marks of requests that are done."""
        done = sorted((mark.began_at, request_id) for request_id, mark in marks.items() if mark.is_done)
        old = [request_id for _, request_id in done[: max(len(marks) + 1 - self._most_marks, 0)]]
        if old:
            tags = [
                {"ResourceId": name, "ResourceType": "auto-scaling-group", "Key": _MARK + request_id}
                for request_id in old
            ]
            await self._client.call("autoscaling", "delete_tags", Tags=tags)

    async def _wait(self, request: LaunchRequest, mark: _Mark) -> LaunchResult:
        """Give the request the group's new instances, until it has all or the group reports a failure."""
        waited = 0.0
        while True:
            found = await self._adopt(request, mark)
            if len(found) >= request.count:
                await self._write_mark(request, replace(mark, is_done=True))
                return LaunchResult(instances=found)
            error = await self._find_failure(request.template, mark)
            if error:
                return await self._give_up(request, mark, found, error)
            if waited >= self._wait_s:
                text = f"group {request.template} has launched {len(found)} of {request.count} instances so far"
                return LaunchResult(instances=found, error=LaunchError(LaunchErrorKind.TRANSIENT, text))
            await asyncio.sleep(self._poll_s)
            waited += self._poll_s

    async def _give_up(
        self, request: LaunchRequest, mark: _Mark, found: tuple[Instance, ...], error: LaunchError
    ) -> LaunchResult:
        """Lower the capacity to what there is, so that the group does not go on buying; return a broken gang."""
        missing = request.count - len(found)
        await self._write_mark(request, replace(mark, is_done=True))
        group = await self._read_group(request.template)
        await self._set_capacity(request.template, max(int(group["DesiredCapacity"]) - missing, int(group["MinSize"])))
        if request.atomic:
            await self.terminate([each.provider_id for each in found])
            found = ()
        return LaunchResult(instances=found, error=error)

    async def _adopt(self, request: LaunchRequest, mark: _Mark) -> tuple[Instance, ...]:
        """Tag the oldest instances that the group launched since the request began and that belong to no request."""
        mine = list(await self._find_instances(request.request_id))
        group = await self._read_group(request.template)
        ids = [each["InstanceId"] for each in group["Instances"] if each["LifecycleState"] in _PRESENT]
        if len(mine) < request.count and ids:
            free = [
                each
                for each in await self._describe(InstanceIds=ids)
                if each.state in _ALIVE and not each.pool and each.launched_at >= mark.began_at
            ]
            free.sort(key=lambda each: (each.launched_at, each.provider_id))
            taken = free[: request.count - len(mine)]
            if taken:
                names = read_instance_ids([each.provider_id for each in taken])
                tags = make_tags(self._settings.cluster, request)
                await self._client.call("ec2", "create_tags", Resources=names, Tags=tags)
                mine = list(await self._find_instances(request.request_id))
        return tuple(mine)

    async def list_instances(self) -> tuple[Instance, ...]:
        found = await self._describe(Filters=[_filter(f"tag:{CLUSTER_TAG}", self._settings.cluster)])
        return tuple(each for each in found if each.state is not InstanceState.GONE)

    async def terminate(self, provider_ids: Collection[str]) -> None:
        wanted = set(read_instance_ids(provider_ids))
        owned = await self.list_instances() if wanted else ()
        alive = [each.provider_id for each in owned if each.state in _ALIVE]
        for each in sorted(wanted & set(read_instance_ids(alive))):
            await self._client.call(
                "autoscaling",
                "terminate_instance_in_auto_scaling_group",
                InstanceId=each,
                ShouldDecrementDesiredCapacity=True,
            )

    async def list_notices(self) -> tuple[InterruptionNotice, ...]:
        """Return nothing: the node agent reads notices from the instance's metadata."""
        return ()

    async def close(self) -> None:
        self._client.close()

    async def _find_instances(self, request_id: str) -> tuple[Instance, ...]:
        filters = [_filter(f"tag:{CLUSTER_TAG}", self._settings.cluster), _filter(f"tag:{REQUEST_TAG}", request_id)]
        return tuple(each for each in await self._describe(Filters=filters) if each.state in _ALIVE)

    async def _describe(self, **arguments: Any) -> list[Instance]:
        found = await self._client.list_all("ec2", "describe_instances", "Reservations", **arguments)
        return [read_instance(item) for reservation in found for item in reservation["Instances"]]

    async def _read_group(self, name: str) -> dict[str, Any]:
        answer = await self._client.call("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=[name])
        if not answer["AutoScalingGroups"]:
            text = f"there is no Auto Scaling group {name!r} in {self._settings.region}"
            raise LaunchError(LaunchErrorKind.BAD_TEMPLATE, text)
        group: dict[str, Any] = answer["AutoScalingGroups"][0]
        return group

    async def _set_capacity(self, name: str, capacity: int) -> None:
        await self._client.call(
            "autoscaling", "set_desired_capacity", AutoScalingGroupName=name, DesiredCapacity=capacity
        )

    async def _write_mark(self, request: LaunchRequest, mark: _Mark) -> None:
        tag = {
            "ResourceId": request.template,
            "ResourceType": "auto-scaling-group",
            "Key": _MARK + request.request_id,
            "Value": mark.write(),
            "PropagateAtLaunch": False,
        }
        await self._client.call("autoscaling", "create_or_update_tags", Tags=[tag])

    async def _find_failure(self, name: str, mark: _Mark) -> LaunchError | None:
        """Return why the group's newest activity since the request began failed, or None."""
        answer = await self._client.call(
            "autoscaling", "describe_scaling_activities", AutoScalingGroupName=name, MaxRecords=1
        )
        for activity in answer.get("Activities", ()):
            is_new = activity["StartTime"].timestamp() >= mark.began_at
            if is_new and activity.get("StatusCode") in {"Failed", "Cancelled"}:
                return read_failure(str(activity.get("StatusMessage", "")))
        return None


def read_failure(message: str) -> LaunchError:
    """Return the error in the message of a failed activity. It names an error code of EC2 among other words."""
    words = message.replace(".", " ").replace(":", " ").replace("-", " ").split()
    code = next((word for word in words if word in ERRORS), "")
    return LaunchError(find_kind(code, ERRORS) if code else LaunchErrorKind.NO_CAPACITY, message, code=code)


def _filter(name: str, value: str) -> dict[str, Any]:
    return {"Name": name, "Values": [value]}


def _read_marks(group: dict[str, Any]) -> dict[str, _Mark]:
    tags = {tag["Key"]: tag["Value"] for tag in group.get("Tags", ())}
    found = {key.removeprefix(_MARK): _Mark.read(value) for key, value in tags.items() if key.startswith(_MARK)}
    return {request_id: mark for request_id, mark in found.items() if mark}
