"""Image archives of single static programs, for a node without a registry.

An archive is an OCI layout (one layer, its configuration, a manifest and the index) as `ctr images import` reads it.
"""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
import subprocess
import tarfile
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.errors import Permanent
from kgwe.local.node.programs import find_system_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_APPLETS: Final = ("sh", "sleep", "echo", "env", "cat", "true", "false", "wget", "nc", "nslookup", "ls", "id", "httpd")
_PROGRAM_MODE: Final = 0o755


def write_pause_image(archive: Path, reference: str) -> None:
    """Compile the first process of pods, and write its image."""
    compiler = shutil.which("cc") or "cc"
    program = archive.with_suffix(".program")
    with resources.as_file(resources.files("kgwe.local.node") / "c" / "pause.c") as source:
        done = subprocess.run(
            [compiler, "-std=gnu11", "-Os", "-static", "-s", "-o", program, source],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    if done.returncode:
        raise Permanent(f"cannot compile the first process of pods:\n{done.stderr[-2000:]}")
    write_image(archive, reference, {"pause": program.read_bytes()}, links={}, entrypoint=["/pause"])
    program.unlink()


def write_busybox_image(archive: Path, reference: str) -> bool:
    """Write an image with the machine's static busybox; return False if the machine has none."""
    busybox = find_system_program("busybox")
    if busybox is None or not _is_static(busybox):
        return False
    links = {f"bin/{name}": "/bin/busybox" for name in _APPLETS}
    write_image(archive, reference, {"bin/busybox": busybox.read_bytes()}, links=links, entrypoint=[])
    return True


def _is_static(program: Path) -> bool:
    """Whether the ELF file names no interpreter, which is the dynamic linker."""
    return b"/ld-linux" not in program.read_bytes()[:4096]


def write_image(
    archive: Path, reference: str, files: Mapping[str, bytes], *, links: Mapping[str, str], entrypoint: Sequence[str]
) -> None:
    """Write an image of some programs; `links` are symbolic links to them."""
    layer = _make_layer(files, links)
    system = {"architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
    config = msgspec.json.encode(
        {
            **system,
            "config": {"Entrypoint": list(entrypoint) or None, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    kind = "application/vnd.oci.image"
    manifest = msgspec.json.encode(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": _describe(f"{kind}.config.v1+json", config),
            "layers": [_describe(f"{kind}.layer.v1.tar", layer)],
        }
    )
    entry = {
        **_describe(f"{kind}.manifest.v1+json", manifest),
        "platform": system,
        "annotations": {"io.containerd.image.name": reference},
    }
    index = msgspec.json.encode({"schemaVersion": 2, "mediaType": f"{kind}.index.v1+json", "manifests": [entry]})
    contents = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": index}
    contents |= {f"blobs/sha256/{_digest(blob).partition(':')[2]}": blob for blob in (layer, config, manifest)}
    with tarfile.open(archive, "w") as tar:
        for name, data in contents.items():
            _add_file(tar, name, data, 0o644)


def _make_layer(files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for folder in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for name, data in files.items():
            _add_file(tar, name, data, _PROGRAM_MODE)
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return made.getvalue()


def _add_file(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def _describe(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"
