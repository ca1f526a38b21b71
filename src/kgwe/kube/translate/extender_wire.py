"""What kube-scheduler sends to an extender and wants to hear.

Keys are capitalised because its Go structs carry no JSON tags; the pod inside is ordinary API JSON. Node names stay the
bytes they came as wherever possible: there may be thousands, and most answers name one.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")

_NULL: Final = msgspec.Raw(b"null")

#: Nodes of the largest cluster that is supported: twice what Kubernetes is tested with (5,000). A call names no more.
MOST_NODES: Final = 10_000
#: Bytes of a body. MOST_NODES names of the greatest length (253) are 2.5 MiB, and the API server takes no pod above
#: 3 MiB. The rest is for whole nodes (nodeCacheCapable: false): about 1,000 of them.
LARGEST: Final = 16 << 20

#: largest score an extender may give
HIGHEST: Final = 10
_SCORED: Final = tuple(f'","Score":{score}}}' for score in range(HIGHEST + 1))


# Names and uids are required where there may be many: a body full of empty objects is refused at the first one.
class _Meta(msgspec.Struct, frozen=True):
    name: str


class _Node(msgspec.Struct, frozen=True):
    metadata: _Meta


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


# What Go calls an int: a larger number could not be written back.
_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class MetaPod(msgspec.Struct, frozen=True):
    UID: str


class MetaVictims(msgspec.Struct, frozen=True):
    Pods: tuple[MetaPod, ...] | None = None
    NumPDBViolations: _Int = 0


class _FullMeta(msgspec.Struct, frozen=True):
    uid: str


class _FullPod(msgspec.Struct, frozen=True):
    metadata: _FullMeta


class _FullVictims(msgspec.Struct, frozen=True):
    Pods: tuple[_FullPod, ...] | None = None
    NumPDBViolations: _Int = 0


class PreemptArgs(msgspec.Struct, frozen=True):
    Pod: _SlimPod
    NodeNameToMetaVictims: dict[str, MetaVictims] | None = None
    NodeNameToVictims: dict[str, _FullVictims] | None = None

    @property
    def uid(self) -> str:
        return self.Pod.metadata.uid

    @property
    def namespace(self) -> str:
        return self.Pod.metadata.namespace

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
_NAMES: Final = msgspec.json.Decoder(list[str])
_NODES: Final = msgspec.json.Decoder(_Nodes)
_PREEMPT: Final = msgspec.json.Decoder(PreemptArgs)
_BIND: Final = msgspec.json.Decoder(BindArgs)
_encode: Final = msgspec.json.Encoder().encode
_EXTENDER: Final = "an extender"


def _decode_body(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw, kind: str) -> T:
    """Permanent, saying what is wrong, whatever the bytes are."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, OverflowError, RecursionError) as exc:
        raise errors.Permanent(f"not {kind} request: {exc}") from exc


class Args:
    """A filter or prioritize request. Of the pod it is read who it is; what it asks for, only the watch tells."""

    def __init__(self, body: bytes) -> None:
        args = _decode_body(_ARGS, body, _EXTENDER)
        self._names: list[str] | None = None
        self.uid = args.Pod.metadata.uid
        self.namespace = args.Pod.metadata.namespace
        self.pod_name = f"{self.namespace}/{args.Pod.metadata.name}"
        if (names := bytes(args.NodeNames)) != b"null":
            self._raw = names
            # A name takes three bytes at least, two of them quotes: counted without reading the list.
            if len(names) > 3 * MOST_NODES:
                _check_count(names.count(b'"') // 2)
        elif (nodes := bytes(args.Nodes)) != b"null":
            # Without nodeCacheCapable whole nodes come; their names are all that is needed of them.
            _check_count(nodes.count(b'"metadata"') // 2)
            items = _decode_body(_NODES, nodes, _EXTENDER).items or ()
            _check_count(len(items))
            self._raw = _encode([node.metadata.name for node in items])
        else:
            raise errors.Permanent("an extender request names nodes: NodeNames or Nodes")

    def has_node(self, node: str) -> bool:
        """Whether kube-scheduler would have the pod there; looked for without reading the list."""
        return b'"' + node.encode() + b'"' in self._raw

    def names(self) -> list[str]:
        if self._names is None:
            self._names = _decode_body(_NAMES, self._raw, _EXTENDER)
        return self._names

    def reply_with_scores(self, points: Sequence[int]) -> bytes:
        """As many points for every node, in the order they were named."""
        names = self.names()
        if b"\\" in self._raw:
            return _encode([{"Host": name, "Score": score} for name, score in zip(names, points, strict=True)])
        if not names:
            return b"[]"
        # Without an escape in it a name is what it was written as.
        scored = ',{"Host":"'.join(map(operator.add, names, map(_SCORED.__getitem__, points)))
        return f'[{{"Host":"{scored}]'.encode()

    def refuse_all(self, reason: str, *, resolvable: bool = False) -> bytes:
        """None of the nodes, all for one reason; `resolvable`: whether removing pods could help."""
        key = b"FailedNodes" if resolvable else b"FailedAndUnresolvableNodes"
        inside = self._raw.strip()[1:-1]
        if not inside.strip():
            return b'{"NodeNames":[]}'
        why = b":" + _encode(reason)
        # Names hold no quotes, so every quote before a comma ends one.
        failed = inside.replace(b'",', b'"' + why + b",") + why
        return b'{"NodeNames":[],"' + key + b'":{' + failed + b"}}"


def reply_with_node(node: str) -> bytes:
    """That node and no other."""
    return b'{"NodeNames":[' + _encode(node) + b"]}"


def reply_with_nodes(nodes: Sequence[str]) -> bytes:
    return b'{"NodeNames":' + _encode(nodes) + b"}"


def reply_without_nodes(failed: Mapping[str, str], unresolvable: Mapping[str, str]) -> bytes:
    """No node, and why each is not."""
    return _encode({"NodeNames": [], "FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable})


def reply_with_error(message: str) -> bytes:
    """kube-scheduler logs it and tries the pod again."""
    return _encode({"Error": message})


def reply_with_victims(kept: Mapping[str, MetaVictims]) -> bytes:
    return _encode({"NodeNameToMetaVictims": kept})


def read_preempt(body: bytes) -> PreemptArgs:
    args = _decode_body(_PREEMPT, body, "a preemption")
    _check_count(len(args.NodeNameToMetaVictims or args.NodeNameToVictims or ()))
    return args


def read_bind(body: bytes) -> BindArgs:
    return _decode_body(_BIND, body, "a bind")


def _check_count(nodes: int) -> None:
    if nodes > MOST_NODES:
        raise errors.Permanent(f"{nodes} nodes are named; the largest supported cluster has {MOST_NODES}")


def reply_to_bind(message: str = "") -> bytes:
    return _encode({"Error": message})
