"""What an owner allows KGWE to do with a GPU request, as annotations on the workload or pod say.

    optimize: "false"            nothing is changed; it wins over everything else
    sharing: disabled            the same for sharing: whole GPUs only
    sharing-mode: exclusive      whole GPUs only; mig: slices only; mps or timeslicing: shares only
    mig-profile: 1g.10gb         slices of this profile only
    mps-enabled: "true"          shares only

Each name has the prefix `kgwe.nvidia.io/`, or `gpu-autoscaler.io/`, which counts where the first is absent. A value
that cannot be read allows nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIXES: Final = ("kgwe.nvidia.io/", "gpu-autoscaler.io/")
_MODES: Final[Mapping[str, tuple[bool, bool]]] = {
    "exclusive": (False, False),
    "mig": (True, False),
    "mps": (False, True),
    "timeslicing": (False, True),
}
_YES: Final = ("true", "enabled", "yes")
_NO: Final = ("false", "disabled", "no")


@dataclass(frozen=True, slots=True)
class Preferences:
    """Which smaller requests the owner allows."""

    slices: bool = True
    shares: bool = True
    #: the only profile that is allowed; empty: any
    profile: str = ""
    #: why less is allowed than anything; empty: everything is allowed
    why: str = ""

    def find_objection(self, profile: str) -> str:
        """Why one slice of this profile (empty: one share) is not allowed; empty: it is."""
        if not (self.slices if profile else self.shares):
            return self.why
        return self.why if profile and self.profile and self.profile != profile else ""


ANYTHING: Final = Preferences()


def read_preferences(*sources: Mapping[str, str]) -> Preferences:
    """Return what the annotations allow. An annotation in an earlier mapping wins over the same one in a later."""
    if (text := _find("optimize", sources)) is not None and text.lower() not in _YES:
        return _nothing(f"annotation optimize is {text[:40]!r}")
    if (text := _find("sharing", sources)) is not None and text.lower() not in _YES:
        return _nothing(f"annotation sharing is {text[:40]!r}")
    slices, shares, why = True, True, ""
    if (text := _find("sharing-mode", sources)) is not None:
        slices, shares = _MODES.get(text.lower(), (False, False))
        why = f"annotation sharing-mode is {text[:40]!r}"
    if (text := _find("mps-enabled", sources)) is not None and text.lower() not in _NO:
        slices, why = False, f"annotation mps-enabled is {text[:40]!r}"
    profile = _find("mig-profile", sources) or ""
    if profile:
        shares, why = False, f"annotation mig-profile is {profile[:40]!r}"
    return Preferences(slices, shares, profile, why)


def _nothing(why: str) -> Preferences:
    return Preferences(slices=False, shares=False, why=why)


def _find(name: str, sources: tuple[Mapping[str, str], ...]) -> str | None:
    for found in sources:
        for prefix in PREFIXES:
            if (text := found.get(f"{prefix}{name}")) is not None:
                return str(text)
    return None
