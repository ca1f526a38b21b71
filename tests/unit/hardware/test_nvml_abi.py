"""The C library speaks the binary interface that pynvml speaks: every struct, field by field."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pynvml  # type: ignore[import-untyped] # it has no stubs
import pytest
from tests.support.builders import gpus

from kgwe.hardware import nvml as nvml_driver
from kgwe.hardware.nvml import library as nvml_library
from kgwe.hardware.nvml.driver import NvmlDriver
from kgwe.local import nvml
from kgwe.local.nvml import build, state
from kgwe.local.nvml.build import Generation
from kgwe.model.gpu import catalog
from kgwe.model.gpu.driver_data import MigState

SOURCE = Path(next(iter(nvml.__path__))) / "c"

STRUCTS = {
    "nvmlPciInfo_t": "nvmlPciInfo_t",
    "nvmlMemory_t": "c_nvmlMemory_t",
    "nvmlMemory_v2_t": "c_nvmlMemory_v2_t",
    "nvmlUtilization_t": "c_nvmlUtilization_t",
    "nvmlProcessInfo_t": "c_nvmlProcessInfo_v3_t",
    "nvmlProcessUtilizationSample_t": "c_nvmlProcessUtilizationSample_t",
    "nvmlProcessUtilizationInfo_v1_t": "c_nvmlProcessUtilizationInfo_v1_t",
    "nvmlProcessesUtilizationInfo_v1_t": "c_nvmlProcessesUtilizationInfo_v1_t",
    "nvmlEventData_t": "c_nvmlEventData_t",
    "nvmlFieldValue_t": "c_nvmlFieldValue_t",
    "nvmlPlacement_t": "c_nvmlGpuInstancePlacement_t",
    "nvmlGpuInstanceProfileInfo_t": "c_nvmlGpuInstanceProfileInfo_t",
    "nvmlGpuInstanceProfileInfo_v2_t": "c_nvmlGpuInstanceProfileInfo_v2_t",
    "nvmlGpuInstanceInfo_t": "c_nvmlGpuInstanceInfo_t",
    "nvmlComputeInstanceProfileInfo_t": "c_nvmlComputeInstanceProfileInfo_t",
    "nvmlComputeInstanceProfileInfo_v2_t": "c_nvmlComputeInstanceProfileInfo_v2_t",
    "nvmlComputeInstanceInfo_t": "c_nvmlComputeInstanceInfo_t",
    "nvmlDeviceAttributes_t": "c_nvmlDeviceAttributes",
    "nvmlGpuFabricInfo_t": "c_nvmlGpuFabricInfo_t",
    "nvmlGpuFabricInfo_v2_t": "c_nvmlGpuFabricInfo_v2_t",
}


def test_structs_have_the_layout_of_the_public_interface(tmp_path: Path) -> None:
    expected, lines = [], []
    for ours, theirs in STRUCTS.items():
        struct = getattr(pynvml, theirs)
        expected.append(f"{ours} {ctypes.sizeof(struct)}")
        lines.append(f'printf("{ours} %zu\\n", sizeof({ours}));')
        for field, *_ in struct._fields_:
            expected.append(f"{ours}.{field} {getattr(struct, field).offset}")
            lines.append(f'printf("{ours}.{field} %zu\\n", offsetof({ours}, {field}));')
    program = tmp_path / "sizes.c"
    program.write_text(f'#include "abi.h"\n#include <stdio.h>\nint main(void) {{ {" ".join(lines)} return 0; }}\n')
    subprocess.run(["cc", f"-I{SOURCE}", "-o", tmp_path / "sizes", program], check=True)
    said = subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == expected


def test_codes_are_those_of_the_public_interface() -> None:
    ours = dict(re.findall(r"(NVML_ERROR_\w+|NVML_SUCCESS) = (\d+)", (SOURCE / "abi.h").read_text()))
    assert len(ours) > 10
    assert ours == {name: str(getattr(pynvml, name)) for name in ours}


def test_the_state_has_one_layout_in_c_and_python() -> None:
    library = ctypes.CDLL(str(build.ensure() / build.LIBRARY))
    assert library.kgweStateSize() == ctypes.sizeof(state.State)
    assert tuple(library.kgweOffset(i) for i in range(len(state.list_offsets()))) == state.list_offsets()


def functions(generation: Generation) -> set[str]:
    library = build.ensure(generation) / build.LIBRARY
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in listed.splitlines()}


def test_the_library_exports_nothing_but_nvml_and_the_hardware() -> None:
    assert all(name.startswith(("nvml", "kgwe")) for name in functions(Generation.NEW))


def test_the_old_library_lacks_what_came_later() -> None:
    later = functions(Generation.NEW) - functions(Generation.OLD)
    assert {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNvLinkRemoteDeviceType"} <= later
    assert functions(Generation.OLD) < functions(Generation.NEW)


def test_every_function_that_the_driver_calls_is_there() -> None:
    """Each is named as text in the driver; pynvml maps some to versioned symbols."""
    sources = (path.read_text() for path in Path(nvml_driver.__path__[0]).glob("*.py"))
    called = {name for text in sources for name in re.findall(r'"(nvml[A-Z]\w+)"', text)}
    assert len(called) > 40
    exported = functions(Generation.NEW)
    former = {name for names in nvml_library._FORMER_NAMES.values() for name in names}
    versions = ("", "_v2", "_v3", "V")
    missing = {name for name in called - former if not {f"{name}{version}" for version in versions} & exported}
    assert missing == set()


@pytest.mark.parametrize("name", catalog.CATALOGUE)
async def test_every_card_of_the_catalogue_can_be_simulated(tmp_path: Path, name: str) -> None:
    driver = gpus.driver(gpus.hardware(tmp_path, gpus.box(name)))
    device = await gpus.card(driver)
    await driver.close()
    assert device.product == catalog.CATALOGUE[name].product


FOREIGN = """
#include <stdio.h>
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex(unsigned index, void **device) { static int card; *device = &card; return (int)index; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) { snprintf(uuid, size, "GPU-%d", 7); return !device; }
int nvmlDeviceGetName(void *device, char *name, unsigned size) { snprintf(name, size, "Old card"); return !device; }
int nvmlDeviceGetPciInfo_v2(void *device, char *pci) { strcpy(pci, "0000:1b:00.0"); return !device; }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) { *now = *pending = 1; return !device; }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *c) { *c = 41 + sensor; return !device; }
"""


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    (tmp_path / "foreign.c").write_text(FOREIGN)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "foreign.c"], check=True)
    return library


async def test_a_library_that_is_not_ours_and_has_few_functions_is_read(foreign: Path, tmp_path: Path) -> None:
    driver = NvmlDriver(library=foreign, sysfs=tmp_path)
    (device,) = (await driver.machine()).devices
    (reading,) = await driver.readings()
    assert (device.uuid, device.product, device.slot.bus) == ("GPU-7", "Old card", "00000000:1B:00.0")
    assert device.mig == MigState(is_capable=True, is_enabled=True)
    assert (device.memory_mib, device.links, device.architecture) == (None, (), None)
    assert (reading.uuid, reading.gpu_c, reading.power_w) == ("GPU-7", 41, None)
    assert list(await driver.events(0.0)) == []
    await driver.close()
