"""The files of a real node: settings that containerd, the kubelet and kube-proxy read, and images that ctr imports."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from kgwe.errors import Permanent
from kgwe.local.host import cgroups
from kgwe.local.node import addresses, image_files, programs, settings_files
from kgwe.local.node import spec as node_spec
from kgwe.local.node.addresses import Addresses
from kgwe.local.node.spec import NodeSpec, Program


def test_containerd_reads_toml_with_the_node_s_own_folders(tmp_path: Path):
    text = settings_files.containerd_configuration(tmp_path, Path("/usr/lib/cni"), Path("/usr/sbin/runc"))
    parsed = tomllib.loads(text)
    assert parsed["root"] == str(tmp_path / "containerd")
    runtime = parsed["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["cdi_spec_dirs"] == [settings_files.CDI_FOLDER]
    assert runtime["containerd"]["runtimes"]["runc"]["options"]["BinaryName"] == "/usr/sbin/runc"


def test_the_kubelet_has_a_control_group_of_its_own_and_refuses_anonymous_requests(tmp_path: Path):
    settings = yaml.safe_load(
        settings_files.kubelet_configuration(tmp_path, tmp_path / "ca.crt", Addresses(3), "kgwe-abc")
    )
    assert settings["cgroupRoot"] == "/kgwe-abc"
    assert settings["authentication"]["anonymous"] == {"enabled": False}
    assert settings["address"] == "10.200.3.2"


def test_nodes_of_one_machine_have_different_subnets():
    all_of_them = [Addresses(slot) for slot in addresses.SLOTS]
    assert len({each.pods for each in all_of_them}) == len({each.node for each in all_of_them}) == len(addresses.SLOTS)
    assert addresses.choose_slot({0, 1}) not in {0, 1}
    with pytest.raises(Permanent, match="16 real nodes run"):
        addresses.choose_slot(set(addresses.SLOTS))


def test_an_image_has_digests_of_its_content(tmp_path: Path):
    archive = tmp_path / "image.tar"
    image_files.write_image(
        archive, "kgwe.local/x:1", {"bin/x": b"x"}, links={"bin/y": "/bin/x"}, entrypoint=["/bin/x"]
    )
    with tarfile.open(archive) as tar:
        contents = {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    (manifest,) = json.loads(contents["index.json"])["manifests"]
    assert manifest["annotations"] == {"io.containerd.image.name": "kgwe.local/x:1"}
    for name, data in contents.items():
        if name.startswith("blobs/"):
            assert name.rpartition("/")[2] == hashlib.sha256(data).hexdigest()
    described = json.loads(contents[f"blobs/sha256/{manifest['digest'].partition(':')[2]}"])
    assert f"blobs/sha256/{described['layers'][0]['digest'].partition(':')[2]}" in contents


def test_a_node_file_is_read_as_it_was_written(tmp_path: Path):
    spec = NodeSpec("real-0", str(tmp_path), 2, "g", 6443, Program("containerd", ("/x",), "/log"), (), "/ctr", ())
    spec.folder.mkdir()
    assert node_spec.load(node_spec.save(spec)) == spec
    assert node_spec.load(tmp_path / "missing") is None
    (tmp_path / "damaged").write_text("{")
    assert node_spec.load(tmp_path / "damaged") is None
    with pytest.raises(Permanent, match="node up"):
        node_spec.load_from_arguments([])


def test_every_problem_of_the_machine_is_named_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(programs, "find_system_program", lambda _name: None)
    monkeypatch.setattr(programs, "find_cni_folder", lambda: None)
    with pytest.raises(Permanent) as caught:
        programs.ensure_programs()
    said = str(caught.value)
    assert "root is needed" in said
    assert "apt-get install iproute2 iptables" in said
    assert "containernetworking-plugins" in said


def test_hierarchies_of_control_groups_are_read_from_the_mounts():
    mounts = (
        "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
        "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    )
    assert cgroups.list_hierarchies(mounts) == [
        (Path("/sys/fs/cgroup/cpu"), "cgroup"),
        (Path("/sys/fs/cgroup/unified"), "cgroup2"),
    ]


def test_removing_a_group_that_does_not_exist_is_no_error():
    cgroups.remove("kgwe-test-that-does-not-exist")
