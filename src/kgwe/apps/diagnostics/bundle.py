"""Reads what explains a problem from the API server, part by part. A part that cannot be read is named, with why."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING, Any, Final

import yaml

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.telemetry.redaction import REDACTED, redact_text, redact_value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from pathlib import Path

    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient

# Of each process: the last lines and bytes of its log.
_LOG_LINES: Final = 5000
_MOST_LOG_BYTES: Final = 4 << 20
_MOST_METRICS_BYTES: Final = 16 << 20
_METRICS_PORTS: Final = ("metrics", "http-metrics", "exporter")
_ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"
# Secrets and ConfigMaps are left out: users keep anything in them.
_CLUSTER: Final[tuple[Resource[Any], ...]] = (
    resources.NODE,
    resources.GPU_NODE,
    resources.TOPOLOGY_DOMAIN,
    resources.MIG_STRATEGY,
    resources.AUTOSCALING_POLICY,
    resources.SCHEDULER_CONFIG,
)
_NAMESPACED: Final[tuple[Resource[Any], ...]] = (
    resources.GPU_WORKLOAD,
    resources.WARP_GPU_WORKLOAD,
    resources.GPU_BUDGET,
    resources.GPU_SHARING_POLICY,
    resources.RIGHTSIZING_DECISION,
)
_OWN: Final[tuple[Resource[Any], ...]] = (resources.POD, resources.LEASE, resources.EVENT, resources.DEPLOYMENT)


class Bundle:
    """The files of a bundle, all redacted, and what could not be read."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.missing: dict[str, str] = {}

    def add_text(self, name: str, text: str) -> None:
        self.files[name] = redact_text(text).encode(errors="replace")

    def add_objects(self, name: str, objects: Iterable[Mapping[str, Any]]) -> None:
        cleaned = [clean_object(dict(each)) for each in objects]
        self.files[name] = yaml.safe_dump_all(cleaned, sort_keys=False, allow_unicode=True).encode()

    def write(self, path: Path, about: Mapping[str, Any]) -> None:
        """Write a tar.gz, readable by its owner only. `about`: versions and the time."""
        manifest = {**about, "files": sorted(self.files), "missing": self.missing}
        files = {**self.files, "manifest.json": json.dumps(redact_value(manifest), indent=1).encode()}
        path.touch(mode=0o600)
        with tarfile.open(path, "w:gz") as archive:
            for name, content in sorted(files.items()):
                entry = tarfile.TarInfo(f"kgwe-debug/{name}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, int(about.get("at_s", 0))
                archive.addfile(entry, io.BytesIO(content))


def clean_object(obj: dict[str, Any]) -> dict[str, Any]:
    """Return an object without secrets: values of environment variables, copies of manifests, and secret fields."""
    meta = obj.get("metadata")
    if isinstance(meta, dict):
        annotations = {key: each for key, each in (meta.get("annotations") or {}).items() if key != _ANNOTATION}
        obj = {**obj, "metadata": {**meta, "annotations": annotations, "managedFields": None}}
    cleaned: dict[str, Any] = redact_value(_hide_environment(obj))
    return cleaned


def _hide_environment(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: [_hide_value(each) for each in found] if key == "env" and isinstance(found, list)
            else _hide_environment(found)
            for key, found in value.items()
        }  # fmt: skip
    return [_hide_environment(each) for each in value] if isinstance(value, list) else value


def _hide_value(variable: Any) -> Any:
    if isinstance(variable, dict) and "value" in variable:
        return {**variable, "value": REDACTED}
    return variable


async def collect(client: KubeClient, namespaces: Iterable[str]) -> Bundle:
    """Read everything. `namespaces`: those of KGWE's own processes."""
    bundle = Bundle()
    async for name, part in _read_objects(client, list(namespaces)):
        if isinstance(part, errors.KgweError):
            bundle.missing[name] = str(part)
        else:
            bundle.add_objects(name, part)
    for namespace in namespaces:
        await _read_processes(client, namespace, bundle)
    return bundle


async def _read_objects(
    client: KubeClient, namespaces: list[str]
) -> AsyncIterator[tuple[str, list[dict[str, Any]] | errors.KgweError]]:
    for kind in (*_CLUSTER, *_NAMESPACED):
        yield f"objects/{kind.plural}.{kind.group or 'core'}.yaml", await _list(client, kind.path())
    for kind in _OWN:
        for namespace in namespaces:
            yield f"{namespace}/{kind.plural}.yaml", await _list(client, kind.path(namespace=namespace))
    yield "cluster/version.yaml", await _read_version(client)


async def _list(client: KubeClient, path: str) -> list[dict[str, Any]] | errors.KgweError:
    try:
        found: dict[str, Any] = json.loads(await client.request("GET", path, params={"limit": "5000"}))
    except errors.KgweError as exc:
        return exc
    return list(found.get("items") or ())


async def _read_version(client: KubeClient) -> list[dict[str, Any]] | errors.KgweError:
    try:
        return [json.loads(await client.request("GET", "/version"))]
    except errors.KgweError as exc:
        return exc


async def _read_processes(client: KubeClient, namespace: str, bundle: Bundle) -> None:
    """Read log and metrics of each pod of KGWE, through the API server."""
    base = f"/api/v1/namespaces/{namespace}/pods"
    pods = await _list(client, base)
    if isinstance(pods, errors.KgweError):
        bundle.missing[f"{namespace}/logs"] = str(pods)
        return
    for pod in pods:
        name = pod["metadata"]["name"]
        for container in pod["spec"].get("containers") or ():
            label = f"{namespace}/{name}/{container['name']}"
            params = {"container": container["name"], "tailLines": str(_LOG_LINES), "timestamps": "false",
                      "limitBytes": str(_MOST_LOG_BYTES)}  # fmt: skip
            await _add(bundle, client, f"{label}.log", f"{base}/{name}/log", most=_MOST_LOG_BYTES, params=params)
            for port in container.get("ports") or ():
                if port.get("name") in _METRICS_PORTS:
                    path = f"{base}/{name}:{port['containerPort']}/proxy"
                    await _add(bundle, client, f"{label}.metrics", f"{path}/metrics", most=_MOST_METRICS_BYTES)
                    await _add(bundle, client, f"{label}.readyz", f"{path}/readyz", most=_MOST_METRICS_BYTES)


async def _add(
    bundle: Bundle, client: KubeClient, name: str, path: str, *, most: int, params: Mapping[str, str] | None = None
) -> None:
    try:
        content = await client.request("GET", path, params=params)
    except errors.KgweError as exc:
        bundle.missing[name] = str(exc)
    else:
        bundle.add_text(name, content[-most:].decode(errors="replace"))
