"""Names of workloads and pods on the command line: NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kgwe import errors
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from kgwe.apps.whatif.subject import Kind

_WORKLOADS = (resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD)
# Prefix -> kind and API group; kubectl knows these names as well.
_KINDS: dict[str, tuple[Kind, str]] = {
    "pod": ("pod", ""),
    "pods": ("pod", ""),
    "workload": ("workload", ""),
    "gpuworkload": ("workload", ""),
    "gpuworkloads": ("workload", ""),
    **{f"{each.kind.lower()}.{each.group}": ("workload", each.group) for each in _WORKLOADS},
    **{each.full_name: ("workload", each.group) for each in _WORKLOADS},
    **{short: ("workload", each.group) for each in _WORKLOADS for short in each.type.definition.short_names},
}


class SubjectName(NamedTuple):
    """A workload or pod as the user named it."""

    name: str
    #: None: the namespace of the kubeconfig's context
    namespace: str | None = None
    kind: Kind | None = None
    #: API group of a workload; empty: either group
    group: str = ""


def parse_name(text: str, namespace: str | None = None, kind: Kind | None = None) -> SubjectName:
    """Return what `text` names. A first part that is a known kind is the kind; otherwise it is the namespace.

    `namespace` and `kind` are the options of the command. Permanent if the text is malformed or contradicts them.
    """
    group, rest = "", text
    prefix, slash, tail = text.partition("/")
    if slash and prefix.lower() in _KINDS:
        (named_kind, group), rest = _KINDS[prefix.lower()], tail
        if kind not in (None, named_kind):
            raise errors.Permanent(f"{text!r} names a {named_kind}, and --kind says {kind}: leave one of them out")
        kind = named_kind
    where, slash, name = rest.rpartition("/")
    if not name or "/" in where or (slash and not where):
        problem = "" if name else "name is empty: "
        raise errors.Permanent(f"{text!r}: {problem}expected NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME")
    if where and namespace not in (None, where):
        raise errors.Permanent(f"{text!r} names namespace {where}, and -n says {namespace}: leave one of them out")
    return SubjectName(name, where or namespace, kind, group)
