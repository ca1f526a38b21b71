"""What is done to cards that work waits for: which are held back to be cut, which are being cut, who leaves them."""

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
_LONGEST: Final = f"a cut is taken back when it takes more than {Limits().timeout_s:.0f} s"
_NOT_NOW: Final = (Phase.FAILED, Phase.ROLLED_BACK)


def lines(reader: FleetReader, ask: Ask) -> tuple[str, ...]:
    """For work that waits: cards it could have, or have slices of, if they were not to be cut, or were cut already."""
    bound, profile = ask.request.constraints, ask.request.gpus.profile
    found: list[str] = []
    for node in _may_go(reader.nodes(), bound.selector):
        _, gpu_node = reader.objects(node.name)
        if gpu_node is not None:
            held_back = reader.held_back(node.name)
            found += _of_node(gpu_node, held_back, profile, f"{ask.namespace}/{ask.name}")
    more = [f"and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
    return (*found[:_LISTED], *more, *([_LONGEST] if found else []))


def _may_go(nodes: Iterable[Node], selector: Iterable[tuple[str, str]]) -> Iterator[Node]:
    wanted = dict(selector)
    for node in nodes:
        if all(node.labels.get(key) == value for key, value in wanted.items()):
            yield node


def _of_node(gpu_node: GPUNode, held_back: frozenset[int], profile: str, waiting: str) -> Iterator[str]:
    asked = mig_layouts.read_specs(gpu_node)
    for device in gpu_node.status.gpus:
        name = f"GPU {device.index} of node {gpu_node.metadata.name}"
        card = asked.get(device.uuid)
        if card is None:
            if device.index in held_back and not profile:
                yield f"{name} is held back: a MIGStrategy selects it, and what it is to be cut into is not decided yet"
        elif card.drain is not None and card.drain.waiting.endswith(f" {waiting}"):
            pods = ", ".join(each.pod for each in card.drain.pods)
            yield f"{name} is to be cut for it when {pods} has left, asked at {card.drain.since}"
        elif profile and _comes(device, card, profile):
            yield f"a {profile} is on its way: {name} {_progress(device, card)}"
        elif not profile and device.index in held_back:
            yield f"{name} is held back: it {_progress(device, card)}"


def _comes(device: GPUDevice, card: CardSpec, profile: str) -> bool:
    there = {f"{each.profile}@{each.start}" for each in device.mig.instances}
    return device.mig.phase not in _NOT_NOW and any(
        place.partition("@")[0] == profile for place in card.mig.instances if place not in there
    )


def _progress(device: GPUDevice, card: CardSpec) -> str:
    since = f" since {card.since}" if card.since else ""
    said = f" ({device.mig.phase}: {device.mig.message})" if device.mig.phase else ""
    return f"is to be cut into {' '.join(card.mig.instances) or 'nothing'}{since}{said}"
