import math

import pytest

from kgwe.forecast.runtime.query import Query
from kgwe.forecast.runtime.schema import Schema
from kgwe.forecast.runtime.stream import RunStream

SCHEMA = Schema(("job", "team"), ("GPUs",))


def ask(at_s: float, *, job: str = "a", user: str = "u") -> Query:
    return Query(at_s, (f"j|{job}", "t|x"), user, 1, (1.0,))


def read(stream: RunStream, query: Query) -> dict[str, float]:
    return dict(zip(SCHEMA.names, stream.describe(query), strict=True))


def test_the_schema_names_every_feature():
    assert len(RunStream(SCHEMA).describe(ask(0.0))) == len(SCHEMA.names) == len(set(SCHEMA.names))


def test_another_schema_has_another_digest():
    assert Schema(("job",)).digest != SCHEMA.digest


def test_a_running_run_says_nothing_about_its_duration():
    short, long = RunStream(SCHEMA), RunStream(SCHEMA)
    for stream, lasted in ((short, 50.0), (long, 5000.0)):
        stream.submit("1", ask(0.0))
        stream.schedule_end("1", lasted, lasted)
        stream.advance(40.0)
    assert short.describe(ask(40.0)) == pytest.approx(long.describe(ask(40.0)), nan_ok=True)


def test_an_ended_run_is_the_last_of_its_keys():
    stream = RunStream(SCHEMA)
    stream.submit("1", ask(0.0))
    stream.end("1", 99.0, 99.0)
    row = read(stream, ask(100.0))
    assert row["estimate"] == pytest.approx(math.log(100))
    assert row["job.last"] == pytest.approx(0.0)
    assert row["job.running"] == 0
    assert row["job.ended"] == pytest.approx(math.log(2))


def test_running_runs_are_counted_with_the_work_they_have_left():
    stream = RunStream(SCHEMA)
    stream.submit("1", ask(0.0))
    stream.end("1", 100.0, 100.0)
    stream.submit("2", ask(100.0))
    row = read(stream, ask(130.0))
    assert row["all.running"] == 1
    assert 40 < row["queue.work_left"] < 90


def test_a_forgotten_run_is_no_longer_running():
    stream = RunStream(SCHEMA)
    stream.submit("1", ask(0.0))
    stream.forget("1")
    stream.forget("never seen")
    assert read(stream, ask(1.0))["all.running"] == 0


def test_the_end_of_an_unknown_run_is_ignored():
    stream = RunStream(SCHEMA)
    stream.end("ghost", 5.0, 5.0)
    assert not stream.levels


def test_a_run_that_is_submitted_twice_counts_once():
    stream = RunStream(SCHEMA)
    stream.submit("1", ask(0.0))
    stream.submit("1", ask(0.0))
    assert read(stream, ask(1.0))["all.running"] == 1


def test_a_fine_key_is_drawn_to_its_coarse_one():
    stream = RunStream(SCHEMA)
    for number in range(30):
        stream.submit(f"b{number}", ask(number, job="b"))
        stream.end(f"b{number}", 1000.0, number + 1000.0)
    stream.submit("a", ask(3000.0))
    stream.end("a", 10.0, 3010.0)
    assert math.log1p(10) < stream.estimate(ask(4000.0)) < math.log1p(1000)


def test_unknown_stays_unknown():
    row = read(RunStream(SCHEMA), ask(0.0))
    assert math.isnan(row["job.last"])
    assert math.isnan(row["job.since_submission"])
    assert math.isnan(row["change.GPUs"])
