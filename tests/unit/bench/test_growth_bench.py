"""The benchmark of growth has a number for every size, and draws what it has."""

import struct
from pathlib import Path

import pytest

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.placement import growth, plot
from kgwe.local.host.progress import Silent

SMALL = growth.Options(
    nodes=(8, 16),
    gpus=(1, 4),
    gpus_nodes=6,
    gang_nodes=(128, 256),
    gang_pods=(1, 4),
    gang_pods_nodes=32,
    decisions=40,
    repeat=1,
)
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def measured() -> report.Report:
    return growth.run(SMALL, Silent())


def test_every_curve_has_a_time_for_every_size(measured: report.Report):
    metrics = measured.metrics
    assert {key: set(curves) for key, curves in metrics.items()} == {
        "pod_by_nodes": {"again", "new_template", "loop"},
        "pod_by_gpus": {"again", "new_template", "new_machine", "loop"},
        "gang_by_nodes": {"plan", "loop"},
        "gang_by_pods": {"plan", "loop"},
    }
    assert all(list(curve) == ["1", "4"] for curve in metrics["pod_by_gpus"].values())
    assert all(seconds > 0 for curves in metrics.values() for curve in curves.values() for seconds in curve.values())


@pytest.mark.slow  # matplotlib takes a second to import
def test_it_is_drawn(measured: report.Report, tmp_path: Path):
    pytest.importorskip("matplotlib")
    plot.draw(growth.build_panels(measured), tmp_path / "growth.png")
    drawn = (tmp_path / "growth.png").read_bytes()
    width, height = struct.unpack(">II", drawn[16:24])
    assert drawn.startswith(PNG)
    assert width > height > 500


@pytest.mark.slow
def test_a_picture_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path):
    pytest.importorskip("matplotlib")
    panel = plot.Panel("title", "nodes", {"plan": {"1": 0.001, "10": 0.01}})
    with pytest.raises(errors.Permanent, match="No such file"):
        plot.draw([panel], tmp_path / "absent" / "growth.png")
