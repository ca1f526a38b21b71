"""Metadata shared by every API object, as slim structs.

A slim struct names only the fields KGWE reads; msgspec skips the rest without building it, which is what
makes listing 10,000 pods cheap. The garbage collector does not track them (`gc=False`): frozen structs decoded from
JSON cannot form cycles, and to traverse them took longer than to decode them. Names are
those of the manifest. Unknown fields are tolerated on purpose: newer API servers add some.
"""

from __future__ import annotations

import msgspec


class OwnerReference(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    blockOwnerDeletion: bool = False


class ObjectMeta(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    generation: int = 0
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    ownerReferences: tuple[OwnerReference, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages the object; the API server allows at most one."""
        for owner in self.ownerReferences:
            if owner.controller:
                return owner
        return None

    def is_like(self, other: ObjectMeta) -> bool:
        """Whether the same object says the same: versions and finalizers may differ."""
        return (
            self.uid == other.uid
            and self.annotations == other.annotations
            and self.labels == other.labels
            and self.ownerReferences == other.ownerReferences
            and self.deletionTimestamp == other.deletionTimestamp
        )

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` for cluster-scoped objects: unique within one resource."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Condition(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A standard Kubernetes condition, for our own kinds and for reading others'."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    lastTransitionTime: str | None = None
    observedGeneration: int = 0
