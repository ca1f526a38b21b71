"""The base of an image: Debian packages, resolved and downloaded by apt for any architecture, and unpacked.

apt works in a directory of its own with an empty list of installed packages, so the machine stays as it is, no root is
needed, and packages for other architectures can be had. It uses the machine's own package sources and keys. No
maintainer script runs: what KGWE needs of their effects is made in `_finish`.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.images import recipe as recipes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kgwe.images.recipe import Recipe

_TIMEOUT_S: Final = 600.0
# Parts of packages that a container does not need.
_UNUSED: Final = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bug",
    "usr/share/debconf",
    "usr/share/doc-base",
    "usr/share/python3/debpython",
    "usr/share/apps",
    "usr/share/binfmts",
    "usr/sbin",
    "usr/lib/systemd",
    "usr/lib/valgrind",
    "etc/cron.daily",
    "etc/init.d",
    "etc/default",
    "etc/alternatives",
    "etc/kernel",
    "lib/systemd",
)


def build_base(recipe: Recipe, architecture: str, root: Path, work: Path) -> list[str]:
    """Unpack the packages of the recipe into `root`; returns their names with versions, sorted."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise errors.Permanent(
            "an image is built from Debian packages: apt-get and dpkg-deb are needed. Use a Debian or Ubuntu machine, "
            "or build images/Dockerfile with another tool"
        )
    archives = _download(recipe.debian_packages, architecture, work)
    found = []
    for archive in archives:
        name, version = _run(["dpkg-deb", "--show", "--showformat=${Package} ${Version}", str(archive)]).split()
        if name not in recipe.left_out:
            _run(["dpkg-deb", "--extract", str(archive), str(root)])
            found.append(f"{name}={version}")
    _finish(root)
    return sorted(found)


def _download(packages: Sequence[str], architecture: str, work: Path) -> list[Path]:
    state, cache, status = work / "state", work / "cache", work / "status"
    for folder in (state / "lists/partial", cache / "archives/partial"):
        folder.mkdir(parents=True, exist_ok=True)
    status.touch()
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures::": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",
        "Dir::Cache": str(cache),
        "Dir::State": str(state),
        "Dir::State::status": str(status),
        # Configuration of the machine may delete archives as soon as they are fetched.
        "Binary::apt::APT::Keep-Downloaded-Packages": "true",
        "APT::Keep-Downloaded-Packages": "true",
        "DPkg::Post-Invoke": "",
        "APT::Update::Post-Invoke": "",
    }
    apt = ["apt-get", "--quiet", "--quiet", *(f"--option={name}={value}" for name, value in options.items())]
    _run([*apt, "update"])
    _run([*apt, "--yes", "--download-only", "install", *packages])
    found = sorted((cache / "archives").glob("*.deb"))
    if not found:
        raise errors.Permanent(f"apt downloaded no packages for {architecture}; see {work}")
    return found


def _finish(root: Path) -> None:
    """Remove what no container uses, and make what maintainer scripts would have made."""
    _link_merged_directories(root)
    for name in _UNUSED:
        shutil.rmtree(root / name, ignore_errors=True)
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(path.read_text() for path in certificates))
    user = recipes.USER_ID
    (root / "etc/passwd").write_text(
        f"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{user}:{user}:nonroot:/tmp:/sbin/nologin\n"
    )
    (root / "etc/group").write_text(f"root:x:0:\nnonroot:x:{user}:\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    for name in ("tmp", "var/lib/kgwe", "proc", "sys", "dev"):
        (root / name).mkdir(parents=True, exist_ok=True)
    python = f"python{recipes.PYTHON[0]}.{recipes.PYTHON[1]}"
    if not (root / "usr/bin" / python).exists():
        raise errors.Permanent(
            f"the Debian packages of this machine have no {python}: its release is too new or too old"
        )


def _link_merged_directories(root: Path) -> None:
    """Merge /bin, /lib and the like into /usr: newer releases expect it, and packages still use both names."""
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        old, new = root / name, root / "usr" / name
        if old.is_symlink() or not old.is_dir():
            continue
        new.mkdir(parents=True, exist_ok=True)
        shutil.copytree(old, new, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(old)
        old.symlink_to(f"usr/{name}")


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise errors.Permanent(f"{command[0]} failed: {exc}") from exc
    if done.returncode:
        raise errors.Permanent(f"{command[0]} failed: {done.stderr.strip()[-2000:] or done.stdout.strip()[-2000:]}")
    return done.stdout
