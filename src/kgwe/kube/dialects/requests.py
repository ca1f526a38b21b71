"""Topology requests in annotations of pods: KGWE's own, Kueue's, KAI's and topology.scheduler's.

They may be on the pods of any kind of gang, with or without a group object. KGWE's own take precedence, field by field.
Where two others contradict each other, neither counts.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.kube.dialects import values
from kgwe.kube.dialects.membership import ALL, TopologyRequest, Unreadable
from kgwe.placement.gang.request import Hardware, Segment, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from kgwe.kube.api import core
    from kgwe.kube.dialects.groups import Groups
    from kgwe.kube.dialects.levels import Levels

    Said = Callable[[str], str]
    """Key of an annotation -> its value; empty: not there."""

OWN: Final = "kgwe.nvidia.io/"
KUEUE: Final = "kueue.x-k8s.io/podset-"
KAI: Final = "kai.scheduler/"
SEED: Final = "topology.scheduler/"

_KUEUE_DOMAIN, _KAI_DOMAIN, _SEED_DOMAIN = map(values.domain_of, (KUEUE, KAI, SEED))

#: makes a pod a member of a gang: its name, or "true" if the pods of one owner are a gang
GANG: Final = OWN + "gang"
#: whether the nodes of its pods are of one CPU architecture and one GPU model
HARDWARE: Final = OWN + "hardware"
_OWN_KEYS: Final = (OWN + "topology-required", OWN + "topology-preferred", OWN + "segment")
#: our keys that make a pod a member of a gang; others have a meaning only beside them
OWN_KEYS: Final = frozenset((GANG, *_OWN_KEYS))
#: prefixes of keys that may be topology requests
DOMAINS: Final = frozenset((_KUEUE_DOMAIN, _KAI_DOMAIN, _SEED_DOMAIN))
#: both
KEYS: Final = OWN_KEYS | DOMAINS
_KUEUE_KEYS: Final = tuple(
    KUEUE + word
    for word in (
        "required-topology",
        "preferred-topology",
        "unconstrained-topology",
        "slice-required-topology",
        "slice-size",
        "slice-required-topology-constraints",
        "group-name",
    )
)
_KAI_KEYS: Final = (KAI + "topology-required-placement", KAI + "topology-preferred-placement")
_KAI_SEGMENT_KEYS: Final = (KAI + "segment-size", KAI + "segment-topology-required-placement")
_SEED_KEYS: Final = tuple(
    SEED + word
    for word in ("gpu-count", "preferred-domain", "network-bandwidth", "latency-sensitive", "placement-strategy")
)

_HOST_NAME: Final = "kubernetes.io/hostname"

_STRATEGIES: Final = {
    "consolidated": Strategy.CONSOLIDATED,
    "distributed": Strategy.DISTRIBUTED,
    "balanced": Strategy.BALANCED,
}


def has_requests(pod: core.Pod, groups: Groups) -> bool:
    """Whether the pod or its owner has topology requests."""
    ask = read_annotations(pod, groups)
    if any(pod.metadata.annotations.get(key) for key in (*_KUEUE_KEYS, *_KAI_SEGMENT_KEYS)):
        return True
    return any(ask(key) for key in (*_OWN_KEYS, *_KAI_KEYS, *_SEED_KEYS))


def read_requests(pod: core.Pod, groups: Groups, group: TopologyRequest, spoken: AbstractSet[str]) -> TopologyRequest:
    """All topology requests for the pod, its group object included; `spoken`: prefixes of the keys that it has."""
    ask = read_annotations(pod, groups)
    others = [(group, "its group")]
    if _KUEUE_DOMAIN in spoken:
        others.append((_read_kueue(pod, groups.levels), "Kueue's annotations"))
    if _KAI_DOMAIN in spoken:
        others.append((_read_kai(ask, groups.levels, segments=not group.segments), "KAI's annotations"))
    if _SEED_DOMAIN in spoken:
        others.append((_read_topology_scheduler(ask, groups.levels), "the annotations of topology.scheduler"))
    return _prefer_own(_read_own(ask, groups.levels), _combine_requests(others) if len(others) > 1 else group)


def read_annotations(pod: core.Pod, groups: Groups) -> Said:
    """Reads an annotation or label of the pod, else of its owners, the nearest first."""
    labels, *chain = (pod.metadata.labels, pod.metadata.annotations)
    chain += [owner.metadata.annotations for _, owner in groups.owners(pod)]

    def text(key: str) -> str:
        label, annotation = labels.get(key, ""), chain[0].get(key, "")
        if annotation and label and annotation != label:
            raise Unreadable(f"{key} is {label!r} as a label and {annotation!r} as an annotation: remove one of them")
        return label or next((each[key] for each in chain if each.get(key)), "")

    return text


# --- the dialects ---------------------------------------------------------------------------------------


def _read_own(ask: Said, levels: Levels) -> TopologyRequest:
    required, preferred = (ask(key) and levels.find_level(ask(key), key) for key in _OWN_KEYS[:2])
    return TopologyRequest(
        required, preferred, _own_segments(ask(OWN + "segment"), levels), hardware=_own_hardware(ask(HARDWARE))
    )


def _own_hardware(text: str) -> Hardware | None:
    try:
        return Hardware(text) if text else None
    except ValueError:
        raise Unreadable(f"{HARDWARE} is {text!r}: write one of {', '.join(Hardware)}") from None


def _own_segments(text: str, levels: Levels) -> tuple[Segment, ...]:
    """`4@nvlink`, or several that nest: `4@node,16@leaf`."""
    key = OWN + "segment"
    parts = [part.partition("@") for part in text.split(",")] if text else []
    if any(not at for _, at, _ in parts):
        raise Unreadable(f"{key} is {text!r}: write pods@level, such as 4@nvlink")
    return tuple(
        Segment(values.read_number(size, key), levels.find_level(level.strip(), key)) for size, _, level in parts
    )


def _read_kueue(pod: core.Pod, levels: Levels) -> TopologyRequest:
    """Requests of Kueue. Its pod sets are roles here; only a pod set group covers several.

    Where Kueue itself has placed the pod, the node selector already fulfils the request.
    """
    said, pinned = pod.metadata.annotations, pod.spec.nodeSelector

    def is_pinned(label: str) -> bool:
        return label in pinned or _HOST_NAME in pinned

    required, preferred, unconstrained = (said.get(key, "") for key in _KUEUE_KEYS[:3])
    whole = [(ALL, required, _KUEUE_KEYS[0])] if required else []
    segments = tuple(
        Segment(size, levels.find_level(label, source))
        for size, label, source in (*whole, *_kueue_slices(said))
        if not is_pinned(label)
    )
    free = bool(unconstrained) and values.read_flag(unconstrained, _KUEUE_KEYS[2])
    return TopologyRequest(
        preferred=levels.find_level(preferred, _KUEUE_KEYS[1]) if preferred and not is_pinned(preferred) else "",
        segments=segments,
        strategy=Strategy.PACK if free and not (preferred or segments) else None,
        together=said.get(KUEUE + "group-name", ""),
    )


# An annotation may have 256 KiB; a message quotes this many characters of it.
_QUOTED: Final = 200


class _Layer(msgspec.Struct):
    topology: str
    size: int


def _kueue_slices(said: Mapping[str, str]) -> list[tuple[int, str, str]]:
    """(pods, label of the level, annotation) of each."""
    level_key, size_key, layers_key = _KUEUE_KEYS[3:6]
    level, size, layers = (said.get(key, "") for key in (level_key, size_key, layers_key))
    if layers:
        try:
            listed = msgspec.json.decode(layers, type=list[_Layer])
        except (msgspec.DecodeError, RecursionError) as exc:
            raise Unreadable(
                f"{layers_key} is {layers[:_QUOTED]!r}: write a JSON list of topology and size ({exc})"
            ) from exc
        return [(values.check_number(each.size, layers_key), each.topology, layers_key) for each in listed]
    if level and not size:
        raise Unreadable(f"{level_key} stands alone: add {size_key}")
    if size and not level:
        raise Unreadable(f"{size_key} stands alone: add {level_key}")
    return [(values.read_number(size, size_key), level, level_key)] if level else []


def _read_kai(ask: Said, levels: Levels, *, segments: bool) -> TopologyRequest:
    """`segments` is False where KAI's pod grouper has made subgroups of them already."""
    required, preferred = (ask(key) and levels.find_level(ask(key), key) for key in _KAI_KEYS)
    size, level = (ask(key) for key in _KAI_SEGMENT_KEYS)
    if not (segments and level):
        return TopologyRequest(required, preferred)
    if not size:
        raise Unreadable(f"{_KAI_SEGMENT_KEYS[1]} stands alone: add {_KAI_SEGMENT_KEYS[0]}")
    segment = Segment(values.read_number(size, _KAI_SEGMENT_KEYS[0]), levels.find_level(level, _KAI_SEGMENT_KEYS[1]))
    return TopologyRequest(required, preferred, (segment,))


