"""Reads the processes on a GPU and their usage."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Final

from kgwe.hardware.nvml.library import CardLost, Code
from kgwe.model.gpu.driver_data import Process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.hardware.nvml.library import Library

# Newest first: the second version has the same layout and exists in older drivers.
_LISTS: Final = tuple(
    (f"nvmlDeviceGet{kind}RunningProcesses_v3", f"nvmlDeviceGet{kind}RunningProcesses_v2")
    for kind in ("Compute", "Graphics", "MPSCompute")
)
_NO_INSTANCE: Final = 0xFFFFFFFF


def read_processes(
    library: Library, handle: Any, *, since_us: int = 0, with_util: bool = True
) -> tuple[tuple[Process, ...], int] | None:
    """Return the processes, and the time of the newest usage sample; None if the driver does not report them."""
    listed = _list_processes(library, handle)
    if listed is None:
        return None
    util, newest = _read_utilization(library, handle, since_us) if listed and with_util else (None, since_us)
    processes = [
        Process(
            pid=pid,
            memory_mib=memory,
            util=util.get(pid, 0.0) if util is not None and instance is None else None,
            instance_id=instance,
        )
        for (pid, instance), memory in listed.items()
    ]
    return tuple(sorted(processes, key=lambda process: (process.instance_id or 0, process.pid))), newest


def busy_instances(library: Library, handle: Any) -> frozenset[int] | None:
    """Return the GPU instances that a process runs on."""
    listed = _list_processes(library, handle)
    if listed is None:
        return None
    return frozenset(instance for _, instance in listed if instance is not None)


def _list_processes(library: Library, handle: Any) -> dict[tuple[int, int | None], int | None] | None:
    """Return (process, instance) -> memory in MiB; a process with compute and graphics counts once."""
    found: dict[tuple[int, int | None], int | None] = {}
    answers = [library.first_supported(functions, handle) for functions in _LISTS]
    if answers[0] is None:
        return None  # without the list of compute processes an empty one would be a guess
    for process in (process for answer in answers for process in answer or ()):
        instance = None if process.gpuInstanceId == _NO_INSTANCE else process.gpuInstanceId
        memory = None if process.usedGpuMemory is None else process.usedGpuMemory >> 20
        known = found.get((process.pid, instance))
        found[process.pid, instance] = memory if known is None else max(known, memory or 0)
    return found


def _read_utilization(library: Library, handle: Any, since_us: int) -> tuple[Mapping[int, float] | None, int]:
    """Return (process -> mean share of its samples, time of the newest); None if the driver takes no samples."""
    samples, code = library.call_or_code("nvmlDeviceGetProcessUtilization", handle, since_us)
    if code == Code.GPU_IS_LOST:
        raise CardLost("nvmlDeviceGetProcessUtilization: the card is lost")
    if code in {Code.NOT_FOUND, Code.SUCCESS} and not samples:
        return {}, since_us  # nothing ran
    if samples is None:
        return None, since_us
    by_pid: dict[int, list[int]] = collections.defaultdict(list)
    for sample in samples:
        if sample.pid and sample.timeStamp:
            by_pid[sample.pid].append(sample.smUtil)
    newest = max((sample.timeStamp for sample in samples), default=since_us)
    return {pid: min(sum(found) / len(found) / 100, 1.0) for pid, found in by_pid.items()}, max(newest, since_us)
