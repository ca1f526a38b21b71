"""What kube-scheduler sends to an extender and wants to hear.

Keys are capitalised because its Go structs carry no JSON tags; the pod inside is ordinary API JSON. Node names stay the
bytes they came as wherever possible: there may be thousands, and most answers name one.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.kube.api import core  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NULL: Final = msgspec.Raw(b"null")

#: largest score an extender may give
HIGHEST: Final = 10
_SCORED: Final = tuple(f'","Score":{score}}}' for score in range(HIGHEST + 1))


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""


class _Node(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


class _Nodes(msgspec.Struct, frozen=True):
    items: tuple[_Node, ...] | None = None


class _PodMeta(msgspec.Struct, frozen=True):
    uid: str = ""
    name: str = ""
    namespace: str = ""


class _SlimPod(msgspec.Struct, frozen=True):
    metadata: _PodMeta = _PodMeta()


class _Args(msgspec.Struct, frozen=True):
    Pod: _SlimPod
    NodeNames: msgspec.Raw = _NULL
    Nodes: msgspec.Raw = _NULL


class _PodArgs(msgspec.Struct, frozen=True):
    Pod: core.Pod


class MetaPod(msgspec.Struct, frozen=True):
    UID: str = ""


class MetaVictims(msgspec.Struct, frozen=True):
    Pods: tuple[MetaPod, ...] | None = None
    NumPDBViolations: int = 0


class _FullMeta(msgspec.Struct, frozen=True):
    uid: str = ""


class _FullPod(msgspec.Struct, frozen=True):
    metadata: _FullMeta = _FullMeta()


class _FullVictims(msgspec.Struct, frozen=True):
    Pods: tuple[_FullPod, ...] | None = None
    NumPDBViolations: int = 0


class PreemptArgs(msgspec.Struct, frozen=True):
    Pod: core.Pod
    NodeNameToMetaVictims: dict[str, MetaVictims] | None = None
    NodeNameToVictims: dict[str, _FullVictims] | None = None

    def victims(self) -> dict[str, MetaVictims]:
        if self.NodeNameToMetaVictims is not None:
            return self.NodeNameToMetaVictims
        return {
            node: MetaVictims(tuple(MetaPod(pod.metadata.uid) for pod in victims.Pods or ()), victims.NumPDBViolations)
            for node, victims in (self.NodeNameToVictims or {}).items()
        }


class BindArgs(msgspec.Struct, frozen=True):
    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


_ARGS: Final = msgspec.json.Decoder(_Args)
_POD_ARGS: Final = msgspec.json.Decoder(_PodArgs)
_NAMES: Final = msgspec.json.Decoder(list[str])
_NODES: Final = msgspec.json.Decoder(_Nodes)
_PREEMPT: Final = msgspec.json.Decoder(PreemptArgs)
_BIND: Final = msgspec.json.Decoder(BindArgs)
_encode: Final = msgspec.json.Encoder().encode


class Args:
    """A filter or prioritize request."""

    def __init__(self, body: bytes) -> None:
        try:
            args = _ARGS.decode(body)
        except msgspec.DecodeError as exc:
            raise errors.Permanent(f"not an extender request: {exc}") from exc
        self._body = body
        self._names: list[str] | None = None
        self.uid = args.Pod.metadata.uid
        self.pod_name = f"{args.Pod.metadata.namespace}/{args.Pod.metadata.name}"
        if (names := bytes(args.NodeNames)) != b"null":
            self._raw = names
            self.sends_nodes = False
        elif bytes(args.Nodes) != b"null":
            # Without nodeCacheCapable whole nodes come; their names are all that is needed of them.
            try:
                items = _NODES.decode(args.Nodes).items or ()
            except msgspec.DecodeError as exc:
                raise errors.Permanent(f"not an extender request: {exc}") from exc
            self._raw = _encode([node.metadata.name for node in items])
            self.sends_nodes = True
        else:
            raise errors.Permanent("an extender request names nodes: NodeNames or Nodes")

    def pod(self) -> core.Pod:
        try:
            return _POD_ARGS.decode(self._body).Pod
        except msgspec.DecodeError as exc:
            raise errors.Permanent(f"not an extender request: {exc}") from exc

    def has(self, node: str) -> bool:
        """Whether kube-scheduler would have the pod there; looked for without reading the list."""
        return b'"' + node.encode() + b'"' in self._raw

    def names(self) -> list[str]:
        if self._names is None:
            try:
                self._names = _NAMES.decode(self._raw)
            except msgspec.DecodeError as exc:
                raise errors.Permanent(f"not an extender request: {exc}") from exc
        return self._names

    def scores(self, points: Sequence[int]) -> bytes:
        """As many points for every node, in the order they were named."""
        names = self.names()
        if b"\\" in self._raw:
            return _encode([{"Host": name, "Score": score} for name, score in zip(names, points, strict=True)])
        if not names:
            return b"[]"
        # Without an escape in it a name is what it was written as.
        scored = ',{"Host":"'.join(map(operator.add, names, map(_SCORED.__getitem__, points)))
        return f'[{{"Host":"{scored}]'.encode()

    def nobody(self, reason: str, *, resolvable: bool = False) -> bytes:
        """None of the nodes, all for one reason; `resolvable`: whether removing pods could help."""
        key = b"FailedNodes" if resolvable else b"FailedAndUnresolvableNodes"
        inside = self._raw.strip()[1:-1]
        if not inside.strip():
            return b'{"NodeNames":[]}'
        why = b":" + _encode(reason)
        # Names hold no quotes, so every quote before a comma ends one.
        failed = inside.replace(b'",', b'"' + why + b",") + why
        return b'{"NodeNames":[],"' + key + b'":{' + failed + b"}}"


def one(node: str) -> bytes:
    """That node and no other."""
    return b'{"NodeNames":[' + _encode(node) + b"]}"


def some(nodes: Sequence[str]) -> bytes:
    return b'{"NodeNames":' + _encode(nodes) + b"}"


def none(failed: Mapping[str, str], unresolvable: Mapping[str, str]) -> bytes:
    """No node, and why each is not."""
    return _encode({"NodeNames": [], "FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable})


def error(message: str) -> bytes:
    """kube-scheduler logs it and tries the pod again."""
    return _encode({"Error": message})


def victims(kept: Mapping[str, MetaVictims]) -> bytes:
    return _encode({"NodeNameToMetaVictims": kept})


def read_preempt(body: bytes) -> PreemptArgs:
    try:
        return _PREEMPT.decode(body)
    except msgspec.DecodeError as exc:
        raise errors.Permanent(f"not a preemption request: {exc}") from exc


def read_bind(body: bytes) -> BindArgs:
    try:
        return _BIND.decode(body)
    except msgspec.DecodeError as exc:
        raise errors.Permanent(f"not a bind request: {exc}") from exc


def bound(message: str = "") -> bytes:
    return _encode({"Error": message})
