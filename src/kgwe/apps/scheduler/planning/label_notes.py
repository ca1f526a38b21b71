"""The note in a refusal that nodes lack the labels which the SchedulerConfig names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe.cluster.state.missing_labels import MissingLabels, find_missing_labels
from kgwe.model.units.phrasing import end_sentence

if TYPE_CHECKING:
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.refusal import Refusal


class LabelNotes:
    """Adds the note to refusals of work that names a level of the network."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._generation = -1
        self._missing: MissingLabels | None = None

    def add_note(self, ask: Ask, refusal: Refusal) -> Refusal:
        """The refusal, with the note if missing labels may be its cause; before all advice if they are."""
        missing = self._find_missing()
        if missing is None or not missing.may_refuse(ask, refusal.code):
            return refusal
        said = end_sentence(refusal.message)
        is_cause = missing.is_cause(ask, refusal.code)
        return replace(refusal, message=f"{missing.text} {said}" if is_cause else f"{said} {missing.text}")

    def _find_missing(self) -> MissingLabels | None:
        """Labels are looked for once per generation of the fleet, which changes with nodes and settings."""
        generation = self._state.fleet.generation
        if generation != self._generation:
            self._generation, self._missing = generation, find_missing_labels(self._state)
        return self._missing
