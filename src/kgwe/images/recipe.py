"""What the images contain. The OCI builder and the Dockerfile are both made from these recipes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kgwe import errors

#: Debian's release, and the Python that it ships. Wheels are chosen for this Python.
DEBIAN_SUITE: Final = "bookworm"
PYTHON: Final = (3, 11)
#: Where KGWE and its dependencies are installed.
HOME: Final = "/opt/kgwe"
USER_ID: Final = 65532
ARCHITECTURES: Final = ("amd64", "arm64")
#: Platforms of wheels, the newest first. Debian 12 has glibc 2.36.
WHEEL_PLATFORMS: Final = {
    "amd64": ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
    "arm64": ("manylinux_2_34_aarch64", "manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"),
}

# libstdc++6: extension modules of wheels, NumPy among them.
_PYTHON_PACKAGES: Final = (
    "ca-certificates",
    "libpython3-stdlib",
    "libstdc++6",
    "media-types",
    "python3-minimal",
    "tzdata",
    "zlib1g",
)
# Only maintainer scripts need these, and an image runs none. Nothing that KGWE imports links to them.
_SCRIPT_TOOLS: Final = ("debconf", "dpkg", "tar", "openssl", "libmd0", "libacl1", "libselinux1", "libpcre2-8-0")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image."""

    name: str
    title: str
    extras: tuple[str, ...]
    """Extras of the package, as in `pip install kgwe[extra]`."""
    requirements: str
    """The file with the pinned versions of these extras."""
    debian_packages: tuple[str, ...]
    left_out: tuple[str, ...] = _SCRIPT_TOOLS
    """Dependencies of the Debian packages that the image does not need."""
    user_id: int = USER_ID
    command: tuple[str, ...] = ("--help",)

    @property
    def entrypoint(self) -> tuple[str, ...]:
        return (f"{HOME}/bin/kgwe",)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{HOME}/bin:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{HOME}/lib",
            "PYTHONUNBUFFERED": "1",
            # The image is complete and read-only: no bytecode is written at run time.
            "PYTHONDONTWRITEBYTECODE": "1",
            "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
        }


RECIPES: Final = (
    Recipe(
        "kgwe",
        "KGWE: scheduler, MIG controller, optimizer, cost engine and the other processes of the control plane",
        extras=("all",),
        requirements="requirements/all.txt",
        debian_packages=(*_PYTHON_PACKAGES, "libgomp1"),  # libgomp1: LightGBM
    ),
    Recipe(
        "kgwe-agent",
        "KGWE: the agent of a GPU node",
        extras=("agent",),
        requirements="requirements/agent.txt",
        debian_packages=_PYTHON_PACKAGES,
        user_id=0,  # it writes to the kubelet's sockets and to /sys
        command=("agent",),
    ),
)


def find_recipe(name: str) -> Recipe:
    """Return the recipe; Permanent with the names that exist."""
    for recipe in RECIPES:
        if recipe.name == name:
            return recipe
    raise errors.Permanent(f"no image {name!r}; images: {', '.join(recipe.name for recipe in RECIPES)}")
