"""The cgroup paths of the runtimes people run."""

from pathlib import Path

import pytest

from kgwe.hardware.linux import cgroups
from kgwe.hardware.linux.cgroups import PodCgroup

UID = "8d5f1a3c-02be-4f7a-9c1d-5e6f7a8b9c0d"
SPELLED = UID.replace("-", "_")
ID = "0123456789abcdef" * 4
STATIC = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
V1 = """\
12:pids:{path}
11:devices:{path}
3:cpu,cpuacct:{path}
1:name=systemd:{path}
0::{other}
"""

PATHS = {
    "cgroupfs": f"/kubepods/burstable/pod{UID}/{ID}",
    "cgroupfs guaranteed": f"/kubepods/pod{UID}/{ID}",
    "systemd containerd": (
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SPELLED}.slice/cri-containerd-{ID}.scope"
    ),
    "systemd guaranteed": f"/kubepods.slice/kubepods-pod{SPELLED}.slice/cri-containerd-{ID}.scope",
    "CRI-O": f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SPELLED}.slice/crio-{ID}.scope",
    "CRI-O with a child": (
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SPELLED}.slice/crio-{ID}.scope/container"
    ),
    "CRI-O monitor": f"/kubepods.slice/kubepods-pod{SPELLED}.slice/crio-conmon-{ID}.scope",
    "Docker": f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SPELLED}.slice/docker-{ID}.scope",
    "containerd without systemd driver": (
        f"/system.slice/containerd.service/kubepods-burstable-pod{SPELLED}.slice:cri-containerd:{ID}"
    ),
    "Kata": f"/kubepods/burstable/pod{UID}/kata_{ID}",
    "Kata overhead": f"/kata_overhead/kubepods/pod{UID}/{ID}",
    "kind": (
        "/docker/" + "f" * 64 + "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{SPELLED}.slice/cri-containerd-{ID}.scope"
    ),
    "kind cgroupfs": f"/kubelet/kubepods/burstable/pod{UID}/{ID}",
    "another cgroup namespace": f"/../../kubepods-burstable-pod{SPELLED}.slice/cri-containerd-{ID}.scope",
    "a cluster in a pod": f"/kubepods/pod{'e' * 32}/{'f' * 64}/kubepods/burstable/pod{UID}/{ID}",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_every_runtime_names_the_pod_and_the_container(path):
    assert cgroups.parse_cgroup(f"0::{path}\n") == PodCgroup(UID, ID)
    assert cgroups.parse_cgroup(V1.format(path=path, other="/")) == PodCgroup(UID, ID)


def test_a_static_pod_has_a_bare_hash():
    path = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{ID}.scope"
    assert cgroups.parse_cgroup(f"0::{path}") == PodCgroup(STATIC, ID)


def test_the_pods_own_cgroup_has_no_container():
    assert cgroups.parse_cgroup(f"0::/kubepods.slice/kubepods-pod{SPELLED}.slice") == PodCgroup(UID)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/",
        "0::/user.slice/user-1000.slice/session-1.scope",
        "0::/system.slice/nvidia-persistenced.service",
        f"0::/system.slice/docker-{ID}.scope",
        "0::/kubepods.slice/kubepods-burstable.slice",
        "0::/kubepods/podnotauid/x",
        f"0::/user.slice/mypod{UID}x/y",
        "\x00\x01garbage",
    ],
)
def test_what_is_in_no_pod_is_nobodys(text):
    assert cgroups.parse_cgroup(text) is None


def test_a_process_that_is_gone_is_nobodys(tmp_path: Path):
    (tmp_path / "11").mkdir()
    (tmp_path / "11" / "cgroup").write_text(f"0::{PATHS['CRI-O']}\n")
    (tmp_path / "12").mkdir()
    assert cgroups.map_pods([11, 12, 13, 11], tmp_path) == {11: UID}
