"""Equal files give equal layers, whatever their times, owners and order are."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile

import pytest

from kgwe import errors
from kgwe.images.files import write_layer


def fill(root, *, late: bool) -> None:
    names = ["usr/bin/tool", "etc/settings", "tmp/.keep"]
    for name in reversed(names) if late else names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (1_000 + late, 1_000 + late))
    (root / "usr/bin/tool").chmod(0o700 if late else 0o755)
    (root / "usr/bin/link").symlink_to("tool")


def test_equal_files_give_equal_bytes(tmp_path):
    layers = []
    for number in range(2):
        root = tmp_path / str(number)
        fill(root, late=bool(number))
        layers.append(write_layer(root, tmp_path / f"{number}.tar.gz", 7, "files"))

    assert layers[0].digest == layers[1].digest
    assert layers[0].diff_id == layers[1].diff_id


def test_the_digests_are_those_of_the_archive(tmp_path):
    fill(tmp_path / "root", late=False)
    layer = write_layer(tmp_path / "root", tmp_path / "layer.tar.gz", 7, "files")
    packed = layer.path.read_bytes()

    assert layer.digest == f"sha256:{hashlib.sha256(packed).hexdigest()}"
    assert layer.diff_id == f"sha256:{hashlib.sha256(gzip.decompress(packed)).hexdigest()}"
    assert layer.size == len(packed)
    with tarfile.open(layer.path) as archive:
        entries = {entry.name: entry for entry in archive}
    assert list(entries) == sorted(entries)
    assert {entry.mtime for entry in entries.values()} == {7}
    assert {entry.uid for entry in entries.values()} == {0}
    assert entries["usr/bin/tool"].mode == 0o755
    assert entries["etc/settings"].mode == 0o644
    assert entries["tmp"].mode == 0o1777
    assert entries["usr/bin/link"].linkname == "tool"


def test_a_hard_link_is_refused(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_text("a")
    os.link(root / "a", root / "b")

    with pytest.raises(errors.Permanent, match="hard link"):
        write_layer(root, tmp_path / "layer.tar.gz", 0, "files")
