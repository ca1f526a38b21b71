"""Labels that the SchedulerConfig names and no node has.

Every node is then a domain of its own, and a workload that must stay in one leaf waits for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kgwe.model.units.phrasing import end_sentence
from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.placement.planning.ask import Ask

_OF_TOPOLOGY: Final = frozenset({Reason.TOO_LARGE, Reason.TOPOLOGY_NOT_MET, Reason.UNKNOWN_LEVEL})


class MissingLabels(NamedTuple):
    """What is wrong with the SchedulerConfig, in sentences, and the levels that it concerns."""

    text: str
    levels: frozenset[str]

    def may_refuse(self, ask: Ask, code: Reason) -> bool:
        """Whether missing labels may be why the ask was refused."""
        return code in _OF_TOPOLOGY and bool(_list_levels(ask))

    def is_cause(self, ask: Ask, code: Reason) -> bool:
        """Whether the ask was refused and requires a level whose labels are missing."""
        return code in _OF_TOPOLOGY and not self.levels.isdisjoint(_list_levels(ask))


def find_missing_labels(state: ClusterState) -> MissingLabels | None:
    config, found = state.config, state.reader.check_config()
    if config is None or found.ready:
        return None
    return MissingLabels(
        end_sentence(f"SchedulerConfig {config.metadata.name}: {found.message}"), frozenset(found.levels)
    )


def _list_levels(ask: Ask) -> set[str]:
    """Levels of the network that the ask requires."""
    near = ask.gang if ask.gang is not None else ask.nearness
    roles = ask.gang.roles if ask.gang is not None else (ask.nearness,)
    return {each for each in (near.required, *(s.level for role in roles for s in role.segments)) if each}
