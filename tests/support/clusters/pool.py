"""Clusters that tests share: one control plane at a time per test process, kept while the next test wants its kind.

A cluster goes to the next module only in the state it had when it was prepared. What a module created is deleted; a
cluster in which something else changed is replaced by a new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.local.cluster import startup
from kgwe.local.cluster.cluster import ClusterOptions, LocalCluster
from kgwe.local.cluster.components import NO_FEATURES, Features

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: kinds that components write on their own; nodes and pods are removed in any case
_VOLATILE: Final = frozenset({
    "events", "leases", "endpoints", "endpointslices", "nodes", "pods", "componentstatuses", "apiservices",
    "controllerrevisions", "csinodes", "flowschemas", "prioritylevelconfigurations", "podmetrics", "nodemetrics",
    "secrets", "ipaddresses", "servicecidrs", "storageversions", "seatrevocations",
})  # fmt: skip
#: written by controllers in every namespace, or from other roles
_MADE_BY_CONTROLLERS: Final = frozenset({"kube-root-ca.crt", "default", "admin", "edit", "view"})
_NAMESPACES: Final = "/api/v1/namespaces/"
_DEPTH: Final = 4  # slashes in the path of a namespace
#: namespaces that no other test uses; their end takes seconds and is not waited for
_OF_ONE_TEST: Final = f"{_NAMESPACES}test-"
_PATIENCE_S: Final = 120.0


@dataclass
class Shared:
    """A running cluster, and what was prepared on it."""

    kind: str
    cluster: LocalCluster
    prepared: Any = None
    module: str = ""
    pristine: dict[str, str] = field(default_factory=dict)


class ClusterPool:
    """Starts clusters on demand and stops each when a test wants one of another kind."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._current: Shared | None = None
        self._count = 0

    def get(
        self,
        kind: str,
        module: str,
        *,
        features: Features = NO_FEATURES,
        prepare: Callable[[LocalCluster], Any] = lambda _: None,
    ) -> Shared:
        """The cluster of this kind, as `prepare` left it unless `module` used it before."""
        current = self._current
        if current is not None and (current.kind != kind or not _is_as_prepared(current, module)):
            self.stop()
            current = None
        if current is None:
            current = self._start(kind, features)
            current.prepared = prepare(current.cluster)
            current.pristine = _objects(current.cluster)
        current.module = module
        return current

    def _start(self, kind: str, features: Features) -> Shared:
        self._count += 1
        name = f"test-{os.getpid()}-pool{self._count}"
        self._current = Shared(kind, LocalCluster(name, state_root=self._root))
        self._current.cluster = LocalCluster.start(ClusterOptions(name, features=features, state_root=self._root))
        return self._current

    def stop(self) -> None:
        if self._current is not None:
            self._current.cluster.stop(grace_s=2.0)
            self._current = None


def _is_as_prepared(shared: Shared, module: str) -> bool:
    """Whether the cluster is in its first state again, after what other modules created was deleted."""
    if shared.module == module:
        return True
    try:
        return shared.cluster.is_running() and _restore(shared)
    except errors.KgweError:
        return False


def _restore(shared: Shared) -> bool:
    """Delete what was created since; return False if something that was there before has changed."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        try:
            now = _objects(shared.cluster)
        except (errors.NotFound, errors.Transient):  # a kind that was removed is announced a while longer
            time.sleep(0.5)
            continue
        if now == shared.pristine:
            _delete(shared.cluster, ["/apis/events.k8s.io/v1/namespaces/default/events"])
            for name in shared.cluster.state().sidecars:
                shared.cluster.stop_sidecar(name)
            _await_controllers(shared.cluster, end)
            return _remove_nodes(shared.cluster, end)
        if any(now.get(path) != content for path, content in shared.pristine.items()):
            return False
        created = _roots([path for path in now if path not in shared.pristine])
        _delete(shared.cluster, created)
        _await_gone(shared.cluster, created, end)
    return False


def _await_gone(cluster: LocalCluster, paths: list[str], end: float) -> None:
    """Ask for single objects: a list of everything takes a hundred requests."""
    with cluster.api() as api:
        for path in paths:
            while not path.startswith(_OF_ONE_TEST) and api.exists(path) and time.monotonic() < end:
                time.sleep(0.05)


def _remove_nodes(cluster: LocalCluster, end: float) -> bool:
    """Remove nodes and the pods of `default`, which belong to no other object."""
    pods, nodes = "/api/v1/namespaces/default/pods", "/api/v1/nodes"
    with cluster.api() as api:
        while time.monotonic() < end:
            left = [path for path in (pods, nodes) if api.request("GET", f"{path}?limit=1")["items"]]
            if not left:
                return True
            for path in left:
                api.request("DELETE", f"{path}?gracePeriodSeconds=0")
            time.sleep(0.05)
    return False


def _await_controllers(cluster: LocalCluster, end: float) -> None:
    """Wait until controllers act. They connect again a while after an API server was killed and started again."""
    probe = f"test-probe-{time.monotonic_ns()}"
    with cluster.api() as api:
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": probe}})
        startup.await_service_account(api, end, probe)
        api.request("DELETE", f"{_NAMESPACES}{probe}")


def _roots(paths: list[str]) -> list[str]:
    """Without what goes with its namespace."""
    spaces = tuple(f"{path}/" for path in paths if path.startswith(_NAMESPACES) and path.count("/") == _DEPTH)
    within = tuple(space.removeprefix("/api/v1") for space in spaces)
    return [path for path in paths if not any(space in path for space in within)]


def _delete(cluster: LocalCluster, paths: list[str]) -> None:
    with cluster.api() as api:
        for path in paths:
            try:
                api.request("DELETE", path)
            except errors.NotFound:
                continue


def _objects(cluster: LocalCluster) -> dict[str, str]:
    """Path of every object -> a digest of what a user could have changed in it.

    Without namespaces of single tests that are being deleted.
    """
    found: dict[str, str] = {}
    with cluster.api() as api:
        spaces = api.request("GET", "/api/v1/namespaces")["items"]
        names = {each["metadata"]["name"] for each in spaces if "deletionTimestamp" in each["metadata"]}
        ending = {name for name in names if name.startswith("test-")}
        for prefix, resource in _resources(api):
            for obj in api.request("GET", f"{prefix}/{resource}").get("items") or ():
                meta = obj["metadata"]
                home = meta["name"] if resource == "namespaces" else meta.get("namespace")
                if meta["name"] in _MADE_BY_CONTROLLERS or home in ending:
                    continue
                place = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
                found[f"{prefix}{place}/{resource}/{meta['name']}"] = _digest(obj)
    return found


def _resources(api: Any) -> Iterator[tuple[str, str]]:
    groups = api.request("GET", "/apis")["groups"]
    versions = [group["preferredVersion"]["groupVersion"] for group in groups]
    for prefix in ("/api/v1", *(f"/apis/{version}" for version in versions)):
        for resource in api.request("GET", prefix)["resources"]:
            name = resource["name"]
            if "/" not in name and name not in _VOLATILE and {"list", "delete"} <= set(resource["verbs"]):
                yield prefix, name


def _digest(obj: dict[str, Any]) -> str:
    kept = {key: value for key, value in obj.items() if key not in {"status", "metadata"}}
    meta = {key: obj["metadata"].get(key) for key in ("uid", "labels", "generation", "deletionTimestamp")}
    return hashlib.sha256(json.dumps([kept, meta], sort_keys=True).encode()).hexdigest()
