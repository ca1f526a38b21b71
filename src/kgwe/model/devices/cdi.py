"""Descriptions of devices for container runtimes (Container Device Interface), one per ResourceClaim.

The kind of a description contains the uid of its claim, and its devices have the UUIDs of GPUs and slices as names: two
claims that share a GPU do not collide, and a reader of a name knows the device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION: Final = "0.6.0"
_VENDOR: Final = "claims.kgwe.nvidia.io"
_UID: Final = re.compile(r"[0-9a-zA-Z][-0-9a-zA-Z]{0,126}")
_CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


@dataclass(frozen=True, slots=True)
class ClaimedGpu:
    """A GPU or slice of a claim."""

    uuid: str
    gpu: int
    minor: int | None = None
    """Of the device node; None: it has none of its own."""


def is_valid_uid(uid: str) -> bool:
    """Whether the uid can be part of a kind and of a file name."""
    return _UID.fullmatch(uid) is not None


def format_name(uid: str, device: str) -> str:
    """Return the qualified name of a device of a claim."""
    return f"{_VENDOR}/claim-{uid}={device}"


def file_name(uid: str) -> str:
    return f"kgwe-claim-{uid}.json"


def describe_claim(uid: str, gpus: Sequence[ClaimedGpu], *, with_env: bool, with_nodes: bool) -> dict[str, Any]:
    """Return the description of a claim.

    `with_env` sets NVIDIA_VISIBLE_DEVICES to all devices of the claim, for the NVIDIA container runtime. `with_nodes`
    adds device nodes of whole GPUs.
    """
    uuids = list(dict.fromkeys(each.uuid for each in gpus))
    shared: dict[str, Any] = {"env": [f"KGWE_CLAIM_DEVICES={','.join(uuids)}"]}
    if with_env:
        shared["env"].append(f"NVIDIA_VISIBLE_DEVICES={','.join(uuids)}")
    if with_nodes:
        shared["deviceNodes"] = [{"path": path} for path in _CONTROL_NODES]
    return {
        "cdiVersion": _VERSION,
        "kind": f"{_VENDOR}/claim-{uid}",
        "containerEdits": shared,
        "devices": [
            {"name": each.uuid, "containerEdits": _edit_for(each, with_nodes=with_nodes)}
            for each in {each.uuid: each for each in gpus}.values()
        ],
    }


def _edit_for(gpu: ClaimedGpu, *, with_nodes: bool) -> dict[str, Any]:
    # A device without edits is invalid, so each has at least a variable.
    edits: dict[str, Any] = {"env": [f"KGWE_GPU_{gpu.gpu}={gpu.uuid}"]}
    if with_nodes and gpu.minor is not None:
        edits["deviceNodes"] = [{"path": f"/dev/nvidia{gpu.minor}"}]
    return edits
