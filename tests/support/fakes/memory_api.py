"""An API server in memory that carries the requests of a `KubeClient`.

It has what controllers rely on: versions, preconditions, generations, finalizers, the status subresource, watches that
begin at a version, and the garbage collection of owned objects. It knows no schemas, rights or admission, and a
server-side apply is a merge without owners of fields. A strategic merge knows conditions only.
`tests/support/contracts/api.py` holds for it and for a real API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.fakes import json_patches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from kgwe.kube.api.resources import Resource

Obj = dict[str, Any]
_NAMESPACED = 2  # "namespaces", NAME


class Reply(NamedTuple):
    status_code: int
    content: bytes
    headers: Mapping[str, str] = {"Content-Type": "application/json"}


class Refused(Exception):
    """A reply other than success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason

    def reply(self) -> Reply:
        status = {"kind": "Status", "status": "Failure", "reason": self.reason, "message": str(self), "code": self.code}
        return Reply(self.code, json.dumps(status).encode())


class Target(NamedTuple):
    """What a path addresses."""

    collection: str  # group, version and plural
    namespace: str
    name: str
    subresource: str

    @classmethod
    def parse(cls, path: str) -> Target:
        parts = path.strip("/").split("/")
        base, rest = (parts[:2], parts[2:]) if parts[0] == "api" else (parts[:3], parts[3:])
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > _NAMESPACED:
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource = [*rest, "", ""][:3]
        return cls("/".join([*base, plural]), namespace, name, subresource)

    @property
    def api_version(self) -> str:
        return "/".join(self.collection.split("/")[1:-1])


class Change(NamedTuple):
    version: int
    collection: str
    type: str
    obj: Obj
    old: Obj | None = None


@dataclass
class Watch:
    """The body of one watch, line by line."""

    pieces: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    status_code: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        while (piece := await self.pieces.get()) is not None:
            yield piece

    async def aread(self) -> bytes:
        return b""


