"""MIG through NVML: profiles and placements of a GPU, its instances, their creation and removal.

A GPU instance holds memory and engines; a compute instance in it makes it usable and gives it its UUID. KGWE creates
one compute instance that fills the GPU instance. These are separate calls, so a killed process may leave the first
without the second: each function continues from the state it finds.
"""

from __future__ import annotations

import ctypes
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.hardware.nvml import processes as nvml_processes
from kgwe.hardware.nvml import values
from kgwe.hardware.nvml.library import Code
from kgwe.model.gpu import mig
from kgwe.model.gpu.driver_data import Instance, MigState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.hardware.nvml.library import Library

_ENABLED: Final = 1
_SHARED_ENGINES: Final = 0
_FIRST_VERSION: Final = 1
_LIST: Final = "nvmlDeviceGetGpuInstances"
_NAME: Final = re.compile(r"\d+g\.\d+gb\S*")
_MIB_PER_GIB: Final = 1024

# Suffixes of profiles by their constants.
_SUFFIXES: Final = {"SLICE_REV1": "+me", "SLICE_GFX": "+gfx", "SLICE_NO_ME": "-me", "SLICE_ALL_ME": "+me.all"}


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile as the GPU's driver offers it."""

    name: str
    id: int
    slices: int
    limit: int
    memory_mib: int


