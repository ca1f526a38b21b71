"""The files of one layer, and the layer as a reproducible tar archive.

Equal files give equal bytes: entries are sorted, and all have the same time, owner and mode bits.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_GZIP_LEVEL: Final = 6
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer on disk: its compressed archive and the digests that the image's configuration names."""

    path: Path
    digest: str
    """Of the compressed archive."""
    diff_id: str
    """Of the archive itself."""
    size: int
    title: str


def write_layer(root: Path, target: Path, epoch: int, title: str) -> Layer:
    """Write all files below `root` as a compressed layer. `epoch`: the time of every entry."""
    raw, packed = hashlib.sha256(), hashlib.sha256()
    with target.open("wb") as file:
        counted = _Counted(file, packed)
        with gzip.GzipFile(filename="", mode="wb", compresslevel=_GZIP_LEVEL, fileobj=counted, mtime=0) as zipped:
            _write_tar(root, _Counted(zipped, raw), epoch)
    return Layer(target, f"sha256:{packed.hexdigest()}", f"sha256:{raw.hexdigest()}", target.stat().st_size, title)


def _write_tar(root: Path, stream: _Counted, epoch: int) -> None:
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK) as archive:
        for path in _list_sorted(root):
            entry = archive.gettarinfo(path, arcname=path.relative_to(root).as_posix())
            if entry is None:  # a socket
                raise errors.Permanent(f"{path} cannot be in an image layer")
            _normalise(entry, epoch)
            if entry.isreg():
                with path.open("rb") as content:
                    archive.addfile(entry, content)
            else:
                archive.addfile(entry)


def _list_sorted(root: Path) -> Iterator[Path]:
    found = [Path(folder) / name for folder, folders, files in os.walk(root) for name in (*folders, *files)]
    return iter(sorted(found, key=lambda path: path.relative_to(root).as_posix()))


def _normalise(entry: tarfile.TarInfo, epoch: int) -> None:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = epoch
    entry.pax_headers = {}
    if entry.islnk():
        raise errors.Permanent(f"{entry.name} is a hard link, which depends on how the files were copied")
    if entry.isdir():
        entry.mode = 0o1777 if entry.name == "tmp" else 0o755
    elif entry.isreg():
        entry.mode = 0o755 if entry.mode & stat.S_IXUSR else 0o644


class _Counted(io.RawIOBase):
    """Writes through to a stream and hashes what passes."""

    def __init__(self, stream: BinaryIO | _Counted | gzip.GzipFile, digest: hashlib._Hash) -> None:
        self._stream = stream
        self._digest = digest

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override] # only bytes are written here
        self._digest.update(data)
        self._stream.write(data)
        return len(data)