class MemoryApi:
    """Objects of any kind by path; every request is answered at once."""

    url = "memory:"

    def __init__(self, served: Iterable[Resource[Any]] = ()) -> None:
        #: kinds that discovery names; objects of every kind are accepted
        self._served = tuple(served)
        #: time of creation of new objects
        self.now = "2026-01-01T00:00:00Z"
        #: hears of every change, in the same turn
        self.on_change: Callable[[Change], None] = lambda _: None
        self._objects: dict[str, dict[tuple[str, str], Obj]] = {}
        self._version = 0
        self._oldest = 0
        self._uids = itertools.count(1)
        #: makes the uid of the n-th object
        self.make_uid: Callable[[int], str] = lambda number: f"uid-{number}"
        self._history: list[Change] = []
        self._watches: dict[int, tuple[Watch, Target, Mapping[str, str]]] = {}
        #: (method, path) of every request that was answered
        self.requests: list[tuple[str, str]] = []
        self._refusals: list[tuple[str, str, Refused]] = []

    # --- the transport ----------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        content_type: str = "",
        accept: str = "",
    ) -> Reply:
        del accept
        await asyncio.sleep(0)  # a caller never gets its answer in the same turn
        self.requests.append((method, path))
        body = json.loads(content) if content else {}
        try:
            self._refuse(method, path)
            if (found := self._discovered(path)) is not None:
                return Reply(200, json.dumps(found).encode())
            return Reply(
                200, json.dumps(self._answer(method, Target.parse(path), body, params or {}, content_type)).encode()
            )
        except Refused as no:
            return no.reply()

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], silence_s: float, accept: str = ""
    ) -> AsyncIterator[Watch]:
        del silence_s, accept
        target, since = Target.parse(path), int(params.get("resourceVersion") or 0)
        watch = Watch()
        if since and since < self._oldest:
            gone = json.loads(Refused(410, "Expired", f"too old resource version: {since}").reply().content)
            watch.pieces.put_nowait(_line("ERROR", gone))
        if not since:
            for obj in self._listed(target, params):
                watch.pieces.put_nowait(_line("ADDED", obj))
        for change in self._history:
            if since and change.version > since and (seen := _seen(change, target, params)):
                watch.pieces.put_nowait(_line(seen, change.obj))
        self._watches[id(watch)] = watch, target, params
        try:
            yield watch
        finally:
            del self._watches[id(watch)]

    async def close(self) -> None:
        self.hang_up()

    # --- what tests do to it ----------------------------------------------------------------------------

    def hang_up(self) -> None:
        """End all watches."""
        for watch, _, _ in self._watches.values():
            watch.pieces.put_nowait(None)

    def refuse_next(self, method: str, kind: Resource[Any], code: int, message: str, reason: str = "") -> None:
        """Refuse the next request of a client with this method for this kind."""
        self._refusals.append((method, kind.path().strip("/"), Refused(code, reason, message)))

    def compact(self) -> None:
        """Forget history, as etcd does: watches from before this moment are refused."""
        self._oldest = self._version
        self._history.clear()

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/merge-patch+json") -> Obj:
        """A request without waiting, as controllers inside the server make them."""
        return self._answer(method, Target.parse(path), body or {}, {}, content_type)

    # --- requests ---------------------------------------------------------------------------------------

    def _refuse(self, method: str, path: str) -> None:
        for each in self._refusals:
            if each[0] == method and each[1] == Target.parse(path).collection:
                self._refusals.remove(each)
                raise each[2]

    def _discovered(self, path: str) -> Obj | None:
        """The kinds of a group and version, where the path names nothing more."""
        parts = path.strip("/").split("/")
        if len(parts) != (2 if parts[0] == "api" else 3):
            return None
        kinds = [kind for kind in self._served if kind.path().startswith(f"{path.rstrip('/')}/")]
        if not kinds:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        found = [{"name": kind.plural, "kind": kind.kind, "namespaced": kind.namespaced} for kind in kinds]
        return {"kind": "APIResourceList", "resources": found}

    def _answer(self, method: str, target: Target, body: Any, params: Mapping[str, str], content_type: str) -> Obj:
        if method == "GET":
            return self._get(target) if target.name else self._list(target, params)
        if method == "POST":
            return self._post(target, body)
        if method == "DELETE":
            return self._delete(target, body)
        if method == "PUT":
            _check_uid(body, self._get(target))
            return self._write(target, body)
        return self._patch(target, body, content_type)

    def _get(self, target: Target) -> Obj:
        found = self._objects.get(target.collection, {}).get((target.namespace, target.name))
        if found is None:
            raise Refused(404, "NotFound", f'{target.collection.split("/")[-1]} "{target.name}" not found')
        return found

    def _list(self, target: Target, params: Mapping[str, str]) -> Obj:
        return {
            "apiVersion": target.api_version,
            "kind": "List",
            "metadata": {"resourceVersion": str(self._version)},
            "items": self._listed(target, params),
        }

    def _listed(self, target: Target, params: Mapping[str, str]) -> list[Obj]:
        every = self._objects.get(target.collection, {})
        return [every[key] for key in sorted(every) if _matches(every[key], target, params)]

    def _post(self, target: Target, body: Obj) -> Obj:
        if target.subresource == "binding":
            return self._bind(target, body)
        if target.subresource == "eviction":
            return self._delete(target, body.get("deleteOptions") or {})
        meta = body.setdefault("metadata", {})
        if not meta.get("name"):
            meta["name"] = f"{meta['generateName']}{next(self._uids):05x}"
        key = target.namespace, meta["name"]
        if key in self._objects.setdefault(target.collection, {}):
            raise Refused(409, "AlreadyExists", f'{target.collection.split("/")[-1]} "{meta["name"]}" already exists')
        meta |= {"uid": self.make_uid(next(self._uids)), "creationTimestamp": self.now, "generation": 1}
        if target.namespace:
            meta["namespace"] = target.namespace
        body.setdefault("apiVersion", target.api_version)
        return self._store(target, body, "ADDED")

    def _bind(self, target: Target, body: Obj) -> Obj:
        pod = copy.deepcopy(self._get(target))
        if pod.setdefault("spec", {}).get("nodeName"):
            raise Refused(409, "Conflict", f"pod {target.name} is already assigned to node {pod['spec']['nodeName']!r}")
        pod["spec"]["nodeName"] = body["target"]["name"]
        self._store(target, pod, "MODIFIED")
        return {"kind": "Status", "status": "Success"}

    def _patch(self, target: Target, body: Any, content_type: str) -> Obj:
        if content_type == "application/json-patch+json":
            try:
                return self._write(target, json_patches.apply(self._get(target), body))
            except json_patches.PatchFailed as exc:
                raise Refused(422, "Invalid", f"the server rejected our request due to an error in {exc}") from exc
        if content_type == "application/apply-patch+yaml":
            try:
                self._get(target)
            except Refused:
                return self._post(target._replace(name=""), body)
        elif content_type == "application/strategic-merge-patch+json":
            return self._write(target, json_patches.merge_strategic(self._get(target), body))
        elif content_type != "application/merge-patch+json":
            raise Refused(415, "UnsupportedMediaType", f"no patches of type {content_type}")
        return self._write(target, json_patches.merge(self._get(target), body))

    def _write(self, target: Target, new: Obj) -> Obj:
        old = self._get(target)
        meta, was = new.setdefault("metadata", {}), old["metadata"]
        if meta.get("uid", was["uid"]) != was["uid"]:
            raise Refused(
                422, "Invalid", f'{target.name} is invalid: metadata.uid: "{meta["uid"]}": field is immutable'
            )
        if meta.get("resourceVersion", was["resourceVersion"]) != was["resourceVersion"]:
            raise Refused(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )
        if target.subresource == "status":
            made = {**old, "status": new.get("status", {})}
        else:
            made = {key: value for key, value in new.items() if key != "status"}
            made |= {"status": old["status"]} if "status" in old else {}
        fixed = ("uid", "creationTimestamp", "namespace", "name", "deletionTimestamp", "generation", "resourceVersion")
        made["metadata"] = {**made["metadata"], **{key: was[key] for key in fixed if key in was}}
        if made == old:
            return old  # a write that changes nothing is no change
        if made.get("spec") != old.get("spec"):
            made["metadata"]["generation"] = was["generation"] + 1
        stored = self._store(target, made, "MODIFIED")
        if "deletionTimestamp" in was and not stored["metadata"].get("finalizers"):
            self._remove(target)
        return stored

    def _delete(self, target: Target, options: Obj) -> Obj:
        obj = copy.deepcopy(self._get(target))
        meta = obj["metadata"]
        for key, wanted in (options.get("preconditions") or {}).items():
            if meta[key] != wanted:
                raise Refused(409, "Conflict", f"the {key} in the precondition ({wanted}) does not match {meta[key]}")
        if options.get("propagationPolicy") == "Orphan":
            self._orphan(meta["uid"])
        if meta.get("finalizers"):
            if "deletionTimestamp" not in meta:
                meta["deletionTimestamp"] = "2026-01-01T00:00:01Z"
                self._store(target, obj, "MODIFIED")
        else:
            self._remove(target)
        return {"kind": "Status", "status": "Success"}

    # --- storage ----------------------------------------------------------------------------------------

    def _store(self, target: Target, obj: Obj, change: str) -> Obj:
        self._version += 1
        made = copy.deepcopy(obj)
        made["metadata"]["resourceVersion"] = str(self._version)
        every, key = self._objects.setdefault(target.collection, {}), (target.namespace, made["metadata"]["name"])
        old = every.get(key)
        every[key] = made
        self._announce(Change(self._version, target.collection, change, made, old))
        return made

    def _remove(self, target: Target) -> None:
        gone = copy.deepcopy(self._objects[target.collection].pop((target.namespace, target.name)))
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._announce(Change(self._version, target.collection, "DELETED", gone))
        self._collect(gone["metadata"]["uid"])

    def _announce(self, change: Change) -> None:
        self._history.append(change)
        for watch, target, params in self._watches.values():
            if seen := _seen(change, target, params):
                watch.pieces.put_nowait(_line(seen, change.obj))
        self.on_change(change)

    def _owned(self, uid: str) -> list[tuple[Target, Obj]]:
        return [
            (Target(collection, namespace, name, ""), obj)
            for collection, every in self._objects.items()
            for (namespace, name), obj in every.items()
            if any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences") or ())
        ]

    def _collect(self, uid: str) -> None:
        """Delete what has no other owner than the one that is gone."""
        for target, obj in self._owned(uid):
            if len(obj["metadata"]["ownerReferences"]) == 1:
                with contextlib.suppress(Refused):
                    self._delete(target, {})
            else:
                self._disown(target, obj, uid)

    def _orphan(self, uid: str) -> None:
        for target, obj in self._owned(uid):
            self._disown(target, obj, uid)

    def _disown(self, target: Target, obj: Obj, uid: str) -> None:
        made = copy.deepcopy(obj)
        owners = made["metadata"]["ownerReferences"]
        made["metadata"]["ownerReferences"] = [owner for owner in owners if owner["uid"] != uid]
        self._store(target, made, "MODIFIED")


