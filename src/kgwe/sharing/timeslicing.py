"""The sharing configuration of NVIDIA's device plugin, as text for its ConfigMap.

    version: v1
    sharing:
      timeSlicing:                        (or mps: processes side by side, an equal part of the memory each)
        failRequestsGreaterThanOne: true
        resources:
        - name: nvidia.com/gpu
          replicas: 4

The plugin then offers every GPU as so many shares. A share is a turn, not a part: with time-slicing nothing limits the
memory of a pod. Two shares are not twice as much, so by default a pod that requests two is refused.
The plugin reads but ignores `rename` and `devices`, takes `mps` where both are given, and refuses MPS on MIG; here
all of these are errors, because a setting without effect is worse than none.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from kgwe import errors, yaml_text
from kgwe.model.units import amounts
from kgwe.sharing.mps import HARDWARE_CLIENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = "v1"
_PREFIX: Final = "nvidia.com/"
_SHARED: Final = ".shared"
_MAX_NAME: Final = 63
_FEWEST: Final = 2
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_MIG_STRATEGIES: Final = ("none", "single", "mixed")


class Method(enum.StrEnum):
    """The plugin's keys."""

    TIME_SLICING = "timeSlicing"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the devices of a node are offered."""

    replicas: tuple[tuple[str, int], ...]
    """(resource, shares of each device)."""
    method: Method = Method.TIME_SLICING
    renames: bool = False
    """Offer them as `<resource>.shared`, so that no pod gets a shared device by accident."""
    refuses_many: bool = True
    """Refuse pods that request more than one share."""
    mig_strategy: str = ""
    """none, single or mixed; empty: what the plugin was started with."""


def offered_resources(sharing: Sharing, devices: Mapping[str, int]) -> dict[str, int]:
    """What a node with these devices (resource -> count) will offer."""
    pieces = {full_name(name): count for name, count in sharing.replicas}
    found = {}
    for name, count in devices.items():
        shared = pieces.get(name, 1)
        found[name + (_SHARED if sharing.renames and name in pieces else "")] = count * shared
    return found


def full_name(name: str) -> str:
    """The resource name with the plugin's prefix."""
    return name if name.startswith(_PREFIX) else _PREFIX + name


def find_problems(sharing: Sharing) -> list[str]:
    """Everything the plugin would refuse or silently not do."""
    found = [] if sharing.replicas else ["no resources: name at least one, such as nvidia.com/gpu"]
    names = [full_name(name) for name, _ in sharing.replicas]
    found += [f"{name} is named twice" for name in sorted({name for name in names if names.count(name) > 1})]
    for name, (_, count) in zip(names, sharing.replicas, strict=True):
        found += _resource_problems(sharing, name, count)
    if sharing.mig_strategy and sharing.mig_strategy not in _MIG_STRATEGIES:
        found.append(f"migStrategy {sharing.mig_strategy!r} is none of {', '.join(_MIG_STRATEGIES)}")
    return found


def _resource_problems(sharing: Sharing, name: str, count: int) -> list[str]:
    found = []
    short = name.removeprefix(_PREFIX)
    if not _NAME.fullmatch(short) or len(name) > _MAX_NAME:
        found.append(f"{name!r} is not the name of a resource")
    if name.endswith(_SHARED):
        found.append(f"{name}: name the devices as they are without sharing; renaming adds {_SHARED}")
    if count < _FEWEST:
        found.append(f"{name}: {count} replicas; sharing begins with {_FEWEST}")
    if sharing.method is Method.MPS:
        if count > HARDWARE_CLIENTS:
            found.append(f"{name}: {count} replicas; an MPS server has at most {HARDWARE_CLIENTS} clients")
        if short.startswith("mig-") or sharing.mig_strategy == "single":
            found.append(f"{name}: the plugin does not do MPS on MIG; KGWE's own daemons do (docs/sharing.md)")
    return found


