"""The agent's topologyFile: used where the driver is silent, named as a problem where it cannot be."""

from kgwe.apps.agent.status import gpunode_status
from kgwe.apps.agent.status.topology_file import TopologyFile
from kgwe.model.gpu import driver_data
from kgwe.model.gpu.topology import Slot

TEXT = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV12\t0-3\t0\n"
    "GPU1\tNV12\t X \t4-7\t1\n"
)  # fmt: skip


def machine() -> driver_data.Machine:
    cards = tuple(
        driver_data.Device(f"GPU-{n}", n, "NVIDIA A100-SXM4-80GB", 81920, Slot(f"00000000:{n + 1:02X}:00.0"))
        for n in range(2)
    )
    return driver_data.Machine("580.95.05", "13.0", cards)


def test_the_gpunode_has_what_the_file_tells(tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text(TEXT)
    file = TopologyFile(str(path))
    status = gpunode_status.build_status(file.complete(machine()))
    assert not file.problem
    assert [gpu.numaNode for gpu in status.gpus] == [0, 1]
    assert [gpu.cpuAffinity for gpu in status.gpus] == ["0-3", "4-7"]
    assert [gpu.nvlink.links for gpu in status.gpus if gpu.nvlink] == [12, 12]


def test_a_file_that_cannot_be_used_is_a_problem_and_nothing_else(tmp_path):
    path = tmp_path / "topo.txt"
    file = TopologyFile(str(path))
    assert file.complete(machine()) == machine()
    assert "No such file" in file.problem
    path.write_text(TEXT.replace("GPU1\tNV12", "GPU1\tNV11"))
    assert file.complete(machine()) == machine()
    assert "line 2" in file.problem
    path.write_text(TEXT)
    assert file.complete(machine()) != machine()
    assert not file.problem


def test_without_a_file_nothing_changes():
    assert TopologyFile("").complete(machine()) == machine()
