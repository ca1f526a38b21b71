"""A driver in memory whose cards can be cut, with the rules of `mig_card`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.machines.mig_card import Bench

from kgwe import errors
from kgwe.model.gpu import driver_data, mig
from kgwe.model.gpu.topology import Slot
from kgwe.sharing.mig.lifecycle import Event, Life, Mode, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

PRODUCT = "NVIDIA A100-SXM4-80GB"
GEOMETRY = mig.GEOMETRIES["A100-80GB"]


class CuttableDriver:
    """Some A100. `busy` are cards with processes of their own; `failures` maps a step's words to what it raises."""

    def __init__(self, cards: int = 2, *, mode: Mode = Mode.ON, needs_reset: bool = False) -> None:
        self.benches = {f"GPU-{number}": Bench(GEOMETRY, mode, needs_reset=needs_reset) for number in range(cards)}
        self.busy: set[str] = set()
        self.lost: set[str] = set()
        self.failures: dict[str, errors.KgweError] = {}
        self.product = PRODUCT

    async def machine(self) -> driver_data.Machine:
        return driver_data.Machine("1", "1", tuple(self._device(uuid) for uuid in self.benches))

    def _device(self, uuid: str) -> driver_data.Device:
        bench = self.benches[uuid]
        card = bench.card()
        instances = tuple(
            driver_data.Instance(
                "" if each.life is Life.HALFWAY else f"MIG-{uuid}-{each.name}",
                each.instance_id * 100 + each.place.profile.compute,
                each.place.profile.name,
                each.place.start,
                each.place.profile.units,
                each.place.profile.memory_mib,
                is_busy=each.life in (Life.IN_USE, Life.RELEASED),
            )
            for each in card.slices
        )
        state = driver_data.MigState(
            is_capable=True,
            is_enabled=card.is_enabled,
            is_pending=card.mode in (Mode.ENABLING, Mode.DISABLING),
            instances=instances,
        )
        number = int(uuid.removeprefix("GPU-"))
        return driver_data.Device(uuid, number, self.product, 81920, Slot(bus=""), mig=state, is_lost=uuid in self.lost)

    async def readings(self) -> Sequence[driver_data.Reading]:
        return [
            driver_data.Reading(uuid, processes=(driver_data.Process(1),) if uuid in self.busy else ())
            for uuid in self.benches
        ]

    async def events(self, timeout_s: float) -> Sequence[driver_data.Event]:
        del timeout_s
        return ()

    async def set_mig_mode(self, uuid: str, *, enabled: bool) -> bool:
        bench = self.benches[uuid]
        if uuid in self.busy:
            raise errors.Conflict("in use")
        self._do(uuid, Step(Event.ENABLE if enabled else Event.DISABLE))
        return bench.mode is (Mode.ON if enabled else Mode.OFF)

    async def reset(self, uuid: str) -> None:
        self._do(uuid, Step(Event.RESET))

    async def create_instance(self, uuid: str, profile: str, start: int) -> driver_data.Instance:
        place = mig.Placement(GEOMETRY.profile(profile), start)
        if self.benches[uuid].lives.get(place, Life.HALFWAY) is Life.HALFWAY:
            self._do(uuid, Step(Event.CREATE, place))
        return next(each for each in self._device(uuid).mig.instances if (each.profile, each.start) == (profile, start))

    async def destroy_instance(self, uuid: str, instance_id: int) -> None:
        for each in self._device(uuid).mig.instances:
            if each.instance_id == instance_id:
                if each.is_busy:
                    raise errors.Conflict("in use")
                place = mig.Placement(GEOMETRY.profile(each.profile), each.start)
                self._do(uuid, Step(Event.DESTROY, place))
                return
        raise errors.NotFound(str(instance_id))

    def _do(self, uuid: str, step: Step) -> None:
        if failure := self.failures.get(str(step)):
            raise failure
        self.benches[uuid].do(step)

    async def close(self) -> None:
        pass
