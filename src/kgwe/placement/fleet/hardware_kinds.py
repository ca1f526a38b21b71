"""Nodes by hardware: one kind is one CPU architecture and one GPU model.

An image is most often built for one CPU architecture, and pods that work together are as fast as their slowest GPU. So
the pods of one workload run on nodes of one kind, unless it says otherwise (`Hardware`):

    Same         one kind, or the work waits
    PreferSame   one kind if any holds it; else several models of GPU, still of one CPU architecture. Pods that do not
                 talk (Pack, Distributed) use several models at once
    Any          whatever there is

A role that names its CPU architecture itself, by node selector or required affinity, is left alone in that. So is a
role that names a GPU model, and one without GPUs, in the model. Roles that no single architecture could ever hold
together are on several.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.fleet.node import Gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.placement.fleet.constraints import Constraints
    from kgwe.placement.fleet.node import Node, Request

    Mask = NDArray[np.bool_]

ARCH_LABEL: Final = "kubernetes.io/arch"
_ARCH_LABELS: Final = frozenset({ARCH_LABEL, "beta.kubernetes.io/arch"})
_NO_GPUS: Final = Gpus()


@dataclass(frozen=True, slots=True, order=True)
class HardwareKind:
    """What the nodes of a gang have in common."""

    arch: str
    #: empty: any
    model: str = ""


@functools.lru_cache(4096)
def names_arch(constraints: Constraints) -> bool:
    """Whether a pod says itself which CPU architectures it runs on."""
    terms = constraints.affinity or ()
    return any(key in _ARCH_LABELS for key, _ in constraints.selector) or any(
        line.key in _ARCH_LABELS for term in terms for line in term
    )


def names_model(request: Request) -> bool:
    """Whether the models of its nodes are none of the gang's business: it names one, or has no GPUs."""
    return bool(request.model) or request.gpus == _NO_GPUS


class HardwareKinds:
    """The kinds of a list of nodes."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        found = [HardwareKind(node.labels.get(ARCH_LABEL, ""), node.shape.model) for node in nodes]
        self.all = tuple(sorted(set(found)))
        codes = {kind: code for code, kind in enumerate(self.all)}
        #: node -> number of its kind
        self.of_node: NDArray[np.int64] = np.array([codes[kind] for kind in found], np.int64)
        self.archs = tuple(sorted({kind.arch for kind in self.all}))
        archs = np.array([self.archs.index(kind.arch) for kind in self.all], np.int64)
        #: node -> number of its CPU architecture
        self.arch_of_node: NDArray[np.int64] = archs[self.of_node]

    def mask_nodes(self, kind: HardwareKind) -> Mask:
        """Nodes of the kind."""
        wanted = [each.arch == kind.arch and kind.model in ("", each.model) for each in self.all]
        found: Mask = np.array(wanted, np.bool_)[self.of_node]
        return found

    def mask_allowed(self, kind: HardwareKind, request: Request) -> Mask | None:
        """Nodes that a role of a gang on this kind may use; None: all."""
        by_model = kind.model if not names_model(request) else ""
        if names_arch(request.constraints):
            if not by_model:
                return None
            models: Mask = np.array([each.model == by_model for each in self.all], np.bool_)
            return models[self.of_node]
        return self.mask_nodes(HardwareKind(kind.arch, by_model))
