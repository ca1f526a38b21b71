"""A proxy before moto's server that enforces what moto ignores: idempotency tokens, MinTargetCapacity and capacity.

Placement groups, which moto does not have, are the proxy's own.
It also answers in the documented words of AWS errors on command, and loses answers.
"""

from __future__ import annotations

import datetime as dt
import http.client
import re
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode

_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"


@dataclass
class Failure:
    """An error of AWS that one call gets."""

    code: str
    status: int = 400
    message: str = "as asked by the test"
    actions: frozenset[str] = frozenset()
    """Empty: any call."""


@dataclass
class AwsProxy:
    """The proxy and what it enforces."""

    moto_port: int
    capacity: int = 1000
    failures: deque[Failure] = field(default_factory=deque)
    lost_answers: int = 0
    calls: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    activity: str = ""
    """Message of the groups' newest activity if it failed."""
    max_size: int | None = None
    _desired: dict[str, int] = field(default_factory=dict)
    """Groups whose desired capacity is above what the cloud has."""
    _answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    placement_groups: dict[str, str] = field(default_factory=dict)
    """Name -> strategy."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        self.capacity, self.lost_answers, self.activity, self.max_size = 1000, 0, "", None
        self.failures.clear()
        self.calls.clear()
        self._desired.clear()

    def start(self) -> ThreadingHTTPServer:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                answer = proxy.answer(dict(self.headers.items()), body)
                if answer is None:
                    self.close_connection = True
                    return
                status, text = answer
                self.send_response(status)
                self.send_header("Content-Type", "text/xml")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def answer(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes] | None:
        """Return status and body, or None to close the connection without an answer."""
        form = {key: values[0] for key, values in parse_qs(body.decode(), keep_blank_values=True).items()}
        action = form.get("Action", "")
        with self._lock:
            self.calls.append((action, form))
            failure = next((each for each in self.failures if not each.actions or action in each.actions), None)
            if failure:
                self.failures.remove(failure)
                return failure.status, _error(failure)
            found = self._act(action, form, headers)
            if self.lost_answers and action in {"CreateFleet", "SetDesiredCapacity"}:
                self.lost_answers -= 1
                return None
            return found

    def _act(self, action: str, form: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        if action == "CreateFleet":
            token = form["ClientToken"]
            if token not in self._answers:
                self._answers[token] = self._create_fleet(form, headers)
            return self._answers[token]
        if action == "CreatePlacementGroup":
            return self._create_placement_group(form)
        if action == "SetDesiredCapacity":
            return self._set_capacity(form, headers)
        if action == "DescribeScalingActivities" and self.activity:
            return 200, _activities(self.activity)
        status, text = self._forward(form, headers)
        if action == "DescribeAutoScalingGroups":
            text = self._correct_groups(text)
        if action in {"TerminateInstances", "TerminateInstanceInAutoScalingGroup"} and status == 200:
            self.capacity += sum(key.startswith("InstanceId") for key in form)
        return status, text

    def _correct_groups(self, text: bytes) -> bytes:
        for name, desired in self._desired.items():
            if f"<AutoScalingGroupName>{name}<".encode() in text:
                text = re.sub(rb"<DesiredCapacity>\d+<", f"<DesiredCapacity>{desired}<".encode(), text)
        if self.max_size is not None:
            text = re.sub(rb"<MaxSize>\d+<", f"<MaxSize>{self.max_size}<".encode(), text)
        return text

    def _create_placement_group(self, form: dict[str, str]) -> tuple[int, bytes]:
        if form["GroupName"] in self.placement_groups:
            return 400, _error(Failure("InvalidPlacementGroup.Duplicate"))
        self.placement_groups[form["GroupName"]] = form["Strategy"]
        name = "CreatePlacementGroupResponse"
        return 200, f'<{name} xmlns="{_NAMESPACE}"><return>true</return></{name}>'.encode()

    def _create_fleet(self, form: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        total = int(form["TargetCapacitySpecification.TotalTargetCapacity"])
        least = max((int(value) for key, value in form.items() if key.endswith("Options.MinTargetCapacity")), default=1)
        got = min(total, self.capacity)
        if got < least:
            return 200, _fleet(b"", failed=True)
        status, text = self._forward({**form, "TargetCapacitySpecification.TotalTargetCapacity": str(got)}, headers)
        if status == 200:
            self.capacity -= got
            if got < total:
                text = text.replace(b"</fleetId>", b"</fleetId>" + _FLEET_ERRORS)
        return status, text

    def _set_capacity(self, form: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        name, wanted = form["AutoScalingGroupName"], int(form["DesiredCapacity"])
        _, text = self._forward(
            {"Action": "DescribeAutoScalingGroups", "Version": "2011-01-01", "AutoScalingGroupNames.member.1": name},
            headers,
        )
        have = text.count(b"<InstanceId>")
        got = min(wanted, have + max(self.capacity, 0))
        self.capacity -= max(got - have, 0)
        self._desired.pop(name, None)
        if got < wanted:
            self._desired[name] = wanted
            self.activity = self.activity or (
                "Could not launch On-Demand Instances. InsufficientInstanceCapacity - We currently do not have "
                "sufficient capacity. Launching EC2 instance failed."
            )
        return self._forward({**form, "DesiredCapacity": str(got)}, headers)

    def _forward(self, form: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        body = urlencode(form)
        kept = {key: value for key, value in headers.items() if key.lower() in {"authorization", "x-amz-date"}}
        connection = http.client.HTTPConnection("127.0.0.1", self.moto_port, timeout=30)
        connection.request(
            "POST", "/", body, {**kept, "Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        )
        answer = connection.getresponse()
        try:
            return answer.status, answer.read()
        finally:
            connection.close()


_FLEET_ERRORS = (
    b"<errorSet><item><errorCode>InsufficientInstanceCapacity</errorCode><errorMessage>There is no capacity available "
    b"that matches your request.</errorMessage><lifecycle>spot</lifecycle></item></errorSet>"
)


def _fleet(instances: bytes, *, failed: bool) -> bytes:
    return (
        f'<CreateFleetResponse xmlns="{_NAMESPACE}"><requestId>r</requestId><fleetId>fleet-0</fleetId>'.encode()
        + (_FLEET_ERRORS if failed else b"")
        + b"<fleetInstanceSet>"
        + instances
        + b"</fleetInstanceSet></CreateFleetResponse>"
    )


def _error(failure: Failure) -> bytes:
    """Errors of EC2 and of Auto Scaling, which botocore reads alike."""
    return (
        f"<Response><Errors><Error><Code>{failure.code}</Code><Message>{failure.message}</Message></Error></Errors>"
        f"<Error><Code>{failure.code}</Code><Message>{failure.message}</Message></Error>"
        "<RequestID>r</RequestID></Response>"
    ).encode()


def _activities(message: str) -> bytes:
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.999Z")
    return (
        '<DescribeScalingActivitiesResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">'
        "<DescribeScalingActivitiesResult><Activities><member><ActivityId>a</ActivityId>"
        "<AutoScalingGroupName>g</AutoScalingGroupName><Cause>c</Cause>"
        f"<StartTime>{now}</StartTime><StatusCode>Failed</StatusCode><StatusMessage>{message}</StatusMessage>"
        "</member></Activities></DescribeScalingActivitiesResult></DescribeScalingActivitiesResponse>"
    ).encode()
