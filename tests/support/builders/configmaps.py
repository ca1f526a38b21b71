"""ConfigMaps, which every cluster has and nobody acts on, in both encodings."""

from __future__ import annotations

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool

from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - msgspec resolves the annotation at run time
from kgwe.kube.api.resources import Resource
from kgwe.proto import kubernetes_pb2


class ConfigMap(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}


def _message() -> str:
    file = descriptor_pb2.FileDescriptorProto(name="kgwe/tests/configmap.proto", package="kgwe.tests", syntax="proto3")
    file.dependency.append(kubernetes_pb2.DESCRIPTOR.name)
    made = file.message_type.add(name="ConfigMap")
    meta, data = made.field.add(name="metadata", number=1), made.field.add(name="data", number=2)
    meta.type, meta.type_name, meta.label = meta.TYPE_MESSAGE, ".kgwe.kubernetes.ObjectMeta", meta.LABEL_OPTIONAL
    data.type, data.type_name, data.label = data.TYPE_MESSAGE, ".kgwe.tests.ConfigMap.DataEntry", data.LABEL_REPEATED
    entry = made.nested_type.add(name="DataEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), start=1):
        field = entry.field.add(name=name, number=number)
        field.type, field.label = field.TYPE_STRING, field.LABEL_OPTIONAL
    descriptor_pool.Default().Add(file)
    return "kgwe.tests.ConfigMap"


IN_JSON = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=ConfigMap)
IN_PROTOBUF = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=ConfigMap, message=_message())