def build_document(sharing: Sharing) -> dict[str, Any]:
    """The configuration, checked."""
    if wrong := find_problems(sharing):
        raise errors.Permanent("; ".join(wrong))
    replicated: dict[str, Any] = {}
    if sharing.renames:
        replicated["renameByDefault"] = True
    replicated["failRequestsGreaterThanOne"] = sharing.refuses_many
    replicated["resources"] = [{"name": full_name(name), "replicas": count} for name, count in sharing.replicas]
    flags = {"flags": {"migStrategy": sharing.mig_strategy}} if sharing.mig_strategy else {}
    return {"version": VERSION, **flags, "sharing": {str(sharing.method): replicated}}


def render_config(sharing: Sharing) -> str:
    return str(yaml.safe_dump(build_document(sharing), sort_keys=False))


def build_config_map(configs: Mapping[str, Sharing], *, name: str, namespace: str) -> dict[str, Any]:
    """A ConfigMap with one configuration per key; a node chooses by its label nvidia.com/device-plugin.config."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": {key: render_config(sharing) for key, sharing in configs.items()},
    }


# --- reading --------------------------------------------------------------------------------------------

_TOP: Final = frozenset({"version", "flags", "resources", "sharing", "imex"})
_REPLICATED: Final = frozenset({"renameByDefault", "failRequestsGreaterThanOne", "resources"})
_RESOURCE: Final = frozenset({"name", "rename", "devices", "replicas"})


def parse_config(source: str) -> Sharing:
    """The configuration as the plugin would read it; Permanent with all problems if it is invalid."""
    try:
        tree = yaml_text.parse_yaml(source)
    except yaml.YAMLError as exc:
        raise errors.Permanent(f"this is not YAML: {exc}") from exc
    _reject_unknown(tree, _TOP, "the configuration")
    if tree.get("version", VERSION) != VERSION:
        raise errors.Permanent(f"version {tree['version']!r}: the plugin reads {VERSION}")
    sharing = tree.get("sharing")
    _reject_unknown(sharing, frozenset(Method), "sharing")
    given = [method for method in Method if method in sharing]
    if len(given) != 1:
        raise errors.Permanent("sharing: give timeSlicing or mps; with both the plugin takes mps and says nothing")
    read = _parse_replicated(sharing[given[0]], given[0], tree.get("flags") or {})
    if wrong := find_problems(read):
        raise errors.Permanent("; ".join(wrong))
    return read


def _parse_replicated(tree: Any, method: Method, flags: Mapping[str, Any]) -> Sharing:
    where = f"sharing.{method}"
    _reject_unknown(tree, _REPLICATED, where)
    resources = tree.get("resources")
    if not isinstance(resources, list):
        raise errors.Permanent(f"{where}.resources: a list of resources is needed")
    for key in ("renameByDefault", "failRequestsGreaterThanOne"):
        if not isinstance(tree.get(key, False), bool):
            raise errors.Permanent(f"{where}.{key}: true or false, not {tree[key]!r}")
    return Sharing(
        tuple(_parse_resource(each, f"{where}.resources[{i}]") for i, each in enumerate(resources)),
        method,
        renames=tree.get("renameByDefault", False),
        refuses_many=tree.get("failRequestsGreaterThanOne", method is Method.MPS),
        mig_strategy=str(flags.get("migStrategy", "")),
    )


def _parse_resource(tree: Any, where: str) -> tuple[str, int]:
    _reject_unknown(tree, _RESOURCE, where)
    for key in ("rename", "devices"):
        if tree.get(key, "all") != "all":
            raise errors.Permanent(f"{where}.{key}: the plugin reads this and ignores it")
    name, replicas = tree.get("name"), tree.get("replicas")
    if not isinstance(name, str) or isinstance(replicas, bool) or not isinstance(replicas, int):
        raise errors.Permanent(
            f"{where}: a name and a whole number of replicas are needed, such as {amounts.GPU} and 4"
        )
    return name, replicas


def _reject_unknown(tree: Any, known: frozenset[str], where: str) -> None:
    if not isinstance(tree, dict):
        raise errors.Permanent(f"{where}: a mapping with {', '.join(sorted(known))} is needed")
    if unknown := [str(key) for key in tree if key not in known]:
        raise errors.Permanent(
            f"{where}: {', '.join(sorted(unknown))} is not known; there are {', '.join(sorted(known))}"
        )
