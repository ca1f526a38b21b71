"""XID errors: what each number of the driver means for the GPU, and what it asks for. The only such table.

The actions are those of NVIDIA's catalogue ("resolution bucket, immediate action"; where it points to a workflow or to
support, what takes the least risk): https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
One number follows the practice of NVIDIA's device plugin (internal/rm/health.go) instead: 109, which the catalogue
answers with a reset and the plugin blames on the application. A number that is not listed takes the GPU out of
service, as with the plugin: it is not known to be harmless.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class XidClass(enum.StrEnum):
    """How far an error reaches."""

    FATAL = "Fatal"
    """The GPU cannot be trusted until it is reset or its driver reloaded: out of service."""
    CONTAINED = "Contained"
    """It hit a part of the memory or one process and the rest works on: in service, not for long work."""
    APPLICATION = "Application"
    """A program caused it: the GPU is well."""
    INFORMATIONAL = "Informational"
    """Nothing to do about it."""


class Action(enum.StrEnum):
    """What the operator should do."""

    NONE = "None"
    RESTART_APPLICATION = "RestartApplication"
    RESET = "ResetGPU"
    RESTART_NODE = "RestartNode"
    REPLACE = "DrainAndReplace"


class Xid(NamedTuple):
    """One number."""

    number: int
    xid_class: XidClass
    reason: str
    words: str
    action: Action


_FATAL, _CONTAINED = XidClass.FATAL, XidClass.CONTAINED
_APPLICATION, _INFORMATIONAL = XidClass.APPLICATION, XidClass.INFORMATIONAL
_NONE, _RESTART, _RESET = Action.NONE, Action.RESTART_APPLICATION, Action.RESET


def _table() -> dict[int, Xid]:
    rows = [
        Xid(8, _APPLICATION, "GPUStoppedProcessing", "a program exceeded the GPU's time limit", _RESTART),
        Xid(11, _APPLICATION, "InvalidPushBuffer", "a program sent a broken command stream", _RESTART),
        Xid(13, _APPLICATION, "GraphicsEngineException", "a kernel executed an illegal operation", _RESTART),
        Xid(25, _APPLICATION, "InvalidPushBuffer", "a program sent a broken command stream", _RESTART),
        Xid(31, _APPLICATION, "GPUMemoryPageFault", "a kernel accessed an invalid address", _RESTART),
        Xid(32, _APPLICATION, "InvalidPushBuffer", "a program sent a broken command stream", _RESTART),
        Xid(37, _INFORMATIONAL, "DriverFirmwareError", "the firmware received an unknown method", _NONE),
        Xid(38, _INFORMATIONAL, "DriverFirmwareError", "the firmware's watchdog expired once", _NONE),
        Xid(
            43,
            _APPLICATION,
            "GPUStoppedProcessing",
            "the GPU stopped a program after an error of that program",
            _RESTART,
        ),
        Xid(44, _INFORMATIONAL, "GraphicsEngineFault", "a fault during a context switch", _NONE),
        Xid(45, _APPLICATION, "PreemptiveCleanup", "the driver cleaned up a program after an earlier error", _RESTART),
        Xid(46, _FATAL, "GPUStoppedProcessing", "the GPU does not respond in time", _RESET),
        Xid(48, _FATAL, "DoubleBitECCError", "an uncorrectable memory error", _RESET),
        Xid(54, _FATAL, "NoAuxiliaryPower", "auxiliary power is not connected", Action.REPLACE),
        Xid(61, _FATAL, "InternalMicrocontrollerBreakpoint", "the GPU's power controller stopped", _RESET),
        Xid(62, _FATAL, "InternalMicrocontrollerHalt", "the GPU's power controller halted", _RESET),
        Xid(63, _CONTAINED, "RowRemappingEvent", "a bad row of memory will be replaced at the next reset", _NONE),
        Xid(64, _FATAL, "RowRemappingFailure", "a bad row of memory could not be replaced", _RESET),
        Xid(66, _INFORMATIONAL, "IllegalDriverAccess", "the driver accessed a forbidden register", _NONE),
        Xid(67, _INFORMATIONAL, "IllegalDriverAccess", "the driver accessed a forbidden register", _NONE),
        Xid(69, _APPLICATION, "GraphicsEngineClassError", "a program used the engine incorrectly", _RESTART),
        Xid(74, _FATAL, "NVLinkError", "an NVLink failed under traffic", _RESET),
        Xid(78, _INFORMATIONAL, "VGPUStartError", "a virtual GPU did not start", _NONE),
        Xid(79, _FATAL, "FallenOffTheBus", "the GPU no longer responds on PCIe", Action.RESTART_NODE),
        Xid(80, _APPLICATION, "CorruptedPushBuffer", "the GPU received corrupted data", _RESTART),
        Xid(
            92, _CONTAINED, "HighSingleBitECCErrorRate", "memory errors are corrected far more often than usual", _NONE
        ),
        Xid(93, _INFORMATIONAL, "InfoROMWearLimit", "the GPU's InfoROM is written too often", _NONE),
        Xid(94, _CONTAINED, "ContainedMemoryError", "a memory error in one process, which ends", _RESTART),
        Xid(95, _FATAL, "UncontainedMemoryError", "a memory error that may affect any process", _RESET),
        Xid(106, _INFORMATIONAL, "TestMessage", "a test of the management bus", _NONE),
        Xid(107, _INFORMATIONAL, "TestMessage", "a test of the management bus", _NONE),
        Xid(109, _APPLICATION, "ContextSwitchTimeout", "a context switch timed out", _RESTART),
        Xid(110, _FATAL, "SecurityFault", "a security check of the GPU failed", _RESET),
        Xid(119, _FATAL, "GSPTimeout", "the GPU system processor (GSP) does not respond", _RESET),
        Xid(120, _FATAL, "GSPError", "the GPU system processor (GSP) failed", _RESET),
        Xid(121, _CONTAINED, "C2CError", "an error on the link between GPU and CPU was corrected", _NONE),
        Xid(136, _FATAL, "NVLinkTrainingFailed", "an NVLink did not come up", _RESET),
        Xid(137, _INFORMATIONAL, "NVLinkPrivilegeError", "a peer requested memory without permission", _NONE),
        Xid(140, _FATAL, "UnrecoveredECCError", "an uncorrectable memory error was not recovered", _RESET),
        Xid(141, _INFORMATIONAL, "FastPathError", "a CUDA fast path was not taken", _NONE),
        Xid(143, _FATAL, "InitializationError", "the GPU did not initialize", _RESET),
        Xid(
            151, _FATAL, "KeyRotationError", "keys of confidential computing could not be changed", Action.RESTART_NODE
        ),
        Xid(154, _INFORMATIONAL, "RecoveryActionChanged", "the driver changed its advice for another error", _NONE),
        Xid(155, _FATAL, "NVLinkSoftwareError", "the driver disabled an NVLink", _RESET),
        Xid(156, _CONTAINED, "ResourceRetirement", "a bad part will be retired at the next reset", _RESET),
        Xid(157, _CONTAINED, "ResourceRetirementFailure", "a bad part could not be retired", _NONE),
        Xid(158, _FATAL, "FatalTimeout", "the GPU hangs", _RESET),
        Xid(160, _CONTAINED, "ChannelRetirement", "a channel of memory will be retired at the next reset", _NONE),
        Xid(161, _CONTAINED, "ChannelRetirementFailure", "a channel of memory could not be retired", _NONE),
        Xid(162, _INFORMATIONAL, "PowerSmoothing", "power smoothing is on again", _NONE),
        Xid(163, _INFORMATIONAL, "PowerSmoothing", "power smoothing is off", _NONE),
        Xid(164, _INFORMATIONAL, "PowerSmoothing", "power smoothing wears out", _NONE),
        Xid(165, _INFORMATIONAL, "PowerSmoothing", "power smoothing is worn out", _NONE),
        Xid(167, _FATAL, "PCIeFatalTimeout", "the GPU does not respond on PCIe", Action.RESTART_NODE),
        Xid(168, _CONTAINED, "ReducedMemory", "the GPU lost a part of its memory", _NONE),
        Xid(169, _FATAL, "InternalMicrocontrollerHalt", "the GPU's security controller halted", _RESET),
        Xid(171, _CONTAINED, "UncorrectableDRAMError", "details of a memory error", _NONE),
        Xid(172, _CONTAINED, "UncorrectableSRAMError", "details of a memory error", _NONE),
    ]
    copying = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
    words = "a program caused an error in a copy engine"
    rows += [Xid(number, _APPLICATION, "CopyEngineException", words, _RESTART) for number in copying]
    video = (60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139)
    words = "a program caused an error in a video or image engine"
    rows += [Xid(number, _APPLICATION, "VideoProcessorException", words, _RESTART) for number in video]
    words = "an NVLink of the fifth generation failed"
    rows += [Xid(number, _FATAL, "NVLinkError", words, _RESET) for number in range(144, 151)]
    return {row.number: row for row in rows}


XIDS: Final[Mapping[int, Xid]] = _table()


def look_up(number: int) -> Xid:
    """What the number means; one that is not listed is taken to be fatal."""
    return XIDS.get(number) or Xid(number, XidClass.FATAL, "XIDError", "an XID that is not listed", Action.RESET)
