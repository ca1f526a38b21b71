"""Encode asks, nodes and networks as JSON, and decode them without loss.

A dataclass is written as an object with one entry per field; fields at their default are left out. An entry has the
name of its field, or the one in `_WIRE_NAMES`: a field may be renamed, its name in records stays. Decoded values equal
the encoded ones, floats to the last bit.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from kgwe import errors
from kgwe.model.gpu import mig, topology
from kgwe.model.network import domains
from kgwe.placement.disruption import partial_gang
from kgwe.placement.fleet import constraints, node, taints
from kgwe.placement.gang import request as gang_request

if typing.TYPE_CHECKING:
    from kgwe.placement.planning.ask import Ask

T = TypeVar("T")

#: classes that annotations name and that their modules import only for the type checker
_NAMES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        constraints.Constraints,
        gang_request.Following,
        gang_request.GangRequest,
        gang_request.Intent,
        mig.Geometry,
        Mapping,
        partial_gang.PartialGang,
        mig.Placement,
        mig.Profile,
        node.Request,
        gang_request.Segment,
        taints.Taint,
        taints.Toleration,
        topology.Wiring,
    )
}
#: class -> field -> its name in records, where the two differ. Records are kept for months: never change a name here
_WIRE_NAMES: dict[type, dict[str, str]] = {
    node.Node: {"shares_per_gpu": "pieces"},
    partial_gang.PartialGang: {"min_members": "least"},
}
_FIELD_NAMES = {kind: {wire: field for field, wire in names.items()} for kind, names in _WIRE_NAMES.items()}
_PLAIN = (str, int, float, bool, type(None))


def encode_value(value: Any, but: str = "") -> Any:
    """Return JSON values for a dataclass, without fields at their default and without the field `but`."""
    if isinstance(value, _PLAIN):
        return value
    if dataclasses.is_dataclass(value):
        fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value) if field.name != but)
        encoded = {field.name: encode_value(item) for field, item in fields if item != _default(field)}
        names = _WIRE_NAMES.get(type(value))
        return {names.get(name, name): item for name, item in encoded.items()} if names else encoded
    if isinstance(value, Mapping):
        return {key: encode_value(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return [encode_value(each) for each in value]


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def decode_value(kind: type[T], value: Mapping[str, Any], **given: Any) -> T:
    """Return the dataclass that `encode_value` encoded, plus the fields in `given`; raise Permanent if the values do
    not fit.
    """
    try:
        found: T = _object(kind, value, given)
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise errors.Permanent(f"not a {kind.__name__}: {exc}") from exc
    return found


def _read(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _read(next(each for each in arguments if each is not type(None)), value)
    if origin is tuple:
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_read(each, item) for each, item in zip(kinds, value, strict=True))
    if origin is frozenset:
        return frozenset(value)
    if origin is Mapping:
        return {arguments[0](key): _read(arguments[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _object(kind, value, {})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    return kind(value) if value is not None else None


def _object(kind: Any, value: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    hints, names = _hints(kind), _FIELD_NAMES.get(kind)
    if names is not None:
        value = {names.get(name, name): item for name, item in value.items()}
    return kind(**{name: _read(hints[name], item) for name, item in value.items()}, **given)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, localns=_NAMES)


# --- asks, which are written often -------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _request(request: node.Request) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(encode_value(request)))


def encode_ask(ask: Ask) -> dict[str, Any]:
    """Encode an ask like `encode_value`; the request, which equal pods share, is encoded once."""
    found = encode_value(dataclasses.replace(ask, request=_NO_REQUEST))
    return {**found, "request": _request(ask.request)}


_NO_REQUEST = node.Request(node.Gpus())


# --- the network -----------------------------------------------------------------------------------------


def encode_tree(tree: domains.Tree) -> dict[str, Any]:
    """Return a network as JSON values."""
    return {
        "nodes": tree.nodes,
        "order": tree.order.tolist(),
        "levels": [
            {
                "name": level.name,
                "names": level.names,
                "starts": level.starts.tolist(),
                "parent": level.parent.tolist(),
                "known": level.known.tolist(),
                # JSON has no infinity: null.
                "gb_per_s": level.gb_per_s.tolist(),
                "oversubscription": level.oversubscription.tolist(),
            }
            for level in tree.levels
        ],
        "domain_of": tree.domain_of.tolist(),
        "nvlink_names": tree.nvlink_names,
        "nvlink_of": tree.nvlink_of.tolist(),
        "node_gb_per_s": tree.node_gb_per_s.tolist(),
        "connected": sorted(tree.connected),
    }


def same_tree(one: domains.Tree, other: domains.Tree) -> bool:
    """Return whether two networks have the same content; each node change builds a new tree, so identity is not
    enough.
    """
    if one is other:
        return True
    if (one.nodes, one.nvlink_names, one.connected) != (other.nodes, other.nvlink_names, other.connected):
        return False
    names = ("order", "domain_of", "nvlink_of", "node_gb_per_s")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    if [(level.name, level.names) for level in one.levels] != [(level.name, level.names) for level in other.levels]:
        return False
    for mine, others in zip(one.levels, other.levels, strict=True):
        pairs += [(getattr(mine, name), getattr(others, name)) for name in _LEVEL_ARRAYS]
    return all(np.array_equal(a, b) for a, b in pairs)


_LEVEL_ARRAYS = ("starts", "parent", "known", "gb_per_s", "oversubscription")


def decode_tree(value: Mapping[str, Any]) -> domains.Tree:
    count = len(value["nodes"])
    levels = tuple(
        domains.Level(
            name=level["name"],
            names=tuple(level["names"]),
            starts=np.array(level["starts"], np.int64),
            parent=np.array(level["parent"], np.int64),
            known=np.array(level["known"], np.bool_),
            gb_per_s=np.array([np.inf if rate is None else rate for rate in level["gb_per_s"]], np.float64),
            oversubscription=np.array(level["oversubscription"], np.float64),
        )
        for level in value["levels"]
    )
    return domains.Tree(
        nodes=tuple(value["nodes"]),
        order=np.array(value["order"], np.int64),
        levels=levels,
        domain_of=np.array(value["domain_of"], np.int64).reshape(len(levels), count),
        nvlink_names=tuple(value["nvlink_names"]),
        nvlink_of=np.array(value["nvlink_of"], np.int64),
        node_gb_per_s=np.array(value["node_gb_per_s"], np.float64),
        connected=frozenset((level, one, other) for level, one, other in value["connected"]),
    )
