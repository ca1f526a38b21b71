"""From lines of an audit log to rates."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest

from kgwe.bench.cluster.measure import timeline
from kgwe.bench.cluster.measure.audit import AuditTail
from kgwe.bench.cluster.measure.timeline import Timeline

if TYPE_CHECKING:
    from pathlib import Path

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def stamp(seconds: float) -> str:
    return (START + dt.timedelta(seconds=seconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def line(resource: str, name: str, at: float, took: float = 0.0, **more: Any) -> str:
    """One line as the API server writes it."""
    ref = {"resource": resource, "namespace": more.get("namespace", "bench"), "name": name, "apiVersion": "v1"}
    if sub := more.get("subresource"):
        ref["subresource"] = sub
    entry = {
        "kind": "Event",
        "level": "Metadata",
        "stage": "ResponseComplete",
        "verb": more.get("verb", "create"),
        "objectRef": ref,
        "responseStatus": {"metadata": {}, "code": more.get("code", 201)},
        "requestReceivedTimestamp": stamp(at),
        "stageTimestamp": stamp(at + took),
    }
    return json.dumps(entry, separators=(",", ":")) + "\n"


def binding(pod: str, at: float, **more: Any) -> str:
    return line("pods", pod, at, subresource="binding", **more)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "audit.log"
    path.touch()
    return path


def read(log: Path, resource: str, *lines: str) -> Timeline:
    log.write_text("".join(lines))
    times = Timeline(resource)
    times.add(AuditTail(log, "bench").read())
    return times


def test_the_rate_counts_from_the_first_submission_to_the_last_binding(log: Path):
    times = read(
        log,
        "jobs",
        line("jobs", "w-000000", 0.0, took=0.1),
        line("jobs", "w-000001", 0.5, took=0.1),
        binding("w-000001-abcde", 1.0),
        binding("w-000000-fghij", 2.0),
    )
    assert times.rate() == pytest.approx(1.0)
    assert times.bind_seconds() == pytest.approx([0.5, 2.0])
    assert times.submit_s() == pytest.approx(0.6)


def test_a_pod_of_a_workload_belongs_to_it_whatever_its_job_is_called(log: Path):
    times = read(
        log,
        "gpuworkloads",
        line("gpuworkloads", "w-000007", 0.0),
        line("jobs", "w-000007-job-0a1b2c3d", 0.2),
        binding("w-000007-job-0a1b2c3d-xyz12", 0.4),
    )
    assert times.submitted.keys() == times.bound.keys() == {"w-000007"}


def test_a_second_binding_of_the_same_work_is_noticed(log: Path):
    times = read(log, "jobs", line("jobs", "w-000000", 0.0), binding("w-000000-a", 1.0), binding("w-000000-b", 2.0))
    assert times.doubled == 1
    assert times.bind_seconds() == pytest.approx([1.0])


def test_a_refused_binding_is_counted_but_binds_nothing(log: Path):
    times = read(log, "pods", line("pods", "w-000000", 0.0), binding("w-000000", 1.0, code=409))
    assert (times.refused, times.bound) == (1, {})


def test_other_namespaces_verbs_and_failed_submissions_do_not_count(log: Path):
    times = read(
        log,
        "jobs",
        line("jobs", "w-000000", 0.0, namespace="bench-warm-up"),
        line("jobs", "w-000001", 0.0, verb="patch"),
        line("jobs", "w-000002", 0.0, code=500),
        binding("w-000000-a", 1.0, namespace="bench-warm-up"),
    )
    assert times.submitted == times.bound == {}


def test_a_gang_takes_from_its_last_pod_submitted_to_its_last_pod_bound(log: Path):
    times = read(
        log,
        "pods",
        *(line("pods", f"w-00000{number}", float(number)) for number in range(4)),
        binding("w-000000", 3.0),
        binding("w-000001", 5.0),
        binding("w-000002", 6.0),
    )
    assert times.gang_seconds([["w-000000", "w-000001"], ["w-000002", "w-000003"]]) == pytest.approx([4.0])


def test_only_the_verb_that_was_asked_for_is_read(log: Path):
    log.write_text(line("pods", "w-000000", 0.0) + line("pods", "w-000000", 1.0, verb="patch", code=200))
    assert [entry.verb for entry in AuditTail(log, "bench", "patch").read()] == ["patch"]


def test_a_line_written_in_two_halves_is_read_once_it_is_whole(log: Path):
    tail = AuditTail(log, "bench")
    text = line("pods", "w-000000", 0.0)
    log.write_text(text[:50])
    assert tail.read() == []
    with log.open("a") as file:
        file.write(text[50:])
    assert [entry.object.name for entry in tail.read()] == ["w-000000"]
    assert tail.read() == []


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (50, 2.0), (75, 3.0), (99, 4.0), (100, 4.0)])
def test_a_percentile_is_a_value_that_was_seen(percent: float, value: float):
    assert timeline.percentile([1.0, 2.0, 3.0, 4.0], percent) == value
