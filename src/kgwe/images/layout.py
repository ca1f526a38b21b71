"""An OCI image layout in one tar archive: `docker load`, `ctr images import`, podman and skopeo read it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kgwe.images.files import Layer
    from kgwe.images.recipe import Recipe

INDEX: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_MAX_JSON: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Platform:
    """The layers of one architecture, the lowest first."""

    architecture: str
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """What the image says about itself."""

    version: str
    revision: str
    created: str
    """RFC 3339; the time of the commit, so that the same commit gives the same image."""


def write_layout(recipe: Recipe, platforms: Sequence[Platform], label: Label, reference: str, target: Path) -> str:
    """Write the archive; returns the digest of the image: of its index, which names one manifest per platform."""
    texts: dict[str, bytes] = {}
    manifests = [_describe_platform(recipe, platform, label, texts) for platform in platforms]
    index = _encode({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
    digest = _add(texts, index)
    entry = {
        "mediaType": INDEX,
        "digest": digest,
        "size": len(index),
        "annotations": {
            "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
            "io.containerd.image.name": reference,
        },
    }
    top = _encode({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        _write_bytes(archive, "oci-layout", _encode({"imageLayoutVersion": "1.0.0"}))
        _write_bytes(archive, "index.json", top)
        for name, data in sorted(texts.items()):
            _write_bytes(archive, _blob_path(name), data)
        written: set[str] = set()
        for layer in (layer for platform in platforms for layer in platform.layers):
            if layer.digest not in written:
                written.add(layer.digest)
                _write_file(archive, _blob_path(layer.digest), layer.path)
    return digest


def _describe_platform(recipe: Recipe, platform: Platform, label: Label, texts: dict[str, bytes]) -> dict[str, Any]:
    """Add configuration and manifest of a platform to the texts; returns its entry in the index."""
    annotations = _annotate(recipe, label)
    settings = _encode(
        {
            "created": label.created,
            "architecture": platform.architecture,
            "os": "linux",
            "config": {
                "User": f"{recipe.user_id}:{recipe.user_id}",
                "Env": [f"{name}={value}" for name, value in sorted(recipe.environment.items())],
                "Entrypoint": list(recipe.entrypoint),
                "Cmd": list(recipe.command),
                "WorkingDir": "/",
                "Labels": annotations,
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in platform.layers]},
            "history": [{"created": label.created, "created_by": layer.title} for layer in platform.layers],
        }
    )
    manifest = _encode(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": _CONFIG, "digest": _add(texts, settings), "size": len(settings)},
            "layers": [{"mediaType": _LAYER, "digest": layer.digest, "size": layer.size} for layer in platform.layers],
            "annotations": annotations,
        }
    )
    return {
        "mediaType": MANIFEST,
        "digest": _add(texts, manifest),
        "size": len(manifest),
        "platform": {"architecture": platform.architecture, "os": "linux"},
    }


def _annotate(recipe: Recipe, label: Label) -> dict[str, str]:
    named = {
        "title": recipe.name,
        "description": recipe.title,
        "version": label.version,
        "revision": label.revision,
        "created": label.created,
        "licenses": "Apache-2.0",
    }
    return {f"org.opencontainers.image.{key}": value for key, value in named.items() if value}


def _encode(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()


def _add(texts: dict[str, bytes], data: bytes) -> str:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    texts[digest] = data
    return digest


def _blob_path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _write_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def _write_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = path.stat().st_size
    with path.open("rb") as content:
        archive.addfile(entry, content)


# --- reading ---------------------------------------------------------------------------------------------


class Layout:
    """An image layout on disk. Every blob is checked against its digest when it is read."""

    def __init__(self, path: Path) -> None:
        self._name = str(path)
        try:
            self._archive = tarfile.open(path)  # noqa: SIM115 # closed by close()
            names = set(self._archive.getnames())
        except (OSError, tarfile.TarError) as exc:
            raise errors.Permanent(f"cannot read the image {path}: {exc}") from exc
        if not {"oci-layout", "index.json"} <= names:
            self._archive.close()
            raise errors.Permanent(f"{path} is not an OCI image layout: it has no index.json. Run: kgwe image build")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def find_image(self) -> dict[str, Any]:
        """The entry of the image in index.json."""
        entries = self._read_json("index.json").get("manifests")
        if not isinstance(entries, list) or len(entries) != 1:
            raise errors.Permanent(f"{self._name} must hold exactly one image")
        found: dict[str, Any] = entries[0]
        return found

    def read_document(self, digest: str) -> dict[str, Any]:
        """An index, a manifest or a configuration."""
        return self._read_json(_blob_path(digest), digest)

    def read_blob(self, digest: str) -> bytes:
        data = self._read(_blob_path(digest))
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            raise errors.Permanent(f"{self._name} is damaged: blob {digest} has other content")
        return data

    def _read_json(self, name: str, digest: str = "") -> dict[str, Any]:
        data = self.read_blob(digest) if digest else self._read(name)
        if len(data) > _MAX_JSON:
            raise errors.Permanent(f"{self._name} is damaged: {name} has {len(data)} bytes")
        try:
            tree = json.loads(data)
        except ValueError as exc:
            raise errors.Permanent(f"{self._name} is damaged: {name} is not JSON") from exc
        if not isinstance(tree, dict):
            raise errors.Permanent(f"{self._name} is damaged: {name} is not an object")
        return tree

    def _read(self, name: str) -> bytes:
        try:
            content = self._archive.extractfile(name)
        except KeyError:
            content = None
        if content is None:
            raise errors.Permanent(f"{self._name} is damaged: {name} is missing")
        return content.read()
