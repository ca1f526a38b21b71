"""Which pod a process belongs to, from /proc/<pid>/cgroup.

The kubelet puts every container under a cgroup that carries the pod's uid, and the runtime adds its own id. How the
path is spelled depends on the cgroup driver and the runtime:

    cgroupfs     /kubepods/burstable/pod<uid>/<id>
    systemd      /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid_>.slice/cri-containerd-<id>.scope
    CRI-O        …-pod<uid_>.slice/crio-<id>.scope                (and crio-conmon-<id>.scope for its monitor)
    Docker       …-pod<uid_>.slice/docker-<id>.scope
    containerd   …/kubepods-burstable-pod<uid_>.slice:cri-containerd:<id>   (systemd names, cgroupfs driver)
    Kata         …/pod<uid>/kata_<id>, …/kata_overhead/…/<id>, …/kubepods-…-pod<uid_>.slice/kata_<id>
    kind         /kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod<uid_>.slice/…, /kubelet/kubepods/pod<uid>/…

A "-" separates in the names of systemd's slices, so those of the uid are written "_" there. The uid of a static pod
is a bare hash. Version 1 has a line per controller, version 2 one line; a process in another cgroup namespace is
shown by a path that begins with "/../". A process that is gone, or in no pod, belongs to none.
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
# A line per controller, a dozen controllers; more than this is not a cgroup file.
_MAX_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class PodCgroup:
    """Where a process runs."""

    pod_uid: str
    """With dashes, as the API spells it; a static pod's is a bare hash."""
    container_id: str = ""
    """Empty: the pod's own cgroup, or a runtime that names its containers otherwise."""


def parse_cgroup(text: str) -> PodCgroup | None:
    """What a process's cgroup file says; None: no pod."""
    for line in text.splitlines():
        # hierarchy:controllers:path; the path may itself have colons.
        path = line.split(":", 2)[-1]
        if match := _last(_POD, path):
            container = _CONTAINER.search(path, match.end())
            return PodCgroup(_uid(match[1]), container[1] if container else "")
    return None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """A cluster inside a cluster's pod: the innermost pod is the process's."""
    return max(pattern.finditer(text), key=lambda match: match.start(), default=None)


def _uid(spelled: str) -> str:
    return spelled.replace("_", "-")


def read_cgroup(pid: int, proc: Path = PROC) -> PodCgroup | None:
    """Where a process runs; None: it is gone, or in no pod."""
    try:
        with (proc / str(pid) / "cgroup").open("rb") as file:
            return parse_cgroup(file.read(_MAX_BYTES).decode(errors="replace"))
    except OSError:
        return None


def map_pods(pids: Iterable[int], proc: Path = PROC) -> dict[int, str]:
    """pid -> uid of its pod, without those that have none."""
    places = {pid: read_cgroup(pid, proc) for pid in set(pids)}
    return {pid: place.pod_uid for pid, place in places.items() if place is not None}
