"""The OpenAPI document, made from the table of routes and from the structs that its rows name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Any, Final, get_args

import msgspec

from app import VERSION
from app.api.answers import Problem
from app.api.channels import ChannelSettings
from app.api.route import Header, Returns, Route
from app.api.settings import SubscriptionSettings
from app.api.table import TABLE
from app.http.parameters import IN_PATH

TITLE: Final = "Gapless"
LICENSE: Final = {"name": "Apache 2.0", "identifier": "Apache-2.0"}
_DESCRIPTION: Final = (
    "Ordered, durable delivery for chat and events. Errors are problem documents (RFC 9457): decide by their"
    " `code`."
)

Json = dict[str, Any]


@cache
def document() -> Json:
    """The document; it is the same for every request."""
    schemas = Schemas()
    paths: dict[str, Json] = {}
    for tag, routes in TABLE.items():
        for route in routes:
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, tag, schemas)
    for settings in (ChannelSettings, SubscriptionSettings):
        # A policy's settings are named in a schema, not in a struct: another member decides which it has.
        schemas.of(settings)
    problem = {"description": "Refused, or failed.", "content": _content({_PROBLEM: Problem}, schemas)}
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": VERSION, "description": _DESCRIPTION, "license": LICENSE},
        "tags": [{"name": tag} for tag in TABLE],
        "paths": paths,
        "components": {"schemas": schemas.components, "responses": {"Problem": problem}},
    }


class Schemas:
    """JSON Schemas of structs. Each struct is put into `components` under its name."""

    def __init__(self) -> None:
        self.components: Json = {}

    def of(self, form: Any) -> Json:
        """The schema of a type, with references to its structs. A union is one of its members' schemas."""
        if isinstance(form, UnionType):
            return {"anyOf": [self.of(each) for each in get_args(form)]}
        (schema,), found = msgspec.json.schema_components([form], ref_template="#/components/schemas/{name}")
        for name, component in found.items():
            described = _untitled(component)
            assert self.components.setdefault(name, described) == described, f"two structs are called {name}"
        return dict(schema)

    def members(self, form: type[Any]) -> Iterator[tuple[str, Json, bool]]:
        """The members of a struct: name, schema, and whether it must be given."""
        apart = Schemas()
        apart.of(form)
        struct = apart.components.pop(form.__name__)
        self.components.update(apart.components)
        for name, schema in struct["properties"].items():
            yield name, schema, name in struct.get("required", ())


def _untitled(component: Json) -> Json:
    """The schema without a title that repeats its name, and without empty lists."""
    return {
        name: value
        for name, value in component.items()
        if name != "title" and not (name == "required" and not value)
    }


_PROBLEM: Final = "application/problem+json"


def _operation(route: Route, tag: str, schemas: Schemas) -> Json:
    summary, text = route.text
    operation: Json = {
        "operationId": route.name,
        "tags": [tag],
        "summary": summary,
        "description": text,
        "responses": {
            **{str(status): _returns(answer, schemas) for status, answer in route.returns.items()},
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if parameters := list(_parameters(route, schemas)):
        operation["parameters"] = parameters
    if (body := route.body) is not None:
        content = _content(body.forms, schemas)
        content["application/json"]["example"] = body.example
        operation["requestBody"] = {"required": body.required, "content": content}
    return operation


def _parameters(route: Route, schemas: Schemas) -> Iterator[Json]:
    for place, _ in route.places:
        yield _parameter(place, "path", schemas.of(IN_PATH[place]), True)
    if route.query is not None:
        for name, schema, required in schemas.members(route.query):
            yield _parameter(name, "query", schema, required)
    for header in route.headers:
        yield _parameter(header.name, "header", {"description": header.description, **header.schema}, False)


def _parameter(name: str, where: str, schema: Json, required: bool) -> Json:
    schema = dict(schema)
    description = schema.pop("description", "")
    found: Json = {"name": name, "in": where, "required": required, "schema": schema}
    return {**found, "description": description} if description else found


def _returns(answer: Returns, schemas: Schemas) -> Json:
    found: Json = {"description": answer.says}
    if answer.forms:
        found["content"] = _content(answer.forms, schemas)
    if answer.headers:
        found["headers"] = {header.name: _header(header) for header in answer.headers}
    return found


def _header(header: Header) -> Json:
    return {"description": header.description, "schema": dict(header.schema)}


def _content(forms: Mapping[str, Any], schemas: Schemas) -> Json:
    return {media_type: {"schema": schemas.of(form)} for media_type, form in forms.items()}
