"""Which device and pod a series is about, by its labels. Pure.

Exporters and Prometheus write the same thing in several dialects. Prometheus renames a label of the exporter to
`exported_NAME` if the target has a label of that name; then `pod` is the pod of the exporter itself. Names of pods say
nothing: any user may call a pod dcgm-exporter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.model.usage.window import Device, DeviceKey, PodKey

if TYPE_CHECKING:
    from collections.abc import Mapping

_UUID: Final = ("UUID", "gpu_uuid")
_INSTANCE: Final = ("GPU_I_ID", "gpu_instance_id")
_PROFILE: Final = ("GPU_I_PROFILE", "profile")
_MODEL: Final = ("modelName", "model")
#: Labels that name the node, best first.
NODE_LABELS: Final = ("Hostname", "node", "instance")

#: All labels that are read; queries group by them.
LABELS: Final = (
    *_UUID,
    *_INSTANCE,
    *_PROFILE,
    *_MODEL,
    *NODE_LABELS,
    *("pod", "exported_pod", "namespace", "exported_namespace", "container", "exported_container", "pod_uid"),
)

_PORT: Final = re.compile(r":\d+$", re.ASCII)
_MAX_LABEL: Final = 512


@dataclass(frozen=True, slots=True)
class Dialect:
    """How labels are read. `exported` says that `pod` is always the exporter's own."""

    node_labels: tuple[str, ...] = NODE_LABELS
    exported: bool = False


PLAIN: Final = Dialect()


def uses_exported_labels(labels: Mapping[str, str]) -> bool:
    """Whether a series has the label `exported_pod`, so that `pod` of all series of its source is the exporter's."""
    return bool(labels.get("exported_pod"))


def identify_device(labels: Mapping[str, str], dialect: Dialect = PLAIN) -> Device | None:
    """Return the device and its holder; None if the labels do not name a GPU and its node."""
    uuid, node = _first(labels, _UUID), _find_node(labels, dialect.node_labels)
    if not uuid or not node or len(uuid) > _MAX_LABEL or len(node) > _MAX_LABEL:
        return None
    instance = _first(labels, _INSTANCE)
    pod, container = _find_holder(labels, dialect)
    return Device(
        DeviceKey(node, uuid, instance, pod, container),
        model=_first(labels, _MODEL),
        mig_profile=_first(labels, _PROFILE) if instance else "",
    )


def _find_node(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if value := labels.get(name):
            return _PORT.sub("", value).strip("[]") if name == "instance" else value
    return ""


def _find_holder(labels: Mapping[str, str], dialect: Dialect) -> tuple[PodKey | None, str]:
    if exported := labels.get("exported_pod"):
        namespace, container = labels.get("exported_namespace"), labels.get("exported_container")
        if container is None and namespace is None:
            container = labels.get("container")  # otherwise it is the container of the exporter
        return PodKey(namespace or labels.get("namespace", ""), exported), container or ""
    pod = labels.get("pod", "")
    if not pod and (uid := labels.get("pod_uid")):
        return PodKey("", uid), ""  # the agent knows its processes, but not its name
    if dialect.exported or not pod:
        return None, ""
    return PodKey(labels.get("namespace", ""), pod), labels.get("container", "")


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if value := labels.get(name):
            return value
    return ""
