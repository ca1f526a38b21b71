"""A model trained on a small made-up stream, once for all tests of this folder."""

import numpy as np
import pytest

from kgwe.forecast.runtime.query import Query
from kgwe.forecast.runtime.replays import replay_queries
from kgwe.forecast.runtime.schema import Schema
from kgwe.forecast.runtime.training import TrainingSet, train_model

SCHEMA = Schema(("job", "team"), ("GPUs",))


def make_stream(count: int, seed: int = 1) -> tuple[list[Query], list[float]]:
    """Jobs of three teams, whose length depends on the job and the GPUs."""
    random = np.random.default_rng(seed)
    queries, lasted = [], []
    for index in range(count):
        job, gpus = int(random.integers(0, 9)), float(random.choice([1, 2, 4]))
        queries.append(Query(index * 20.0, (f"j|{job}", f"t|{job % 3}"), f"u{job % 4}", 1, (gpus,)))
        lasted.append(float((20 + 30 * job) / gpus**0.5 * np.exp(random.normal(0, 0.2))))
    return queries, lasted


@pytest.fixture(scope="session")
def training_set() -> TrainingSet:
    queries, lasted = make_stream(900)
    return replay_queries(SCHEMA, queries, lasted, [True] * len(lasted))


@pytest.fixture(scope="session")
def model(training_set):
    pytest.importorskip("lightgbm", exc_type=ImportError)
    return train_model(training_set, now_s=1e6)
