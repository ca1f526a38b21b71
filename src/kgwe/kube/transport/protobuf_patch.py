"""Merge patches (RFC 7386) on messages.

Fields that `proto/kubernetes.proto` does not name stay as they are: protobuf keeps what it does not know. A patch that
names one of those cannot be carried out here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf import message_factory

from kgwe import errors
from kgwe.kube.transport.encoding import MAGIC
from kgwe.proto import kubernetes_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.api.resources import Resource


def merge_patch(resource: Resource[Any], raw: bytes, patch: Mapping[str, Any]) -> bytes:
    """The object with the patch carried out, as it is written; Permanent when it cannot be."""
    made = message_factory.GetMessageClass(kubernetes_pb2.DESCRIPTOR.pool.FindMessageTypeByName(resource.message))
    obj: Any = made.FromString(raw)
    try:
        _merge(obj, patch)
    except (LookupError, TypeError, ValueError, AttributeError) as exc:
        raise errors.Permanent(f"no patch for a {resource.kind} in protobuf: {exc!r}") from exc
    # Half of the bytes of a pod; the API server takes none for those it has.
    obj.metadata.ClearField("managedFields")
    kind = kubernetes_pb2.TypeMeta(apiVersion=resource.api_version, kind=resource.kind)
    return MAGIC + kubernetes_pb2.Envelope(typeMeta=kind, raw=obj.SerializeToString()).SerializeToString()


def _merge(message: Any, patch: Mapping[str, Any]) -> None:
    for name, value in patch.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if value is None:
            message.ClearField(name)
        elif field.message_type is None and not field.is_repeated:
            setattr(message, name, value)
        else:
            _merge_many(getattr(message, name), field, value)


def _merge_many(at: Any, field: Any, value: Any) -> None:
    """Into a map, a list or a message."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        for key, each in value.items():
            if each is None:
                at.pop(key, None)
            else:
                at[key] = each
    elif field.is_repeated:
        del at[:]  # a list is replaced as a whole
        for each in value:
            if field.message_type is None:
                at.append(each)
            else:
                _merge(at.add(), each)
    else:
        at.SetInParent()
        _merge(at, value)
