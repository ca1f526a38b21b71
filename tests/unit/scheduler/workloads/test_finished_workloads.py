"""When a workload that has ended is deleted."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders.objects import workload
from tests.support.fakes.recording_client import RecordingClient

from kgwe import errors
from kgwe.apps.scheduler.workloads.finished_workloads import FinishedWorkloads
from kgwe.cluster.workload.workload import from_kgwe
from kgwe.kube.api import timestamp

ENDED = "2026-01-01T00:00:00Z"


def ended(ttl_s: int | None, **status: Any) -> Any:
    made = from_kgwe(workload(phase="Succeeded", **{"completionTime": ENDED} | status))
    return made.__class__(**{name: getattr(made, name) for name in made.__slots__} | {"ttl_s": ttl_s})


@pytest.mark.parametrize(("after_s", "verbs", "again"), [(0, [], [60.0]), (59, [], [1.0]), (60, ["delete"], [])])
async def test_it_is_deleted_when_its_time_has_come_and_not_before(
    after_s: int, verbs: list[str], again: list[float]
) -> None:
    client = RecordingClient()
    later: list[float] = []
    now = timestamp.epoch_seconds(ENDED) + after_s
    found = FinishedWorkloads(
        client,  # type: ignore[arg-type] # notes writes
        requeue=lambda _key, delay_s: later.append(delay_s),
        now=lambda: now,
    )
    assert await found.expire(ended(60)) is bool(verbs)
    assert [write.verb for write in client.writes] == verbs
    assert later == again


@pytest.mark.parametrize("kept", [ended(None), ended(0, completionTime=None)])
async def test_without_a_time_or_an_end_it_is_kept(kept: Any) -> None:
    client = RecordingClient()
    found = FinishedWorkloads(client, requeue=lambda *_: None)  # type: ignore[arg-type] # notes writes
    assert not await found.expire(kept)
    assert not client.writes


async def test_a_workload_that_is_gone_is_no_error() -> None:
    client = RecordingClient(errors.NotFound("gone"))
    found = FinishedWorkloads(client, requeue=lambda *_: None)  # type: ignore[arg-type] # notes writes
    assert await found.expire(ended(0))
