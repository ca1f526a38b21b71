"""A card that obeys the rules of the hardware, to try steps on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.model.gpu import mig
from kgwe.sharing.mig import lifecycle
from kgwe.sharing.mig.lifecycle import Event, Life, Mode, ObservedGpu, Slice, Step, format_placement

if TYPE_CHECKING:
    from collections.abc import Iterable

A100 = mig.GEOMETRIES["A100-80GB"]
A30 = mig.GEOMETRIES["A30-24GB"]
SOMEBODYS = (Life.ALLOCATED, Life.IN_USE, Life.RELEASED)


def places(geometry: mig.Geometry, names: str) -> tuple[mig.Placement, ...]:
    return tuple(mig.parse_placement(geometry, name) for name in names.split())


def wish(geometry: mig.Geometry, names: str | None) -> lifecycle.DesiredLayout:
    """`None`: a whole card."""
    return lifecycle.parse_desired_layout(geometry, enabled=names is not None, instances=(names or "").split())


@dataclass
class Bench:
    """Does what the hardware would do with a step, and refuses what it would refuse."""

    geometry: mig.Geometry
    mode: Mode = Mode.ON
    lives: dict[mig.Placement, Life] = field(default_factory=dict)
    is_occupied: bool = False
    needs_reset: bool = False
    log: list[str] = field(default_factory=list)

    def card(self) -> ObservedGpu:
        slices = tuple(
            Slice(place, place.instance_id(self.geometry), life)
            for place, life in sorted(self.lives.items(), key=lambda each: (each[0].start, each[0].profile.units))
        )
        return ObservedGpu(self.mode, slices, self.is_occupied)

    def do(self, step: Step, *, dies: bool = False) -> None:
        """`dies`: the process that asked is killed between GPU instance and compute instance."""
        self.log.append(str(step))
        before = {place for place, life in self.lives.items() if life in SOMEBODYS}
        if step.place is not None:
            self._change(step.event, step.place, dies=dies)
        else:
            self._turn(step.event)
        self.check()
        assert before == {place for place, life in self.lives.items() if life in SOMEBODYS}

    def _turn(self, event: Event) -> None:
        if self.is_occupied and event is Event.RESET:
            raise errors.Conflict("in use")
        if self.lives and (event is Event.RESET or (event is Event.DISABLE and self.mode is Mode.ON)):
            raise errors.Conflict("there are instances")
        self.mode = lifecycle.MODES[self.mode, event]
        if self.mode in (Mode.ENABLING, Mode.DISABLING) and not self.needs_reset:
            if self.is_occupied:
                raise errors.Conflict("in use")
            self.mode = lifecycle.MODES[self.mode, Event.RESET]

    def _change(self, event: Event, place: mig.Placement, *, dies: bool) -> None:
        assert self.mode is Mode.ON
        life = self.lives.get(place, Life.ABSENT)
        life = lifecycle.LIVES[life, event]
        if not dies:
            life = lifecycle.LIVES[life, Event.READY if event is Event.CREATE else Event.GONE]
        if life is Life.ABSENT:
            del self.lives[place]
        else:
            self.lives[place] = life

    def check(self) -> None:
        assert not mig.find_problems(self.geometry, list(self.lives)), sorted(map(format_placement, self.lives))
        assert not self.lives or self.mode is Mode.ON, "instances without MIG mode"

    def cut(self, names: str, life: Life = Life.FREE) -> None:
        self.lives |= dict.fromkeys(places(self.geometry, names), life)

    def names(self, lives: Iterable[Life] = tuple(Life)) -> list[str]:
        return [each.name for each in self.card().slices if each.life in tuple(lives)]
