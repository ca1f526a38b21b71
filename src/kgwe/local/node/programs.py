"""The programs of a real node: found on the machine, or built once into the cache.

kubelet and kube-proxy are of the version of the control plane, containerd is 2.x (CDI and dynamic resource allocation
need it), CoreDNS has only the plugins that the node uses. runc, iptables and the CNI plugins come from the
distribution.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe.errors import Permanent
from kgwe.local.host import paths
from kgwe.local.host.lock import Lock
from kgwe.local.host.progress import Progress, Silent
from kgwe.local.toolchain import binaries, build
from kgwe.local.toolchain.binaries import Tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KUBELET: Final = "kubelet"
KUBE_PROXY: Final = "kube-proxy"
CONTAINERD: Final = "containerd"
SHIM: Final = "containerd-shim-runc-v2"
CTR: Final = "ctr"
COREDNS: Final = "coredns"

_CONTAINERD_VERSION: Final = "v2.2.9"
_CONTAINERD_TAGS: Final = ("netgo", "osusergo", "static_build", "no_btrfs", "no_zfs", "no_devmapper", "no_aufs")


def _make_containerd_tool(name: str) -> Tool:
    return Tool(
        name,
        _CONTAINERD_VERSION,
        "containerd",
        f"github.com/containerd/containerd/v2/cmd/{name}",
        ldflags=(f"-X github.com/containerd/containerd/v2/version.Version={_CONTAINERD_VERSION}",),
        tags=_CONTAINERD_TAGS,
    )


TOOLS: Final[Mapping[str, Tool]] = {
    tool.name: tool
    for tool in (
        binaries.make_kubernetes_tool(KUBELET),
        binaries.make_kubernetes_tool(KUBE_PROXY),
        _make_containerd_tool(CONTAINERD),
        _make_containerd_tool(SHIM),
        _make_containerd_tool(CTR),
        Tool(COREDNS, "v1.15.0", "coredns", "kgwe.local/coredns"),
    )
}

#: program of the distribution -> Debian package
_SYSTEM: Final = {
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "",
    "ip": "iproute2",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
}
_OPTIONAL: Final = ("conntrack",)
_SYSTEM_FOLDERS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_CNI_FOLDERS: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_CNI_PLUGINS: Final = ("ptp", "host-local", "loopback", "portmap")
_LOCK_TIMEOUT_S: Final = 3600.0
#: PATH of the node's processes, after the folder of containerd
SYSTEM_PATH: Final = ":".join(_SYSTEM_FOLDERS)


class Programs:
    """All programs of a node, by name."""

    def __init__(self, found: Mapping[str, Path], cni: Path) -> None:
        self._found = found
        self.cni = cni

    def __getitem__(self, name: str) -> Path:
        return self._found[name]


def find_problems() -> list[str]:
    """Return why this machine cannot run a real node, one sentence each; builds and changes nothing."""
    problems = []
    if os.geteuid() != 0:
        problems.append("root is needed: the kubelet makes mounts, namespaces and cgroups")
    if not Path("/sys/fs/cgroup").is_dir() or not os.access("/sys/fs/cgroup", os.W_OK):
        problems.append("/sys/fs/cgroup is not mounted or not writable: containers need cgroups")
    missing = {name for name in _SYSTEM if name not in _OPTIONAL and find_system_program(name) is None}
    packages = sorted({_SYSTEM[name] for name in missing})
    if find_cni_folder() is None:
        missing |= {f"CNI plugin {name}" for name in _CNI_PLUGINS}
        packages.append("containernetworking-plugins")
    if missing:
        problems.append(
            f"not found: {', '.join(sorted(missing))}. On Debian and Ubuntu: `apt-get install {' '.join(packages)}`"
        )
    if shutil.which("cc") is None:
        problems.append("a C compiler is needed for the simulated GPU driver; install gcc or clang")
    return problems


def find_system_program(name: str) -> Path | None:
    """Return a program of the distribution; users often have no sbin in PATH."""
    found = shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)
    return Path(found) if found else None


def find_cni_folder() -> Path | None:
    return next((each for each in _CNI_FOLDERS if all((each / name).exists() for name in _CNI_PLUGINS)), None)


def list_missing() -> Sequence[Tool]:
    """Return the programs that `ensure_programs` would build."""
    return [tool for tool in TOOLS.values() if not binaries.cache_path(tool).is_file()]


def ensure_programs(progress: Progress | None = None) -> Programs:
    """Return all programs; build those that are not in the cache. Raise Permanent if the machine cannot run a node."""
    if problems := find_problems():
        raise Permanent("this machine cannot run a real node:\n" + "\n".join(f"  - {each}" for each in problems))
    progress = progress or Silent()
    if list_missing():
        with Lock(paths.cache_root() / "build.lock", purpose="building the programs of a node").hold(
            timeout_s=_LOCK_TIMEOUT_S, waiting=progress.note
        ):
            build.build(list_missing(), progress)
    found = {name: binaries.cache_path(tool) for name, tool in TOOLS.items()}
    found |= {name: path for name in _SYSTEM if (path := find_system_program(name)) is not None}
    cni = find_cni_folder()
    if cni is None:
        raise Permanent("the CNI plugins were removed meanwhile")
    return Programs(found, cni)