class MigControl:
    """The MIG functions of one library; the profiles of a GPU are read once."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._profiles: dict[str, tuple[Profile, ...]] = {}
        self._profile_numbers = _list_constants(library, "NVML_GPU_INSTANCE_PROFILE_")
        self._compute_numbers = [number for _, number in _list_constants(library, "NVML_COMPUTE_INSTANCE_PROFILE_")]

    # --- reading --------------------------------------------------------------------------------------------

    def state(self, handle: Any) -> MigState:
        """Return mode and instances of a GPU.

        A GPU supports MIG if its maximum number of instances is not 0: drivers report a mode for GPUs without MIG too
        (T4, L40S).
        """
        modes = self._library.call_if_supported("nvmlDeviceGetMigMode", handle)
        if modes is None or not self._is_capable(handle, modes):
            return MigState()
        current, pending = modes
        is_enabled = current == _ENABLED
        found = self.instances(handle) if is_enabled else ()
        return MigState(is_capable=True, is_enabled=is_enabled, is_pending=current != pending, instances=found)

    def _is_capable(self, handle: Any, modes: tuple[int, int]) -> bool:
        """Return whether the GPU supports instances; if the driver does not report the number, use its mode."""
        most = self._library.call_if_supported("nvmlDeviceGetMaxMigDeviceCount", handle)
        return _ENABLED in modes if most is None else most > 0

    def instances(self, handle: Any) -> tuple[Instance, ...]:
        """Return the instances of the GPU, by start."""
        devices = self.devices(handle)
        busy = nvml_processes.busy_instances(self._library, handle)
        if self._is_listing_denied(handle):
            return tuple(sorted(self._list_visible_devices(handle, devices, busy), key=lambda each: each.start))
        uuids = {gpu_instance: uuid for gpu_instance, uuid, _ in devices}
        found = []
        for profile, gpu_instance in self._gpu_instances(handle):
            info = self._library.call_if_supported("nvmlGpuInstanceGetInfo", gpu_instance)
            if info is None:
                continue  # destroyed between the two calls
            found.append(
                Instance(
                    uuid=uuids.get(info.id, ""),
                    instance_id=info.id,
                    profile=profile.name,
                    start=info.placement.start,
                    size=info.placement.size,
                    memory_mib=profile.memory_mib,
                    is_busy=None if busy is None else info.id in busy,
                )
            )
        return tuple(sorted(found, key=lambda instance: instance.start))

    def _is_listing_denied(self, handle: Any) -> bool:
        """Return whether listing failed for lack of root: GPU instances are listed for root only, their devices for
        all users.
        """
        profile = next(iter(self.profiles(handle)), None)
        return profile is not None and self._list_instances(handle, profile)[1] == Code.NO_PERMISSION

    def _list_visible_devices(
        self, handle: Any, devices: list[tuple[int, str, Any]], busy: frozenset[int] | None
    ) -> Iterator[Instance]:
        """Return profile and placement from the names and ids of the devices; unusable instances are not visible."""
        offered = {profile.name: profile for profile in self.profiles(handle)}
        for instance_id, (uuid, device) in {found: (uuid, device) for found, uuid, device in devices}.items():
            named = _NAME.search(self._library.call_if_supported("nvmlDeviceGetName", device) or "")
            profile = offered.get(named[0]) if named else None
            if profile is None:
                continue
            size, units = self._guess_size(handle, profile)
            yield Instance(
                uuid=uuid,
                instance_id=instance_id,
                profile=profile.name,
                # Ids count halves of halves as in a heap: see `mig.Placement.instance_id`.
                start=(instance_id + 1 - units // size) * size,
                size=size,
                memory_mib=profile.memory_mib,
                is_busy=None if busy is None else instance_id in busy,
            )

    def devices(self, handle: Any) -> list[tuple[int, str, Any]]:
        """Return (GPU instance, UUID, handle) of all usable devices; of several in one GPU instance the lowest comes
        last.
        """
        ask = self._library.call_if_supported
        found = []
        for index in range(ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            device = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if device is None:
                continue
            gpu_instance = ask("nvmlDeviceGetGpuInstanceId", device)
            uuid = ask("nvmlDeviceGetUUID", device)
            if gpu_instance is not None and uuid is not None:
                found.append((ask("nvmlDeviceGetComputeInstanceId", device) or 0, gpu_instance, uuid, device))
        found.sort(key=lambda each: each[:2], reverse=True)
        return [each[1:] for each in found]

    def profiles(self, handle: Any) -> tuple[Profile, ...]:
        card = self._library.call("nvmlDeviceGetUUID", handle)
        if card not in self._profiles:
            self._profiles[card] = tuple(self._read_profiles(handle))
        return self._profiles[card]

    def _read_profiles(self, handle: Any) -> Iterator[Profile]:
        function, total = "nvmlDeviceGetGpuInstanceProfileInfo", None
        for key, number in self._profile_numbers:
            info = self._library.call_if_supported(function, handle, number)
            if (
                info is None
                and (info := self._library.call_if_supported(function, handle, number, _FIRST_VERSION)) is None
            ):
                continue
            name = _NAME.search(values.decode_text(getattr(info, "name", "")))
            if name is None and total is None:
                total, _ = values.memory_info(self._library, handle)
            yield Profile(
                name=name[0] if name else profile_name(key, info.sliceCount, int(info.memorySizeMB), total or 1),
                id=info.id,
                slices=info.sliceCount,
                limit=info.instanceCount,
                memory_mib=int(info.memorySizeMB),
            )

    def _gpu_instances(self, handle: Any) -> Iterator[tuple[Profile, Any]]:
        for profile in self.profiles(handle):
            found, code = self._list_instances(handle, profile)
            if code in {Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND}:
                return
            if code != Code.SUCCESS:  # an overlooked instance would be overwritten
                raise self._library.make_error(code, _LIST)
            for gpu_instance in found:
                yield profile, gpu_instance

    def _list_instances(self, handle: Any, profile: Profile) -> tuple[list[Any], int]:
        room = (self._library.nvml.c_nvmlGpuInstance_t * max(profile.limit, 1))()
        count = ctypes.c_uint(len(room))
        _, code = self._library.call_or_code(_LIST, handle, profile.id, room, ctypes.byref(count))
        return (list(room[: count.value]) if code == Code.SUCCESS else []), code

    # --- the mode -------------------------------------------------------------------------------------------

    def set_mode(self, handle: Any, *, enabled: bool) -> bool:
        """Set the mode; return False if it takes effect only after a reset."""
        current, pending = self._library.call("nvmlDeviceGetMigMode", handle)
        if current == pending == enabled:
            return True
        activation, code = self._library.call_or_code("nvmlDeviceSetMigMode", handle, int(enabled))
        if code == Code.IN_USE:
            raise errors.Conflict(f"cannot change MIG mode: {self._find_blockers(handle)}")
        if code != Code.SUCCESS:
            raise self._library.make_error(code, "nvmlDeviceSetMigMode")
        current, pending = self._library.call("nvmlDeviceGetMigMode", handle)
        return bool(activation == Code.SUCCESS and current == pending == enabled)

    def _find_blockers(self, handle: Any) -> str:
        parts = [f"{each.profile}@{each.start}" for each in self.state(handle).instances]
        processes = nvml_processes.read_processes(self._library, handle, with_util=False)
        parts += [f"process {process.pid}" for process in (processes or ((), 0))[0]]
        return f"{', '.join(parts)} on the GPU" if parts else "another process has the GPU open"

    # --- creation -------------------------------------------------------------------------------------------

    def create(self, handle: Any, name: str, start: int) -> Instance:
        wanted = self._profile(handle, name)
        current, _ = self._library.call("nvmlDeviceGetMigMode", handle)
        if current != _ENABLED:
            raise errors.Conflict("MIG mode is not on")
        gpu_instance = self._find_instance(handle, wanted, start)
        is_new = gpu_instance is None
        if gpu_instance is None:
            gpu_instance = self._create_gpu_instance(handle, wanted, start)
        info = self._library.call("nvmlGpuInstanceGetInfo", gpu_instance)
        if is_new or not any(found == info.id for found, _, _ in self.devices(handle)):
            self._create_compute_instance(gpu_instance, wanted, undo=is_new)
        for instance in self.instances(handle):
            if instance.instance_id == info.id:
                return instance
        raise errors.Transient(f"{name}@{start} was created and disappeared")

    def _profile(self, handle: Any, name: str) -> Profile:
        offered = self.profiles(handle)
        for profile in offered:
            if profile.name == name:
                return profile
        names = ", ".join(profile.name for profile in offered) or "no MIG profile"
        raise errors.Permanent(f"the GPU has no MIG profile {name!r}; it offers {names}")

    def _find_instance(self, handle: Any, profile: Profile, start: int) -> Any:
        """Return the GPU instance of this profile at this placement."""
        for found, gpu_instance in self._gpu_instances(handle):
            info = self._library.call_if_supported("nvmlGpuInstanceGetInfo", gpu_instance)
            if info is not None and found == profile and info.placement.start == start:
                return gpu_instance
        return None

    def _create_gpu_instance(self, handle: Any, profile: Profile, start: int) -> Any:
        placement = self._library.nvml.c_nvmlGpuInstancePlacement_t(start, self._size(handle, profile, start))
        created, code = self._library.call_or_code(
            "nvmlDeviceCreateGpuInstanceWithPlacement", handle, profile.id, ctypes.byref(placement)
        )
        if code == Code.SUCCESS:
            return created
        name = f"{profile.name}@{start}"
        if code in {Code.INSUFFICIENT_RESOURCES, Code.IN_USE}:
            there = ", ".join(f"{each.profile}@{each.start}" for each in self.instances(handle)) or "nothing"
            raise errors.Conflict(f"no room for {name}: the GPU has {there} ({self._library.describe(code)})")
        raise self._library.make_error(code, f"creating {name}")

    def _size(self, handle: Any, profile: Profile, start: int) -> int:
        """Return the memory units of the profile; refuse a start that is not valid for this GPU model."""
        places = self._places(handle, profile)
        if places is None:
            return self._guess_size(handle, profile)[0]
        sizes = {place.start: place.size for place in places}
        if start not in sizes:
            starts = " ".join(map(str, sorted(sizes)))
            raise errors.Permanent(f"{profile.name}@{start} is not a valid placement: it may only start at {starts}")
        return int(sizes[start])

    def _places(self, handle: Any, profile: Profile) -> list[Any] | None:
        function, count = "nvmlDeviceGetGpuInstancePossiblePlacements", ctypes.c_uint()
        if self._library.call_if_supported(function, handle, profile.id, None, ctypes.byref(count)) is None:
            return None
        room = (self._library.nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        if self._library.call_if_supported(function, handle, profile.id, room, ctypes.byref(count)) is None:
            return None
        return list(room[: count.value])

    def _guess_size(self, handle: Any, profile: Profile) -> tuple[int, int]:
        """Return (memory units of the profile, of the GPU) if the driver does not list placements."""
        offered = self.profiles(handle)
        for geometry in mig.GEOMETRIES.values():
            if {each.name for each in offered} <= set(geometry.profiles):
                return geometry.profiles[profile.name].units, geometry.units
        # Unknown GPU: eighths of its memory, as on all large ones.
        whole = max(each.memory_mib for each in offered)
        return max(round(8 * profile.memory_mib / whole), 1), 8

    def _create_compute_instance(self, gpu_instance: Any, profile: Profile, *, undo: bool) -> None:
        try:
            number = self._filling_profile(gpu_instance, profile)
            self._library.call("nvmlGpuInstanceCreateComputeInstance", gpu_instance, number)
        except errors.KgweError:
            if undo:
                self._library.call_or_code("nvmlGpuInstanceDestroy", gpu_instance)
            raise

    def _filling_profile(self, gpu_instance: Any, profile: Profile) -> int:
        """Return the compute-instance profile with all slices of the GPU instance."""
        for info in self._compute_profiles(gpu_instance):
            if info.sliceCount == profile.slices:
                return int(info.id)
        raise errors.Permanent(f"the driver offers no compute instance that fills a {profile.name}")

    def _compute_profiles(self, gpu_instance: Any) -> Iterator[Any]:
        function = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        for number in self._compute_numbers:
            info = self._library.call_if_supported(function, gpu_instance, number, _SHARED_ENGINES)
            if info is None:
                info = self._library.call_if_supported(function, gpu_instance, number, _SHARED_ENGINES, _FIRST_VERSION)
            if info is not None:
                yield info

    # --- removal --------------------------------------------------------------------------------------------

    def destroy(self, handle: Any, instance_id: int) -> None:
        gpu_instance, code = self._library.call_or_code("nvmlDeviceGetGpuInstanceById", handle, instance_id)
        if code in {Code.NOT_FOUND, Code.NOT_SUPPORTED, Code.INVALID_ARGUMENT}:
            raise errors.NotFound(f"the GPU has no GPU instance {instance_id}")
        if code != Code.SUCCESS:
            raise self._library.make_error(code, "nvmlDeviceGetGpuInstanceById")
        # Check the whole first: a GPU instance without some of its compute instances cannot be used.
        if instance_id in (nvml_processes.busy_instances(self._library, handle) or ()):
            raise errors.Conflict(f"GPU instance {instance_id} is in use by a process")
        for compute_instance in list(self._compute_instances(gpu_instance)):
            self._library.call("nvmlComputeInstanceDestroy", compute_instance)
        self._library.call("nvmlGpuInstanceDestroy", gpu_instance)

    def _compute_instances(self, gpu_instance: Any) -> Iterator[Any]:
        for info in self._compute_profiles(gpu_instance):
            room = (self._library.nvml.c_nvmlComputeInstance_t * max(info.instanceCount, 1))()
            count = ctypes.c_uint(len(room))
            function = "nvmlGpuInstanceGetComputeInstances"
            if self._library.call_if_supported(function, gpu_instance, info.id, room, ctypes.byref(count)) is not None:
                yield from room[: count.value]


def _list_constants(library: Library, prefix: str) -> list[tuple[str, int]]:
    """Return (name, number) of an NVML enumeration, by number."""
    found = [(key, number) for key, number in vars(library.nvml).items() if key.startswith(prefix)]
    return sorted((each for each in found if not each[0].endswith("_COUNT")), key=lambda each: each[1])


def profile_name(constant: str, slices: int, memory_mib: int, total_mib: int) -> str:
    """Return a name such as `3g.40gb`, as NVIDIA's tools do: eighths of the GPU's memory in whole GiB."""
    eighths = math.ceil(8 * memory_mib / total_mib) / 8
    size = math.floor(eighths * -(-total_mib // _MIB_PER_GIB) + 0.5)
    suffix = next((found for ending, found in _SUFFIXES.items() if constant.endswith(ending)), "")
    return f"{slices}g.{size}gb{suffix}"
