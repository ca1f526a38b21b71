"""Manifests of any kind: read YAML, find where each kind lives, apply it server-side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml

from kgwe import errors, text_files, yaml_text
from kgwe.kube.api.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from kgwe.kube.client.client import KubeClient

Document = dict[str, Any]

# `kubectl get -o yaml` of a large cluster is tens of MiB.
_MAX_BYTES: Final = 128 << 20


class _ApiResource(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool


class _ApiResourceList(msgspec.Struct):
    resources: list[_ApiResource]


def load_manifests(path: Path) -> list[Document]:
    """The objects of a YAML file, those in Lists included; Permanent, naming the file, when it holds anything else."""
    try:
        return parse_manifests(text_files.read_text(path, _MAX_BYTES), str(path))
    except OSError as exc:
        raise errors.Permanent(f"cannot read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise errors.Permanent(_describe_yaml_error(str(path), exc)) from exc


def parse_manifests(text: str, source: str) -> list[Document]:
    """The objects of a YAML text; Permanent, naming the source, when it holds anything else."""
    try:
        documents = [document for document in yaml_text.parse_documents(text) if document is not None]
    except (yaml.YAMLError, ValueError) as exc:
        raise errors.Permanent(_describe_yaml_error(source, exc)) from exc
    found = []
    for number, document in enumerate(documents, 1):
        for where, each in _unpack_list(document, f"document {number}"):
            if not _is_manifest(each):
                raise errors.Permanent(f"{source}, {where}: needs apiVersion, kind and metadata.name, all of them text")
            found.append(each)
    return found


def _describe_yaml_error(source: str, exc: Exception) -> str:
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark is not None:
        return f"{source}, line {exc.problem_mark.line + 1}: not valid YAML: {exc.problem}"
    return f"{source} is not valid YAML: {exc if isinstance(exc, yaml_text.TooDeep) else 'it is not text'}"


def _unpack_list(document: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The items of a List (`kubectl get -o yaml` prints one), else the document itself."""
    if not isinstance(document, dict) or document.get("kind") != "List" or document.get("apiVersion") != "v1":
        yield where, document
        return
    items = document.get("items")
    for number, item in enumerate(items if isinstance(items, list) else (), 1):
        yield f"{where}, item {number}", item


def _is_manifest(document: Any) -> bool:
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        return False
    words = (document.get("apiVersion"), document.get("kind"), document["metadata"].get("name"))
    return all(isinstance(word, str) and word for word in words)


async def find_resource(client: KubeClient, api_version: str, kind: str) -> Resource[Any]:
    """Ask the server which resource serves a kind."""
    group, _, version = api_version.rpartition("/")
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    unserved = errors.NotFound(f"the cluster does not serve {kind} of {api_version}; are its CRDs installed?")
    try:
        served = msgspec.json.decode(await client.request("GET", path), type=_ApiResourceList).resources
    except errors.NotFound as exc:
        raise unserved from exc
    for entry in served:
        if entry.kind == kind and "/" not in entry.name:
            return Resource(group, version, entry.name, kind, entry.namespaced, dict[str, Any])
    raise unserved


async def apply_manifest(
    client: KubeClient, documents: Iterable[Mapping[str, Any]], *, namespace: str | None = None
) -> list[Document]:
    """Server-side apply each document in order; `namespace` is for those that name none."""
    known: dict[tuple[str, str], Resource[Any]] = {}
    applied = []
    for document in documents:
        key = (document["apiVersion"], document["kind"])
        if key not in known:
            known[key] = await find_resource(client, *key)
        where = document["metadata"].get("namespace") or namespace
        applied.append(await client.apply(known[key], document, where))
    return applied
