"""A route: its path, its query, its reply, and what answers it. The OpenAPI document is made from the same types."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.httpapi.problems import ProblemDocument

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


_TEMPLATE: Final = "#/components/schemas/{name}"
_PATH_PARTS: Final = re.compile(r"\{(\w+)\}")
_ERRORS: Final = {
    "400": "The request cannot be answered; the detail says why.",
    "401": "No valid token.",
    "403": "The user may not read this.",
    "404": "There is nothing, or the user may not see it.",
    "413": "The request is too large.",
    "429": "Too many requests.",
    "503": "Not available now; try again.",
}


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A route without parameters."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path and its method. Parts of the path in braces are fields of the query type, too."""

    path: str
    summary: str
    query: type[msgspec.Struct]
    reply: Any
    #: called with the user and the query, and with the body if there is one; may return a whole Response
    handle: Callable[..., Awaitable[object]]
    tag: str = ""
    method: str = "GET"
    #: what a request sends, as JSON
    body: type[msgspec.Struct] | None = None
    #: of the reply
    media_type: str = "application/json"
    #: whether `handle` also gets the request itself, as its last argument
    takes_request: bool = False


def describe_api(routes: Sequence[Route], *, title: str, version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the routes."""
    bodies = [route.body for route in routes if route.body is not None]
    schemas, components = msgspec.json.schema_components(
        [*(route.reply for route in routes), *bodies, ProblemDocument], ref_template=_TEMPLATE
    )
    problem, of_body = schemas[-1], dict(zip(bodies, schemas[len(routes) : -1], strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route, reply in zip(routes, schemas, strict=False):
        described = _describe_route(route, reply, problem)
        if route.body is not None:
            content = {"application/json": {"schema": of_body[route.body]}}
            described["requestBody"] = {"required": True, "content": content}
        paths.setdefault(route.path, {})[route.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _describe_route(route: Route, reply: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    in_path = set(_PATH_PARTS.findall(route.path))
    schema, parts = msgspec.json.schema_components([route.query], ref_template="{name}")
    fields = parts[schema[0]["$ref"]]
    required = set(fields.get("required", ()))
    parameters = []
    for name, described in fields.get("properties", {}).items():
        text = described.get("description", "")
        rest = {key: value for key, value in _inline(described, parts).items() if key != "description"}
        parameters.append(
            {
                "name": name,
                "in": "path" if name in in_path else "query",
                "required": name in in_path or name in required,
                "description": text,
                "schema": rest,
            }
        )
    failures = {
        code: {"description": text, "content": {"application/problem+json": {"schema": problem}}}
        for code, text in _ERRORS.items()
    }
    return {
        "summary": route.summary,
        "operationId": _name_operation(route),
        "tags": [route.tag] if route.tag else [],
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": {route.media_type: {"schema": reply}}}} | failures,
    }


def _name_operation(route: Route) -> str:
    name = re.sub(r"\W+", "_", route.path).strip("_")
    return name if route.method == "GET" else f"{route.method.lower()}_{name}"


def _inline(schema: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter without references: enumerations are small."""
    for reference in (schema.get("$ref"), *(each.get("$ref") for each in schema.get("allOf", ()))):
        if reference in parts:
            rest = {key: value for key, value in schema.items() if key not in {"$ref", "allOf"}}
            return {key: value for key, value in parts[reference].items() if key != "title"} | rest
    return schema
