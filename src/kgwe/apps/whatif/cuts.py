"""MIG layout changes that a waiting workload may profit from: GPUs withheld, being partitioned or drained for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.kube.translate import mig_layouts
from kgwe.model.gpu.mig import Phase
from kgwe.sharing.mig.attempt import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kgwe.kube.api.kgwe.gpunode import CardSpec, GPUDevice, GPUNode
    from kgwe.kube.translate.nodes import FleetReader
    from kgwe.placement.fleet.node import Node
    from kgwe.placement.planning.ask import Ask

_LISTED: Final = 5
_LONGEST: Final = f"a layout change that takes more than {Limits().timeout_s:.0f} s is rolled back"
_NOT_NOW: Final = (Phase.FAILED, Phase.ROLLED_BACK)


def lines(reader: FleetReader, ask: Ask) -> tuple[str, ...]:
    """Return one line per GPU that the ask could use, or have slices of, after or without its layout change."""
    bound, profile = ask.request.constraints, ask.request.gpus.profile
    found: list[str] = []
    for node in _filter_nodes(reader.nodes(), bound.selector):
        _, gpu_node = reader.objects(node.name)
        if gpu_node is not None:
            held_back = reader.held_back(node.name)
            found += _describe_node(gpu_node, held_back, profile, f"{ask.namespace}/{ask.name}")
    more = [f"{len(found) - _LISTED} more"] if len(found) > _LISTED else []
    return (*found[:_LISTED], *more, *([_LONGEST] if found else []))


def _filter_nodes(nodes: Iterable[Node], selector: Iterable[tuple[str, str]]) -> Iterator[Node]:
    wanted = dict(selector)
    for node in nodes:
        if all(node.labels.get(key) == value for key, value in wanted.items()):
            yield node


def _describe_node(gpu_node: GPUNode, held_back: frozenset[int], profile: str, waiting: str) -> Iterator[str]:
    asked = mig_layouts.read_specs(gpu_node)
    for device in gpu_node.status.gpus:
        name = f"GPU {device.index} of node {gpu_node.metadata.name}"
        card = asked.get(device.uuid)
        if card is None:
            if device.index in held_back and not profile:
                yield f"{name} is withheld: a MIGStrategy selects it, and its layout is not decided yet"
        elif card.drain is not None and card.drain.waiting.endswith(f" {waiting}"):
            pods = ", ".join(each.pod for each in card.drain.pods)
            yield f"{name} will be partitioned for it after the eviction of {pods}, requested at {card.drain.since}"
        elif profile and _adds_profile(device, card, profile):
            yield f"a slice {profile} is being created: {name} {_describe_progress(device, card)}"
        elif not profile and device.index in held_back:
            yield f"{name} is withheld: it {_describe_progress(device, card)}"


def _adds_profile(device: GPUDevice, card: CardSpec, profile: str) -> bool:
    there = {f"{each.profile}@{each.start}" for each in device.mig.instances}
    return device.mig.phase not in _NOT_NOW and any(
        place.partition("@")[0] == profile for place in card.mig.instances if place not in there
    )


def _describe_progress(device: GPUDevice, card: CardSpec) -> str:
    since = f", requested at {card.since}" if card.since else ""
    layout = f"layout {' '.join(card.mig.instances)}" if card.mig.instances else "no slices"
    said = f" ({device.mig.phase}: {device.mig.message})" if device.mig.phase else ""
    return f"will have {layout}{since}{said}"
