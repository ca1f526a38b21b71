"""Whether the labels that a SchedulerConfig names are on the nodes.

If no node has the labels of a level, every node becomes a domain of its own there: placement then knows no network,
and nothing else would report it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kgwe.kube.translate import topology
from kgwe.model.network import domain_labels
from kgwe.model.units.phrasing import join_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.kube.api.kgwe.schedulerconfig import TopologyLabels
    from kgwe.model.network.domain_labels import LabelLevel

IN_USE: Final = "InUse"
NOT_FOUND: Final = "LabelNotFound"
PARTLY: Final = "NodesWithoutLabel"


class LabelCheck(NamedTuple):
    """The content of the condition Ready."""

    ready: bool
    reason: str
    message: str
    #: levels whose labels no node has
    levels: tuple[str, ...] = ()


class _Use(NamedTuple):
    """How many nodes have the labels of a level."""

    level: LabelLevel
    nodes: int
    of: int

    def words(self) -> str:
        return f"{self.describe_count()} (level {self.level.name})"

    def describe_count(self) -> str:
        keys = self.level.keys
        labels = f"label {keys[0]} is" if len(keys) == 1 else f"labels {', '.join(keys)} are"
        return f"{labels} on {self.nodes} of {self.of} nodes"


def check_labels(config: TopologyLabels, nodes: Sequence[Mapping[str, str]], *, declared: int = 0) -> LabelCheck:
    """`nodes`: the labels of every node with GPUs; `declared`: how many TopologyDomain objects describe the network."""
    if not nodes:
        return LabelCheck(ready=True, reason=IN_USE, message="in use; no node offers GPUs yet")
    if declared:
        return LabelCheck(ready=True, reason=IN_USE, message=f"in use; {declared} TopologyDomains describe the network")
    if not (config.preset or config.levels):
        found = domain_labels.detect_preset(nodes)
        return LabelCheck(
            ready=True, reason=IN_USE, message=f"in use; labels as preset {found}, found by looking at nodes"
        )
    uses = [_count_use(level, nodes) for level in topology.read_label_keys(config).levels]
    absent = [use for use in uses if not use.nodes]
    # A preset has levels that not every network has; of explicit levels, all are required.
    if absent and (config.levels or len(_network_levels(uses)) == len(_network_levels(absent))):
        levels = tuple(use.level.name for use in absent)
        return LabelCheck(
            ready=False, reason=NOT_FOUND, message=_describe_missing(config, absent, nodes), levels=levels
        )
    first = uses[0]
    if first.nodes < first.of:
        words = f"in use; {first.words()}: each of the others counts as a domain of its own"
        return LabelCheck(ready=True, reason=PARTLY, message=words)
    return LabelCheck(ready=True, reason=IN_USE, message=f"in use; {first.words()}")


def _count_use(level: LabelLevel, nodes: Sequence[Mapping[str, str]]) -> _Use:
    return _Use(level, sum(any(labels.get(key) for key in level.keys) for labels in nodes), len(nodes))


def _network_levels(uses: Sequence[_Use]) -> list[_Use]:
    """The levels without the zone, which clouds label everywhere and which does not describe switches."""
    return [use for use in uses if use.level.name != "zone"]


def _describe_missing(config: TopologyLabels, absent: Sequence[_Use], nodes: Sequence[Mapping[str, str]]) -> str:
    found = domain_labels.detect_preset(nodes)
    there = any(
        use.nodes
        for use in _network_levels([_count_use(level, nodes) for level in domain_labels.get_preset(found).levels])
    )
    shown = absent if config.levels else absent[:1]
    counts = "; ".join(use.describe_count() if len(shown) == 1 else use.words() for use in shown)
    names = join_words([use.level.name for use in shown])
    many = "label" if sum(len(use.level.keys) for use in shown) == 1 else "labels"
    fix = f"Correct the {many} in the SchedulerConfig"
    advice = f", or set preset {found}, whose labels the nodes have" if there and found != config.preset else ""
    return f"{counts}, so every node counts as its own {names}. {fix}{advice}"