def _read_topology_scheduler(ask: Said, levels: Levels) -> TopologyRequest:
    count, domain, rate, latency, strategy = (ask(key) for key in _SEED_KEYS)
    if not any((count, domain, rate, latency, strategy)):
        return TopologyRequest()
    if count:
        # Only checked: what a pod gets is what its limits say.
        values.read_number(count, SEED + "gpu-count")
    if strategy and strategy.lower() not in _STRATEGIES:
        raise Unreadable(f"{SEED}placement-strategy is {strategy!r}: write one of {', '.join(_STRATEGIES)}")
    near = bool(latency) and values.read_flag(latency, SEED + "latency-sensitive")
    return TopologyRequest(
        preferred=levels.network[0] if near and levels.network else "",
        strategy=_STRATEGIES[strategy.lower() or "balanced"],
        min_network_gb_per_s=values.gb_per_s(rate, SEED + "network-bandwidth") if rate else 0.0,
        preferred_domain=domain,
    )


# --- together -------------------------------------------------------------------------------------------


def _combine_requests(wishes: list[tuple[TopologyRequest, str]]) -> TopologyRequest:
    """All requests combined. Each field comes from the request that sets it; two that differ are an error."""
    result: dict[str, Any] = {}
    source: dict[str, str] = {}
    for wish, name in wishes:
        for field in dataclasses.fields(TopologyRequest):
            value = getattr(wish, field.name)
            if not value:
                continue
            if field.name == "segments":
                value = _combine_segments(result.get(field.name, ()), value)
            elif field.name in result and result[field.name] != value:
                raise Unreadable(
                    f"{source[field.name]} and {name} want different things ({field.name}: "
                    f"{result[field.name]} and {value}): remove one of them"
                )
            result[field.name], source[field.name] = value, name
    return TopologyRequest(**result)


def _combine_segments(some: tuple[Segment, ...], more: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Segments of two sources hold both: they nest, or the gang is refused because the sizes do not divide."""
    return tuple(dict.fromkeys((*some, *more)))


def _prefer_own(mine: TopologyRequest, other: TopologyRequest) -> TopologyRequest:
    """Our own request where it sets a field, else the other; a role that must be in one domain stays so."""
    said = {
        field.name: getattr(mine, field.name)
        for field in dataclasses.fields(TopologyRequest)
        if getattr(mine, field.name)
    }
    if mine.segments:
        whole = tuple(segment for segment in other.segments if segment.size == ALL)
        said["segments"] = _combine_segments(whole, mine.segments)
    return dataclasses.replace(other, **said)
