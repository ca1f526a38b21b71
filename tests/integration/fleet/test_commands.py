"""`kgwe local fleet`, `fault` and `metrics`, as typed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx2
import pytest
from tests.support.patience import PATIENCE_S

from kgwe.cli.main import main
from kgwe.local.fleet import exporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kgwe.local.cluster.cluster import LocalCluster

pytestmark = pytest.mark.cluster


@pytest.fixture
def run(
    cluster: LocalCluster,
    cluster_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Callable[..., str]]:
    """Runs `kgwe local …` on the cluster and returns what it printed; a failure is in there too."""
    monkeypatch.setenv("KGWE_STATE_DIR", str(cluster_root))

    def command(*arguments: str) -> str:
        capsys.readouterr()
        try:
            main(["local", *arguments, "--name", cluster.name])
        except SystemExit as done:
            assert done.code in (0, 1)  # noqa: PT017 - the code is the point
        printed = capsys.readouterr()
        return printed.out + printed.err

    yield command
    command("fault", "clear")


def test_a_fleet_is_brought_shown_broken_and_mended(run: Callable[..., str], cluster: LocalCluster) -> None:
    said = run("fleet", "apply", "models/mixed.yaml", "--nodes", "16")
    assert "Fleet mixed: 16 nodes" in said
    url = exporter.start(cluster)  # the one that apply started
    assert f"GPU metrics: {url}/metrics" in said

    table = run("fleet", "show")
    assert "a100-mig    1       1       8" in table
    assert "8 mig-1g.10gb, 8 mig-2g.20gb, 8 mig-3g.40gb" in table

    assert "GPU 3 of h100-0000 is Unhealthy: FallenOffTheBus (XID 79: the GPU no longer responds" in run(
        "fault", "gpu-xid", "h100-0000", "3", "79"
    )
    assert "has 16 of 18 NVLinks (400 GB/s)" in run("fault", "link-down", "h100-0000", "0", "--links", "2")
    assert "Node v100-0000 is down" in run("fault", "node-down", "v100-0000")
    assert "will be reclaimed at" in run("fault", "spot-notice", "l40s-spot-0000", "--after", "3600")
    listed = run("fault", "list").splitlines()
    assert listed[0] == "h100-0000: GPU 3: XID 79 (FallenOffTheBus); GPU 0: 2 NVLink into the NVSwitch down"
    assert listed[1].startswith("l40s-spot-0000: spot node reclaimed at 20")
    assert listed[2:] == ["v100-0000: node down"]
    shown = {node["name"]: node for node in json.loads(run("fleet", "show", "-o", "json"))}
    assert shown["h100-0000"]["allocatable"] == {"nvidia.com/gpu": "7"}
    assert shown["v100-0000"]["ready"] is False

    assert run("fault", "clear", "v100-0000") == "Cleared the faults of v100-0000.\n"
    assert run("fault", "clear") == "Cleared the faults of h100-0000, l40s-spot-0000.\n"
    assert run("fault", "clear") == "There were no faults to clear.\n"


def test_metrics_are_served_beside_the_cluster_and_printed_on_demand(
    run: Callable[..., str], cluster: LocalCluster
) -> None:
    run("fleet", "apply", "mixed", "--nodes", "16")
    url = exporter.start(cluster)
    text = httpx2.get(f"{url}/nodes/h100-0000/metrics", timeout=PATIENCE_S).raise_for_status().text
    assert text.count("DCGM_FI_DEV_GPU_TEMP{") == 8
    printed = run("metrics", "--once", "--node", "h100-0000")
    assert printed.count("DCGM_FI_DEV_GPU_TEMP{") == 8


def test_mistakes_are_answered_with_what_to_do(run: Callable[..., str]) -> None:
    assert "no fleet model 'nope'; expected the path of a file or one of dgx-h100" in run(
        "fleet", "apply", "nope", "--nodes", "1"
    )
    assert "the number of nodes must be from 0 to 20000, not -1" in run("fleet", "apply", "mixed", "--nodes", "-1")
    assert "no node nope; `kgwe local fleet show` lists the nodes" in run("fault", "node-down", "nope")


def test_the_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["local", "fleet", "models"])
    assert "mixed         H100, A100 (whole and MIG)" in capsys.readouterr().out
