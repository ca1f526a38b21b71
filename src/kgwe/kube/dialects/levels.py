"""Levels of the network, as other systems name them: by the key of a node label, or by a number.

A label the cluster's tree is read from means the level it is read for. A label of another preset means the level of the
same name, so that jobs written for one set of labels run on nodes that carry another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.kube.dialects.membership import Unreadable
from kgwe.model.network.domain_labels import NVLINK_KEYS, PRESETS
from kgwe.placement.gang.request import CLUSTER, NODE, NVLINK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.model.network.domain_labels import Labels

_HOST_NAME: Final = "kubernetes.io/hostname"
# Names of some clouds for the levels of TopologyDomain objects.
_ALSO: Final = {"block": "spine", "island": "core"}


@dataclass(frozen=True)
class Levels:
    """The levels of one cluster."""

    labels: Labels
    names: tuple[str, ...] = ()
    """Levels of the tree, the nearest first; those of the labels when left out."""

    @property
    def network(self) -> tuple[str, ...]:
        return self.names or self.labels.names

    def find_level(self, text: str, source: str) -> str:
        """The level that `text` names, by label or by its own name; `source` is where it was written."""
        if text in (NODE, NVLINK, CLUSTER, *self.network):
            return text
        for name in self._list_named(text):
            known = name if name in (NODE, NVLINK, *self.network) else _ALSO.get(name, "")
            if known in (NODE, NVLINK, *self.network):
                return known
        raise Unreadable(
            f"{source} names {text!r}, and no level of this cluster is read from such a label: use one of "
            f"{', '.join(self._list_offered())}, or add the label to spec.topology.levels of the SchedulerConfig"
        )

    def _list_named(self, key: str) -> Iterator[str]:
        """Names of the levels whose labels have this key, the cluster's own first."""
        if key == _HOST_NAME:
            yield NODE
        for labels in (self.labels, *PRESETS.values()):
            yield from (level.name for level in labels.levels if key in level.keys)
        if key in (*self.labels.nvlink, *NVLINK_KEYS):
            yield NVLINK

    def _list_offered(self) -> Iterator[str]:
        keys = {level.name: level.keys[0] for level in self.labels.levels}
        yield f"{NODE} ({_HOST_NAME})"
        yield NVLINK
        yield from (f"{name} ({keys[name]})" if name in keys else name for name in self.network)

    def find_tier(self, number: int, source: str) -> str:
        """Tiers count from the leaf, which is 1; 0 is the node."""
        named = (NODE, *self.network)
        if 0 <= number < len(named):
            return named[number]
        listed = ", ".join(f"{tier} {name}" for tier, name in enumerate(named))
        raise Unreadable(f"{source} allows tier {number}; the tiers of this cluster are {listed}")
