"""The note in a refusal that nodes lack the labels which the SchedulerConfig names.

Every node is then a domain of its own, and a workload that must stay in one leaf waits for ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe.model.units.phrasing import end_sentence
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.placement.planning.ask import Ask

_OF_TOPOLOGY = frozenset({Reason.TOO_LARGE, Reason.TOPOLOGY_NOT_MET, Reason.UNKNOWN_LEVEL})


class LabelNotes:
    """Adds the note to refusals of work that names a level of the network."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._generation = -1
        self._note = ""

    def add_note(self, ask: Ask, refusal: Refusal) -> Refusal:
        """The refusal, with the note if missing labels may be its cause."""
        if refusal.code not in _OF_TOPOLOGY or not _names_level(ask) or not (note := self._find_note()):
            return refusal
        return replace(refusal, message=f"{end_sentence(refusal.message)} {note}")

    def _find_note(self) -> str:
        """The note; looked for once per generation of the fleet, which changes with nodes and settings."""
        generation = self._state.fleet.generation
        if generation != self._generation:
            self._generation, self._note = generation, self._describe_labels()
        return self._note

    def _describe_labels(self) -> str:
        config, found = self._state.config, self._state.reader.check_config()
        if config is None or found.ready:
            return ""
        return end_sentence(f"SchedulerConfig {config.metadata.name}: {found.message}")


def _names_level(ask: Ask) -> bool:
    if ask.gang is not None:
        return bool(ask.gang.required) or any(role.segments for role in ask.gang.roles)
    return bool(ask.nearness.required or ask.nearness.segments)
