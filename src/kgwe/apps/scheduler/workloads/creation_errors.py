"""Reads why a Job or Deployment could not create its pods: the API server's message, such as an exceeded quota."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from kgwe.cluster.workload.runs import Run
    from kgwe.kube.client.client import KubeClient

# What the message begins with: `Error creating: pods "train-0-" is forbidden: exceeded quota: …`.
_PREFIX: Final = re.compile(r'^(Error creating: )?(pods "[^"]*" is forbidden: )?')


class _Event(msgspec.Struct, frozen=True):
    note: str = ""


class _Events(msgspec.Struct, frozen=True):
    items: tuple[_Event, ...] = ()


async def find_creation_error(client: KubeClient, run: Run) -> str:
    """Why the API server refused the pods of a run; empty if that is not known."""
    try:
        text = await (_read_condition if run.serves else _read_event)(client, run)
    except errors.KgweError:
        return ""
    return _PREFIX.sub("", text).rstrip(".")


async def _read_condition(client: KubeClient, run: Run) -> str:
    found = await client.get(resources.DEPLOYMENT, run.meta.name, run.meta.namespace)
    return next((each.message for each in found.status.conditions if each.type == "ReplicaFailure"), "")


async def _read_event(client: KubeClient, run: Run) -> str:
    """Jobs have no such condition: the Job controller writes an Event."""
    path = f"/apis/events.k8s.io/v1/namespaces/{run.meta.namespace}/events"
    params = {"fieldSelector": f"regarding.uid={run.meta.uid},reason=FailedCreate"}
    body = await client.request("GET", path, params=params)
    notes = [event.note for event in msgspec.json.decode(body, type=_Events).items]
    return notes[-1] if notes else ""
