"""How an API type is declared, and how it becomes the schema the API server enforces.

A kind is a frozen struct per level of the manifest, in a file of its own under `kgwe/kube/api/`
(`gpuworkload.py` is the worked example). The conventions, all of them checked by tests:

- The root derives from `CustomObject` and carries `definition: ClassVar[Definition]`: group, plural, short names,
  printer columns. Its docstring is the kind's description. Below it `spec` and `status`, structs deriving
  from `ApiStruct`. List the kind in `kgwe/kube/crds.py` and give it a Resource in `kgwe/kube/resources.py`.
- Attributes carry the manifest's names. Each has `Annotated[type, about("what it means, in which unit", …)]`.
- A field without a default is required. A default of None, "", () or {} means "may be left out". Any other
  default under `spec` is written into the CRD, so the API server fills it in; `status` is never defaulted.
  A struct as default (`retryPolicy: … = RetryPolicy()`) is filled in field by field.
- Bounds, enums and formats go into `about(…)`. They are enforced by the API server alone: decoding checks
  types but not bounds, so an object stored under an older, looser schema can never break a list or a watch.
- What a bound cannot say is a `Rule` in CEL: on one field in `about(rules=…)`, between fields in a struct's
  `rules: ClassVar`. Its message says what to change. The API server refuses rules whose worst case is
  too costly: give strings under a rule `max_length`, lists `max_items`, maps `max_keys`.
  A pattern is a rule as well (`matching`), because "should match '^…$'" does not say what to change.
- Lists of objects with an identity name it in `keys=(…)`: server-side apply then merges them by it.
- Free-form objects are `dict[str, Any]`; conditions are `Conditions`, times are `Timestamp`.
- Enumerations are StrEnums, but a field that holds one is typed `str` with `enum=TheEnum`, so that an object
  written by a newer release still decodes. Compare with the member: it equals its string.
- Modules of types do not import annotations from __future__: msgspec reads annotations at run time.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import inspect as types

from kgwe.kube.api.meta import Condition, ObjectMeta

Schema = dict[str, Any]


# --- declaring -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A CEL rule; `self` is the value it stands on. `message_expression` may name the offending part."""

    rule: str
    message: str
    message_expression: str = ""
    field: str = ""
    """Path of the field to blame, such as `.count`; the struct itself when empty."""

    def as_schema(self) -> Schema:
        out = {"rule": self.rule, "message": self.message}
        if self.message_expression:
            out["messageExpression"] = self.message_expression
        if self.field:
            out["fieldPath"] = self.field
        return out


def match_pattern(pattern: str, message: str) -> Rule:
    """The whole string must match `pattern` (RE2); unlike a schema pattern it says why in words."""
    return Rule(f"self.matches(r'^({pattern})$')", message)


def duration(name: str, at_least: str) -> Rule:
    """A Go-style duration; the field needs `max_length=16`, which with the digits here rules out overflow."""
    return Rule(
        f"self.matches(r'^([0-9]{{1,6}}(ms|s|m|h))+$') && duration(self) >= duration('{at_least}')",
        f"{name} is a duration such as 30s, 5m or 1h30m, and at least {at_least}",
    )


def about(
    description: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    min_items: int | None = None,
    max_items: int | None = None,
    max_keys: int | None = None,
    enum: Iterable[str] = (),
    format: str | None = None,  # noqa: A002 # the schema's own word
    unique: bool = False,
    keys: tuple[str, ...] = (),
    rules: tuple[Rule, ...] = (),
    schema: Mapping[str, Any] | None = None,
) -> msgspec.Meta:
    """What a field means and what the API server accepts in it; `schema` adds raw schema keys."""
    out: Schema = {
        "description": description,
        "enum": [str(value) for value in enum] or None,
        "format": format,
        "minimum": gt if gt is not None else ge,
        "exclusiveMinimum": True if gt is not None else None,
        "maximum": le,
        "minLength": min_length,
        "maxLength": max_length,
        "minItems": min_items,
        "maxItems": max_items,
        "maxProperties": max_keys,
        "x-kubernetes-list-type": "map" if keys else "set" if unique else None,
        "x-kubernetes-list-map-keys": list(keys) or None,
        "x-kubernetes-validations": [rule.as_schema() for rule in rules] or None,
        **(schema or {}),
    }
    return msgspec.Meta(extra_json_schema={key: value for key, value in out.items() if value is not None})


class ApiStruct(msgspec.Struct, frozen=True, omit_defaults=True):
    """One level of a manifest. Encoding leaves out what equals its default."""

    rules: ClassVar[tuple[Rule, ...]] = ()


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; priority 1 shows only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    description: str = ""

    def as_schema(self) -> Schema:
        out: Schema = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.description:
            out["description"] = self.description
        if self.priority:
            out["priority"] = self.priority
        return out


