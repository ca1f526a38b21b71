"""Reads the current values of all GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe.hardware.nvml import processes as nvml_processes
from kgwe.hardware.nvml import values as nvml_values
from kgwe.hardware.nvml.library import CardLost
from kgwe.model.gpu.driver_data import Faults, LinkErrors, Reading, Throttle

if TYPE_CHECKING:
    from kgwe.hardware.nvml.library import Library
    from kgwe.hardware.nvml.machine import Memory
    from kgwe.hardware.nvml.mig import MigControl

_SM, _MEMORY = 1, 2
_GPU_SENSOR: Final = 0
_SLOWDOWN: Final = 1
_SENT, _RECEIVED = 0, 1
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE: Final = 0
_REPLAY, _RECOVERY, _CRC_FLIT = 0, 1, 2
_RETIREMENT_CAUSES: Final = (0, 1)
_MEMORY_TEMPERATURE: Final = 82
_DATA_SENT, _DATA_RECEIVED = 138, 139

_IDLE: Final = 0x1
_HARDWARE: Final = 0x8
"""Thermal, power brake or other; the finer bits give the cause."""
_REASONS: Final = {
    _IDLE: Throttle.IDLE,
    0x2: Throttle.OTHER,
    0x4: Throttle.POWER_CAP,
    0x10: Throttle.OTHER,
    0x20: Throttle.THERMAL_SOFTWARE,
    0x40: Throttle.THERMAL_HARDWARE,
    0x80: Throttle.POWER_BRAKE,
    0x100: Throttle.OTHER,
    0x200: Throttle.OTHER,
    0x400: Throttle.OTHER,
}


class InstrumentsReader:
    """Reads GPU values; keeps the time of the last process samples, and the number of links per GPU."""

    def __init__(self, library: Library, mig: MigControl, memory: Memory) -> None:
        self._library = library
        self._mig = mig
        self._memory = memory
        self._sampled_us: dict[str, int] = {}
        self._links: dict[str, int] = {}

    def read(self) -> list[Reading]:
        return [self._read_gpu(index) for index in range(self._library.call("nvmlDeviceGetCount"))]

    def _read_gpu(self, index: int) -> Reading:
        try:
            handle = self._library.call("nvmlDeviceGetHandleByIndex", index)
            return self._reading(self._library.call("nvmlDeviceGetUUID", handle), handle)
        except CardLost:
            known = self._memory.devices.get(index)
            return Reading(known.uuid if known else "", is_lost=True)

    def _reading(self, card: str, handle: Any) -> Reading:
        ask = self._library.call_if_supported
        rates = ask("nvmlDeviceGetUtilizationRates", handle)
        total, used = nvml_values.memory_info(self._library, handle)
        (memory_c,) = nvml_values.read_fields(self._library, handle, [(_MEMORY_TEMPERATURE, 0)])
        sent, received = self._traffic(card, handle)
        is_cut = bool((ask("nvmlDeviceGetMigMode", handle) or (0,))[0])
        processes = nvml_processes.read_processes(
            self._library, handle, since_us=self._sampled_us.get(card, 0), with_util=not is_cut
        )
        if processes is not None:
            self._sampled_us[card] = processes[1]
        return Reading(
            uuid=card,
            util=None if rates is None else rates.gpu / 100,
            memory_util=None if rates is None else rates.memory / 100,
            memory_used_mib=used,
            memory_total_mib=total,
            power_w=_from_thousandths(ask("nvmlDeviceGetPowerUsage", handle)),
            power_limit_w=_from_thousandths(ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
            energy_j=_from_thousandths(ask("nvmlDeviceGetTotalEnergyConsumption", handle)),
            gpu_c=ask("nvmlDeviceGetTemperature", handle, _GPU_SENSOR),
            memory_c=memory_c,
            slowdown_c=ask("nvmlDeviceGetTemperatureThreshold", handle, _SLOWDOWN),
            sm_mhz=ask("nvmlDeviceGetClockInfo", handle, _SM),
            memory_mhz=ask("nvmlDeviceGetClockInfo", handle, _MEMORY),
            throttle=self._throttle(handle),
            pcie_tx_bytes_per_s=_from_thousands(ask("nvmlDeviceGetPcieThroughput", handle, _SENT)),
            pcie_rx_bytes_per_s=_from_thousands(ask("nvmlDeviceGetPcieThroughput", handle, _RECEIVED)),
            nvlink_tx_bytes=sent,
            nvlink_rx_bytes=received,
            instance_memory_mib=self._instance_memory(handle) if is_cut else (),
            processes=processes[0] if processes is not None else (),
            faults=self._faults(card, handle),
        )

    def _throttle(self, handle: Any) -> Throttle | None:
        bits = self._library.first_supported(
            ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), handle
        )
        return None if bits is None else list_throttle_reasons(bits)

    def _instance_memory(self, handle: Any) -> tuple[tuple[int, int], ...]:
        found: dict[int, int] = {}
        for instance_id, _, device in self._mig.devices(handle):
            used = nvml_values.memory_info(self._library, device)[1]
            if used is not None:
                found[instance_id] = used
        return tuple(sorted(found.items()))

    def _link_count(self, card: str, handle: Any) -> int:
        if card not in self._links:
            self._links[card] = nvml_values.link_count(self._library, handle)
        return self._links[card]

    def _traffic(self, card: str, handle: Any) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Return bytes sent and received per link; the driver counts KiB."""
        links = range(self._link_count(card, handle))
        values = nvml_values.read_fields(
            self._library, handle, [(field, link) for field in (_DATA_SENT, _DATA_RECEIVED) for link in links]
        )
        halves = values[: len(links)], values[len(links) :]
        return tuple(
            tuple((link, value << 10) for link, value in zip(links, half, strict=True) if value is not None)
            for half in halves
        )

    def _faults(self, card: str, handle: Any) -> Faults:
        ask = self._library.call_if_supported
        pages = [ask("nvmlDeviceGetRetiredPages", handle, cause) for cause in _RETIREMENT_CAUSES]
        pages_pending = ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
        _, remapped, remap_pending, remap_failed = ask("nvmlDeviceGetRemappedRows", handle) or (None,) * 4
        return Faults(
            ecc_corrected=ask("nvmlDeviceGetTotalEccErrors", handle, _CORRECTED, _VOLATILE),
            ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
            retired_pages=None if None in pages else sum(len(found) for found in pages),
            is_retirement_pending=None if pages_pending is None else bool(pages_pending),
            rows_remapped=remapped,
            is_remap_pending=None if remap_pending is None else bool(remap_pending),
            has_remap_failed=None if remap_failed is None else bool(remap_failed),
            pcie_replays=ask("nvmlDeviceGetPcieReplayCounter", handle),
            links=tuple(self._link_errors(handle, link) for link in range(self._link_count(card, handle))),
        )

    def _link_errors(self, handle: Any, link: int) -> LinkErrors:
        replays, recoveries, crc = (
            self._library.call_if_supported("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)
            for counter in (_REPLAY, _RECOVERY, _CRC_FLIT)
        )
        return LinkErrors(link, replays, recoveries, crc)


def list_throttle_reasons(bits: int) -> Throttle:
    """Return KGWE's throttle reasons for NVML's mask."""
    found = Throttle.NONE
    for bit, reason in _REASONS.items():
        if bits & bit:
            found |= reason
    if bits & _HARDWARE and not found & (Throttle.THERMAL_HARDWARE | Throttle.POWER_BRAKE):
        found |= Throttle.OTHER
    return found


def _from_thousandths(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _from_thousands(value: int | None) -> int | None:
    return None if value is None else value * 1000
