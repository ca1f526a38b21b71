"""`kgwe bench rightsize` on small recorded histories."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from kgwe import errors
from kgwe.bench.workloads import rightsize
from kgwe.local.host import progress

GIB = 1 << 30


def write_histories(folder: Path, histories: dict[str, list[float]]) -> Path:
    lines = ["value,timestamp_anon,container_ip"]
    for name, values in histories.items():
        lines += [f"{value * GIB},{number * 60},{name}" for number, value in enumerate(values)]
    with gzip.open(folder / rightsize.MEMORY, "wt") as file:
        file.write("\n".join(lines) + "\n")
    return folder


def steady(level: float, length: int = 720) -> list[float]:
    return [level + 0.01 * (number % 7) for number in range(length)]


def with_peak(values: list[float], at: int, peak: float) -> list[float]:
    return [peak if number == at else value for number, value in enumerate(values)]


def test_a_peak_of_one_replica_is_expected_of_the_others(tmp_path: Path):
    histories = {f"replica{number}": steady(20) for number in range(10)}
    histories["replica0"] = with_peak(histories["replica0"], 300, 40)
    histories["replica1"] = with_peak(histories["replica1"], 500, 39)
    metrics = rightsize.run(write_histories(tmp_path, histories), progress.for_stream()).metrics

    assert metrics["violated_share"] == 0
    assert metrics["krr_violated_share"] == 0.1


def test_containers_of_another_size_are_not_replicas(tmp_path: Path):
    histories = {f"large{number}": steady(40) for number in range(3)} | {"small": steady(5)}
    read = rightsize.read_histories(write_histories(tmp_path, histories) / rightsize.MEMORY)

    limits = rightsize.recommend_limits(read)

    assert limits[-1] < 8 * 1024
    assert (limits[:-1] > 40 * 1024).all()


def test_the_second_half_does_not_change_a_limit(tmp_path: Path):
    quiet = rightsize.read_histories(write_histories(tmp_path, {"a": steady(20)}) / rightsize.MEMORY)
    loud = rightsize.read_histories(write_histories(tmp_path, {"a": with_peak(steady(20), 700, 60)}) / rightsize.MEMORY)

    limits = [rightsize.recommend_limits([history.split()[0] for history in each]) for each in (quiet, loud)]

    assert np.array_equal(limits[0], limits[1])
    assert rightsize.judge(limits[1], [each.split()[1] for each in loud]).violated_share == 1


def test_rows_that_are_not_numbers_are_skipped(tmp_path: Path):
    folder = write_histories(tmp_path, {"a": steady(20)})
    with gzip.open(folder / rightsize.MEMORY, "at") as file:
        file.write("nan,60,a\nx,y,a\n,,\n")

    assert len(rightsize.read_histories(folder / rightsize.MEMORY)[0].used_mib) == 720


def test_a_file_without_histories_is_an_error(tmp_path: Path):
    with pytest.raises(errors.NotFound, match="no container with 120 samples"):
        rightsize.run(write_histories(tmp_path, {"a": steady(20, 10)}), progress.for_stream())