AGE = Column("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True)
class Definition:
    """Everything about a kind that is not a field."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    categories: tuple[str, ...] = ("kgwe",)
    #: whether `kubectl scale` and autoscalers can set `spec.replicas`
    scalable: bool = False

    @property
    def name(self) -> str:
        """The name of the CustomResourceDefinition object."""
        return f"{self.plural}.{self.group}"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"


class CustomObject(ApiStruct, frozen=True):
    """The root of one of our kinds; subclasses add `spec` and `status`."""

    definition: ClassVar[Definition]

    metadata: ObjectMeta

    def manifest(self) -> dict[str, Any]:
        """The object as plain JSON values, with the apiVersion and kind that the struct does not carry."""
        body: dict[str, Any] = msgspec.to_builtins(self)
        return {"apiVersion": self.definition.api_version, "kind": self.definition.kind, **body}


Timestamp = Annotated[str, about("A time in RFC 3339.", format="date-time")]

Conditions = Annotated[
    tuple[Condition, ...],
    about(
        "What is true of the object now, one entry per type.",
        keys=("type",),
        schema={
            "items": {
                "type": "object",
                "required": ["type", "status"],
                "properties": {
                    "type": {"type": "string", "description": "What the condition is about.", "maxLength": 316},
                    "status": {
                        "type": "string",
                        "description": "Whether it holds.",
                        "enum": ["True", "False", "Unknown"],
                    },
                    "reason": {"type": "string", "description": "Why, as one CamelCase word.", "maxLength": 1024},
                    "message": {"type": "string", "description": "Why, as a sentence.", "maxLength": 32768},
                    "lastTransitionTime": {
                        "type": "string",
                        "format": "date-time",
                        "description": "When the status last changed.",
                    },
                    "observedGeneration": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "The metadata.generation this was judged on.",
                    },
                },
            }
        },
    ),
]


# --- converting ----------------------------------------------------------------------------------------

_SCALARS: dict[type[types.Type], str] = {
    types.StrType: "string",
    types.IntType: "integer",
    types.FloatType: "number",
    types.BoolType: "boolean",
}
_FREE_FORM: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def structural(kind: type[CustomObject]) -> Schema:
    """The OpenAPI schema of a kind in the structural subset a CustomResourceDefinition accepts."""
    info = types.type_info(kind)
    if not isinstance(info, types.StructType):
        raise TypeError(f"{kind.__name__} is not a struct")
    properties: Schema = {
        "apiVersion": {"type": "string", "description": f"Always {kind.definition.api_version}."},
        "kind": {"type": "string", "description": f"Always {kind.definition.kind}."},
        # The API server owns metadata's schema and accepts nothing else here.
        "metadata": {"type": "object"},
    }
    required = []
    for field in info.fields:
        if field.encode_name == "metadata":
            continue
        properties[field.encode_name] = _field_schema(field, kind.__name__, defaults=field.encode_name == "spec")
        if field.required:
            required.append(field.encode_name)
    return _struct_schema(kind, properties, required)


def _struct_schema(cls: type, properties: Schema, required: list[str]) -> Schema:
    out: Schema = {"type": "object"}
    # getattr would find object's own docstring; __doc__ of the class itself is None when there is none.
    if doc := cls.__dict__.get("__doc__"):
        out["description"] = " ".join(inspect.cleandoc(doc).split("\n\n", 1)[0].split())
    if required:
        out["required"] = required
    out["properties"] = properties
    if rules := getattr(cls, "rules", ()):
        out["x-kubernetes-validations"] = [rule.as_schema() for rule in rules]
    return out


def _field_schema(field: types.Field, where: str, *, defaults: bool) -> Schema:
    path = f"{where}.{field.encode_name}"
    out = _convert_type(field.type, path, defaults=defaults)
    # Factories only build the empty list or map, which means "left out".
    if defaults and field.default not in (msgspec.NODEFAULT, None, "", ()):
        if not isinstance(field.default, msgspec.Struct):
            out["default"] = msgspec.json.decode(msgspec.json.encode(field.default))
        elif filled := {name: each["default"] for name, each in out["properties"].items() if "default" in each}:
            # Spelled out, because the API server checks rules against the default as written.
            out["default"] = filled
    return out


def _convert_type(info: types.Type, path: str, *, defaults: bool) -> Schema:
    match info:
        case types.Metadata(type=inner, extra_json_schema=extra):
            return _merge_description(_convert_type(inner, path, defaults=defaults), extra or {})
        case types.UnionType(types=members):
            present = [member for member in members if not isinstance(member, types.NoneType)]
            if len(present) != 1:
                raise TypeError(f"{path}: a field of a CRD is one type or absent, not a union")
            # Not `nullable`: the API server drops a null, and the struct's None then means "left out".
            return _convert_type(present[0], path, defaults=defaults)
        case types.StructType(cls=cls, fields=fields):
            properties = {field.encode_name: _field_schema(field, path, defaults=defaults) for field in fields}
            return _struct_schema(cls, properties, [field.encode_name for field in fields if field.required])
    return _plain_schema(info, path, defaults=defaults)


def _plain_schema(info: types.Type, path: str, *, defaults: bool) -> Schema:
    match info:
        case types.DictType(value_type=types.AnyType()):
            return dict(_FREE_FORM)
        case types.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _convert_type(value, f"{path}[]", defaults=defaults)}
        case types.VarTupleType(item_type=item) | types.ListType(item_type=item):
            return {"type": "array", "items": _convert_type(item, f"{path}[]", defaults=defaults)}
    if scalar := _SCALARS.get(type(info)):
        return {"type": scalar}
    raise TypeError(f"{path}: {info} has no counterpart in a CRD; see the conventions in {__name__}")


def _merge_description(out: Schema, extra: Schema) -> Schema:
    """What `about` says wins over what the type says; rules of both hold."""
    key = "x-kubernetes-validations"
    rules = out.get(key, []) + extra.get(key, [])
    return out | extra | ({key: rules} if rules else {})
