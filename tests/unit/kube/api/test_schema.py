"""From types to the schema of a CustomResourceDefinition, and what every kind must declare."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import msgspec
import pytest

from kgwe.kube.api import schema
from kgwe.kube.api.kgwe import gpu_requirements, gpuworkload, gpuworkload_status, mig, warp
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.api.schema import (
    ApiStruct,
    Column,
    CustomObject,
    Definition,
    Rule,
    Timestamp,
    about,
    duration,
    match_pattern,
)
from kgwe.kube.crd import definitions
from kgwe.model.gpu import mig as geometry

A_DEFINITION = Definition("example.com", "v1", "Thing", "things", namespaced=True)


def of_spec(spec: type) -> dict[str, Any]:
    """The schema of `spec` inside an otherwise empty kind."""
    kind = msgspec.defstruct(
        "Thing", [("spec", spec)], bases=(CustomObject,), namespace={"definition": A_DEFINITION}, frozen=True
    )
    assert issubclass(kind, CustomObject)
    found: dict[str, Any] = schema.structural(kind)["properties"]["spec"]
    return found


# --- conversion ----------------------------------------------------------------------------------------


class Inner(ApiStruct, frozen=True):
    size: Annotated[int, about("Size.", ge=1)] = 2
    name: Annotated[str, about("Name.")] = ""


class Sample(ApiStruct, frozen=True):
    """What it is.

    What only developers need to know.
    """

    rules: ClassVar = (Rule("self.must > 0.0", "raise must", field=".must"),)

    must: Annotated[float, about("Needed.", gt=0, le=9)]
    inner: Annotated[Inner, about("Inside.", rules=(Rule("true", "never"),))] = Inner()
    maybe: Annotated[int | None, about("Optional.")] = None
    word: Annotated[str, about("Word.", enum=gpuworkload_status.Phase)] = gpuworkload_status.Phase.PENDING
    flag: Annotated[bool, about("Flag.")] = False
    number: Annotated[int, about("Number.")] = 0
    numbers: Annotated[tuple[float, ...], about("Numbers.", unique=True)] = (0.5, 1.0)
    things: Annotated[tuple[Inner, ...], about("Things.", keys=("name",), max_items=3)] = ()
    labels: Annotated[dict[str, str], about("Labels.", max_keys=4)] = {}  # msgspec copies it
    free: Annotated[dict[str, Any], about("Anything.")] = {}  # msgspec copies it
    when: Timestamp | None = None


SAMPLE = of_spec(Sample)["properties"]


def test_fields_without_a_default_are_required():
    assert of_spec(Sample)["required"] == ["must"]


def test_the_first_paragraph_of_the_docstring_describes_a_struct():
    assert of_spec(Sample)["description"] == "What it is."


def test_bounds_are_written_as_openapi_3_0_wants_them():
    assert SAMPLE["must"] == {
        "type": "number",
        "description": "Needed.",
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 9,
    }


def test_an_optional_field_is_neither_nullable_nor_defaulted():
    assert SAMPLE["maybe"] == {"type": "integer", "description": "Optional."}


@pytest.mark.parametrize(
    ("field", "default"),
    [("word", "Pending"), ("flag", False), ("number", 0), ("numbers", [0.5, 1.0]), ("inner", {"size": 2})],
)
def test_a_default_that_says_something_is_filled_in_by_the_api_server(field, default):
    assert SAMPLE[field]["default"] == default


@pytest.mark.parametrize("field", ["things", "labels", "free", "maybe", "when"])
def test_an_empty_default_means_left_out(field):
    assert "default" not in SAMPLE[field]


def test_an_enum_is_a_string_with_choices():
    assert SAMPLE["word"]["type"] == "string"
    assert SAMPLE["word"]["enum"] == ["Pending", "Scheduling", "Scheduled", "Running", "Succeeded", "Failed"]


def test_lists_merge_by_their_keys_or_are_sets():
    assert SAMPLE["things"]["x-kubernetes-list-type"] == "map"
    assert SAMPLE["things"]["x-kubernetes-list-map-keys"] == ["name"]
    assert SAMPLE["numbers"]["x-kubernetes-list-type"] == "set"


def test_maps_and_free_form_objects_differ():
    assert SAMPLE["labels"]["additionalProperties"] == {"type": "string"}
    assert SAMPLE["free"]["x-kubernetes-preserve-unknown-fields"] is True


def test_a_time_keeps_its_format():
    assert SAMPLE["when"]["format"] == "date-time"


def test_rules_of_struct_and_field_both_hold():
    assert of_spec(Sample)["x-kubernetes-validations"] == [
        {"rule": "self.must > 0.0", "message": "raise must", "fieldPath": ".must"}
    ]
    assert SAMPLE["inner"]["x-kubernetes-validations"] == [{"rule": "true", "message": "never"}]


def test_patterns_and_durations_explain_themselves():
    assert match_pattern("a+", "only a").as_schema() == {"rule": "self.matches(r'^(a+)$')", "message": "only a"}
    assert duration("pause", "5s").message == "pause is a duration such as 30s, 5m or 1h30m, and at least 5s"


class Union(ApiStruct, frozen=True):
    either: int | str


class Odd(ApiStruct, frozen=True):
    raw: bytes


@pytest.mark.parametrize(("spec", "message"), [(Union, "spec.either: .* not a union"), (Odd, "spec.raw: .*BytesType")])
def test_a_type_without_counterpart_is_refused_with_its_path(spec, message):
    with pytest.raises(TypeError, match=message):
        of_spec(spec)


def test_status_is_never_defaulted():
    status = schema.structural(gpuworkload.GPUWorkload)["properties"]["status"]
    assert not [path for path, node in walk(status) if "default" in node]


def test_columns_leave_out_what_is_usual():
    assert Column("A", ".a").as_schema() == {"name": "A", "type": "string", "jsonPath": ".a"}
    assert Column("B", ".b", "integer", 1, "Bees.").as_schema() == {
        "name": "B",
        "type": "integer",
        "jsonPath": ".b",
        "description": "Bees.",
        "priority": 1,
    }


# --- what every kind must declare ----------------------------------------------------------------------


def walk(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below `node`; inside a free-form object only what we declare ourselves."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in node:
            yield from walk(node[name], f"{path}[]")


ALL = [
    (f"{kind.definition.name}{path}", node)
    for kind in definitions.KINDS
    for path, node in walk(schema.structural(kind))
]
POD_TEMPLATE_PARTS = ".spec.podTemplate."
KINDS = pytest.mark.parametrize("kind", definitions.KINDS, ids=lambda kind: kind.definition.name)


def test_every_field_of_every_kind_is_described():
    missing = [
        where
        for where, node in ALL
        if "description" not in node and not where.endswith(("[]", ".metadata")) and POD_TEMPLATE_PARTS not in where
    ]
    assert missing == []


def test_every_schema_is_in_the_structural_subset():
    forbidden = {"$ref", "anyOf", "oneOf", "nullable", "uniqueItems", "pattern", "title"}
    assert [where for where, node in ALL if forbidden & node.keys() or "type" not in node] == []


def test_every_rule_has_a_message_that_fits_on_a_screen():
    rules = [(where, rule) for where, node in ALL for rule in node.get("x-kubernetes-validations", ())]
    assert len(rules) > 30
    assert [where for where, rule in rules if not 20 <= len(rule["message"]) <= 200] == []


def test_text_and_lists_under_a_rule_are_bounded():
    """The API server estimates the worst case of a rule from these bounds and refuses costly ones."""
    bounds = {"string": "maxLength", "array": "maxItems"}
    ruled = [(where, node) for where, node in ALL if "x-kubernetes-validations" in node]
    assert [where for where, node in ruled if (bound := bounds.get(node["type"])) and bound not in node] == []


@KINDS
def test_the_kind_has_status_and_columns(kind):
    body = definitions.manifest(kind)
    [version] = body["spec"]["versions"]
    scalable = (
        {"scale"} if kind.definition.kind == "GPUWorkload" and kind.definition.group == "kgwe.nvidia.io" else set()
    )
    assert version["subresources"].keys() == {"status"} | scalable
    assert "Age" in [column["name"] for column in version["additionalPrinterColumns"]]
    # These are written by KGWE alone: all of them is their spec.
    is_ours = kind.definition.kind in {"SeatRevocation", "RightsizingDecision"}
    parts = {"spec"} if is_ours else {"spec", "status"}
    assert parts <= version["schema"]["openAPIV3Schema"]["properties"].keys()


@KINDS
def test_every_column_points_at_a_declared_field(kind):
    paths = {path for path, _ in walk(schema.structural(kind))} | {".metadata.creationTimestamp"}
    assert [column.path for column in kind.definition.columns if column.path.split("[")[0] not in paths] == []


@KINDS
def test_the_kind_is_written_and_read_back_unchanged(kind):
    body = definitions.manifest(kind)
    assert msgspec.yaml.decode(definitions.to_yaml(body).encode()) == body


def test_names_are_unique_within_a_group():
    names = [
        (of.group, name)
        for of in (kind.definition for kind in definitions.KINDS)
        for name in {of.plural, *of.short_names}
    ]
    assert len(names) == len(set(names))


def test_the_columns_users_know_come_first():
    def shown(kind: type[CustomObject]) -> list[str]:
        return [column.name for column in kind.definition.columns if not column.priority]

    assert shown(gpuworkload.GPUWorkload) == ["GPUs", "Status", "Node", "Age", "Degraded", "Suspended"]
    assert shown(warp.WarpGPUWorkload) == ["Model", "GPUs", "Phase", "Node", "Age", "Degraded", "Suspended"]


def test_every_profile_with_a_known_geometry_may_be_asked_for():
    known = {name for each in geometry.GEOMETRIES.values() for name in each.profiles}
    assert known <= set(mig.PROFILES)
    assert len(mig.PROFILES) == len(set(mig.PROFILES))


# --- structs -------------------------------------------------------------------------------------------


def test_decoding_tolerates_what_a_newer_release_wrote():
    text = b"""{"apiVersion": "kgwe.nvidia.io/v1", "kind": "GPUWorkload", "metadata": {"name": "a", "new": 1},
      "spec": {"gpuRequirements": {"count": 4096, "topology": {"preference": "Optical"}}, "newField": {}},
      "status": {"phase": "Hibernating"}}"""
    workload = msgspec.json.decode(text, type=gpuworkload.GPUWorkload)
    assert workload.spec.gpuRequirements.count == 4096
    assert workload.status.phase == "Hibernating"


def test_a_manifest_leaves_out_defaults_and_names_its_kind():
    workload = warp.WarpGPUWorkload(ObjectMeta(name="a"), warp.WarpGPUWorkloadSpec("llama2", 2))
    assert workload.manifest() == {
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "GPUWorkload",
        "metadata": {"name": "a"},
        "spec": {"modelName": "llama2", "gpuCount": 2},
    }


@pytest.mark.parametrize(
    ("outer", "inner", "required"), [(None, None, None), (300.0, None, 300.0), (None, 600.0, 600.0), (5.0, 5.0, 5.0)]
)
def test_the_required_bandwidth_is_found_wherever_it_is_written(outer, inner, required):
    topology = gpu_requirements.Topology(minBandwidthGBps=inner)
    requirements = gpu_requirements.GPURequirements(count=2, minBandwidthGBps=outer, topology=topology)
    assert requirements.required_bandwidth_gb_per_s == required


@pytest.mark.parametrize(("count", "per_pod", "pods"), [(8, None, 1), (8, 2, 4), (None, None, 1)])
def test_gpus_per_pod_divides_the_workload(count, per_pod, pods):
    requirements = gpu_requirements.GPURequirements(count=count)
    assert gpuworkload.GPUWorkloadSpec(requirements, gpusPerPod=per_pod).pods == pods
