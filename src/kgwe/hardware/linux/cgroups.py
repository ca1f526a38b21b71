"""Finds the pod of a process, from /proc/<pid>/cgroup.

The kubelet puts each container in a cgroup with the pod's uid, and the runtime adds its own id. The form of the path
depends on the cgroup driver and the runtime:

    cgroupfs     /kubepods/burstable/pod<uid>/<id>
    systemd      /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid_>.slice/cri-containerd-<id>.scope
    CRI-O        …-pod<uid_>.slice/crio-<id>.scope                (and crio-conmon-<id>.scope for its monitor)
    Docker       …-pod<uid_>.slice/docker-<id>.scope
    containerd   …/kubepods-burstable-pod<uid_>.slice:cri-containerd:<id>   (systemd names, cgroupfs driver)
    Kata         …/pod<uid>/kata_<id>, …/kata_overhead/…/<id>, …/kubepods-…-pod<uid_>.slice/kata_<id>
    kind         /kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod<uid_>.slice/…, /kubelet/kubepods/pod<uid>/…

"-" is the separator in systemd's slice names, so the uid has "_" instead there. The uid of a static pod is a bare
hash. Version 1 has a line per controller, version 2 one line. The path of a process in another cgroup namespace
begins with "/../". A process that does not exist, or is in no pod, has no pod.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

PROC: Final = Path("/proc")

_HEX: Final = "[0-9a-f]"
_UID: Final = f"{_HEX}{{8}}[-_]{_HEX}{{4}}[-_]{_HEX}{{4}}[-_]{_HEX}{{4}}[-_]{_HEX}{{12}}|{_HEX}{{32}}"
_POD: Final = re.compile(rf"(?:^|[/-])pod({_UID})(?:\.slice)?(?=[/:]|$)")
_CONTAINER: Final = re.compile(rf"(?:^|[/:_-])({_HEX}{{64}})(?:\.scope)?(?=[/:]|$)")
# A line per controller, a dozen controllers; a longer file is no cgroup file.
_MAX_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class PodCgroup:
    """The pod and container of a process."""

    pod_uid: str
    """With dashes, as in the API; for a static pod a bare hash."""
    container_id: str = ""
    """Empty for the pod's own cgroup, or for a runtime with other container names."""


def parse_cgroup(text: str) -> PodCgroup | None:
    """Parse a process's cgroup file; None if it is in no pod."""
    for line in text.splitlines():
        # hierarchy:controllers:path; the path may contain colons.
        path = line.split(":", 2)[-1]
        if match := _find_last(_POD, path):
            container = _CONTAINER.search(path, match.end())
            return PodCgroup(_parse_uid(match[1]), container[1] if container else "")
    return None


def _find_last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match: in a cluster inside a pod, the innermost pod counts."""
    return max(pattern.finditer(text), key=lambda match: match.start(), default=None)


def _parse_uid(spelled: str) -> str:
    return spelled.replace("_", "-")


def read_cgroup(pid: int, proc: Path = PROC) -> PodCgroup | None:
    """Return the pod of a process; None if the process does not exist or is in no pod."""
    try:
        with (proc / str(pid) / "cgroup").open("rb") as file:
            return parse_cgroup(file.read(_MAX_BYTES).decode(errors="replace"))
    except OSError:
        return None


def map_pods(pids: Iterable[int], proc: Path = PROC) -> dict[int, str]:
    """Return pid -> uid of its pod, without processes outside pods."""
    places = {pid: read_cgroup(pid, proc) for pid in set(pids)}
    return {pid: place.pod_uid for pid, place in places.items() if place is not None}
