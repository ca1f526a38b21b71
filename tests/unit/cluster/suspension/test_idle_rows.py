"""Rows of idle, kept and suspended objects, read from their annotations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.fakes.memory_api import MemoryApi

from kgwe.cli import idle
from kgwe.cluster.suspension import idle_rows, marks
from kgwe.cluster.suspension.idle_rows import IdleRow
from kgwe.kube.api import resources
from kgwe.kube.client.client import Forbidden, KubeClient

NOW_S = 1_767_225_600.0  # 2026-01-01
GPUS = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}}


async def rows_of(*objects: tuple[Any, dict[str, Any]]) -> list[IdleRow]:
    client = KubeClient(MemoryApi())
    for kind, body in objects:
        await client.create(kind, body, "team")
    rows, hidden = await idle_rows.read_rows(client, None, NOW_S)
    assert hidden == []
    return rows


def deployment(name: str, replicas: int, **notes: Any) -> tuple[Any, dict[str, Any]]:
    return resources.DEPLOYMENT, {
        "metadata": {"name": name, "annotations": notes},
        "spec": {"replicas": replicas, "template": GPUS},
    }


async def test_each_state_has_its_row_and_other_objects_have_none():
    notice = marks.write_notice(marks.Notice(NOW_S - 5400, NOW_S + 600, 2.5))
    suspended = marks.write_record("kgwe-optimizer", "2026-01-01T00:00:00Z", "IdleGPU", 3)
    busy, idle_one, kept, stopped = await rows_of_named(notice, suspended)
    assert busy is None
    assert idle_one == IdleRow(
        "team", "b-idle", "Deployment", "Idle", "2", 5400.0, "suspended at 2026-01-01T00:10:00Z", 2.5
    )
    assert (kept.state, kept.next) == ("Kept", "may be suspended after 2026-01-01T04:00:00Z")
    assert (stopped.state, stopped.gpus, stopped.next) == ("Suspended", "6", "kgwe idle restore d-stopped -n team")
    assert (stopped.idle_for_seconds, stopped.saving_per_hour) == (None, None)


async def rows_of_named(notice: Any, suspended: Any) -> list[Any]:
    rows = await rows_of(
        deployment("a-busy", 1),
        deployment("b-idle", 1, **notice),
        deployment("c-kept", 1, **{marks.KEEP_UNTIL: "2026-01-01T04:00:00Z"}),
        deployment("d-stopped", 0, **suspended),
    )
    found = {row.name: row for row in rows}
    return [found.get(name) for name in ("a-busy", "b-idle", "c-kept", "d-stopped")]


async def test_what_annotations_claim_in_vain_is_unknown():
    notes = {marks.IDLE_SINCE: "yesterday", marks.IDLE_ACTION_AT: "", marks.IDLE_SAVING: "nan"}
    (row,) = await rows_of(deployment("w", 1, **notes))
    assert (row.idle_for_seconds, row.next, row.saving_per_hour) == (None, "", None)


async def test_a_record_on_an_object_that_runs_again_is_no_suspension():
    assert await rows_of(deployment("w", 2, **marks.write_record("kgwe-optimizer", "", "IdleGPU", 3))) == []


async def test_kinds_that_may_not_be_read_are_named_and_without_any_it_is_an_error():
    api = MemoryApi()
    api.refuse_next("GET", resources.JOB, 403, "no", "Forbidden")
    _, hidden = await idle_rows.read_rows(KubeClient(api), "team", NOW_S)
    assert hidden == ["jobs.batch"]
    for kind in (
        resources.GPU_WORKLOAD,
        resources.WARP_GPU_WORKLOAD,
        resources.JOB,
        resources.DEPLOYMENT,
    ):
        api.refuse_next("GET", kind, 403, "no", "Forbidden")
    rows, hidden = await idle_rows.read_rows(KubeClient(api), "team", NOW_S)
    assert (rows, len(hidden)) == ([], 4)


async def test_a_user_without_any_right_gets_an_error(monkeypatch: pytest.MonkeyPatch):
    async def refuse(*_: Any, **__: Any) -> Any:
        raise Forbidden("no")

    monkeypatch.setattr(MemoryApi, "request", refuse)
    with pytest.raises(Forbidden):
        await idle_rows.read_rows(KubeClient(MemoryApi()), "team", NOW_S)


def test_rows_are_printed_as_a_table_or_as_data():
    rows = [IdleRow("team", "w", "Job", "Idle", "8", 5400.0, "suspended at 2026-01-01T00:10:00Z", 2.5)]
    table = idle.print_rows(rows, "text").splitlines()
    assert table[0].split() == ["NAMESPACE", "NAME", "KIND", "GPUS", "IDLE", "FOR", "STATE", "NEXT", "SAVING/H"]
    assert " ".join(table[1].split()) == "team w Job 8 1h30m Idle suspended at 2026-01-01T00:10:00Z $2.50"
    assert json.loads(idle.print_rows(rows, "json"))[0]["savingPerHour"] == 2.5
    assert idle.print_rows(iter(rows), "yaml").startswith("- ")
    assert idle.print_rows([], "json") == "[]\n"
    assert idle.print_rows([], "text") == "No idle, kept or suspended workloads.\n"