def _check_uid(new: Obj, old: Obj) -> None:
    """The UID in a replacement is a precondition."""
    was = old["metadata"]["uid"]
    if (wanted := new.get("metadata", {}).get("uid", was)) != was:
        raise Refused(409, "Conflict", f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {was}")


def _line(change: str, obj: Obj) -> bytes:
    return json.dumps({"type": change, "object": obj}).encode() + b"\n"


def _seen(change: Change, target: Target, params: Mapping[str, str]) -> str:
    """The type of event that a watch gets; empty: none. What begins or ceases to match is added or deleted."""
    if change.collection != target.collection:
        return ""
    is_now = _matches(change.obj, target, params)
    if change.old is None:
        return change.type if is_now else ""
    was = _matches(change.old, target, params)
    if was and is_now:
        return change.type
    return "DELETED" if was else "ADDED" if is_now else ""


def _matches(obj: Obj, target: Target, params: Mapping[str, str]) -> bool:
    meta = obj["metadata"]
    if target.namespace and meta.get("namespace") != target.namespace:
        return False
    if not all(_field_holds(obj, part) for part in (params.get("fieldSelector") or "").split(",") if part):
        return False
    labels = meta.get("labels") or {}
    return all(_holds(labels, part) for part in (params.get("labelSelector") or "").split(",") if part)


def _holds(labels: Mapping[str, str], requirement: str) -> bool:
    """`key`, `!key`, `key=value` or `key!=value`."""
    if requirement.startswith("!"):
        return requirement[1:] not in labels
    if "!=" in requirement:
        key, _, value = requirement.partition("!=")
        return labels.get(key) != value
    key, has_value, value = requirement.replace("==", "=").partition("=")
    return labels.get(key) == value if has_value else key in labels


def _field_holds(obj: Obj, requirement: str) -> bool:
    """`path=value` or `path!=value`; an absent field is empty."""
    path, _, value = requirement.replace("==", "=").partition("=")
    found: Any = obj
    for part in path.removesuffix("!").split("."):
        found = found.get(part, "") if isinstance(found, dict) else ""
    return (found == value) is not path.endswith("!")
