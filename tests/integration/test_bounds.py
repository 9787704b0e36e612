"""Every string, list and object of a request has a bound, which the documents say and the service keeps.

The cases are made of the documents, which are made of the structs that read requests. So a member without a
bound fails here, and so does a bound that nothing keeps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from app.api import asyncapi
from app.api.openapi import document
from tests.integration.frames import Frames
from tests.patience import http_client

Json = dict[str, Any]


def whole(part: Any, schemas: Json) -> Any:
    """A part of a document, with the schemas in the places that refer to them."""
    if isinstance(part, list):
        return [whole(each, schemas) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part and (name := part["$ref"].rpartition("/")[2]) in schemas:
        return whole(schemas[name], schemas)
    return {name: whole(each, schemas) for name, each in part.items()}


OPERATIONS: dict[str, dict[str, Json]] = whole(document()["paths"], document()["components"]["schemas"])
_FRAMES: Json = asyncapi.document("")["components"]["schemas"]
COMMANDS: Json = whole(_FRAMES["ClientCommand"], _FRAMES)["properties"]
STREAMED = "/v1/ws/http_stream"
"""Its body is the command `connect`, which is asked over WebSocket. What is wrong in it, its stream says."""
WHOLE = {"data", "definition"}
"""Members that may be any JSON: as long as a message, or as a body, may be."""
VALUES = {"url": "https://example.com/", "definition": {"message_ttl": 1}, "data": 1, "node": "0" * 16}
UNKNOWN = "q" * 5000


class Bound(NamedTuple):
    """A place in a request, by its names: `[]` is an item, `*` a member of any name. `most` is None if it has
    no bound."""

    place: tuple[str, ...]
    kind: str
    most: int | None

    def __str__(self) -> str:
        return ".".join(self.place)

    @property
    def name(self) -> str:
        """The innermost name."""
        return next((name for name in reversed(self.place) if name not in ("[]", "*")), "")


def bounds(schema: Json, place: tuple[str, ...] = ()) -> Iterator[Bound]:
    """All that can be long in what a schema describes."""
    for each in forms(schema):
        kinds = each.get("type")
        if kinds == "string" and not {"enum", "const"} & set(each) and each.get("format") != "date-time":
            yield Bound(place, "string", each.get("maxLength"))
        elif kinds == "array":
            yield Bound(place, "array", each.get("maxItems"))
            yield from bounds(each["items"], (*place, "[]"))
        elif kinds == "object":
            for name, member in each.get("properties", {}).items():
                if name not in WHOLE:
                    yield from bounds(member, (*place, name))
            if isinstance(each.get("additionalProperties"), dict):
                yield Bound(place, "object", each.get("maxProperties"))
                yield from bounds(each["additionalProperties"], (*place, "*"))


def forms(schema: Json) -> list[Json]:
    """The schemas of which one describes a value."""
    if "anyOf" in schema:
        return [form for each in schema["anyOf"] for form in forms(each)]
    return [schema]


def value(schema: Json, bound: Bound, depth: int = 0) -> Any:
    """What a schema describes, as short as it may be, and with one thing too much at the place."""
    inside = bound.place[depth:]
    kind = {"[]": "array", "*": "object", "": bound.kind}.get(inside[0] if inside else "", "object")
    form = next(each for each in forms(schema) if each.get("type") == kind)
    if not inside:
        assert bound.most is not None
        if kind == "string":
            return "1" * (bound.most + 1)
        if kind == "array":
            return [least(form["items"])] * (bound.most + 1)
        return {f"x{n}": least(form["additionalProperties"]) for n in range(bound.most + 1)}
    if kind == "array":
        return [value(form["items"], bound, depth + 1)]
    if inside[0] == "*":
        return {"x": value(form["additionalProperties"], bound, depth + 1)}
    return least(form) | {inside[0]: value(form["properties"][inside[0]], bound, depth + 1)}


def least(schema: Json) -> Any:
    """The shortest value that fits, with what every message has to have."""
    form = forms(schema)[0]
    if form.get("type") != "object":
        if "enum" in form:
            return form["enum"][0]
        items = [least(form["items"])] if form.get("minItems") else []
        return {"string": "x", "array": items, "boolean": True}.get(form.get("type", ""), 1)
    names = set(form.get("required", ())) | ({"data"} & set(form.get("properties", ())))
    members = {name: form["properties"][name] for name in names}
    return {
        # One body has a member `data` that is a text.
        name: least(member) if name not in VALUES or (name == "data" and "type" in member) else VALUES[name]
        for name, member in members.items()
    }


ASKED = {path: each for path, each in OPERATIONS.items() if path != "/v1/namespaces/{namespace}"}
"""Only an operator is told what is wrong with the others."""


class Asked(NamedTuple):
    """A request with a body, or a parameter of one."""

    method: str
    path: str
    media_type: str
    schema: Json


def bodies() -> Iterator[Asked]:
    for path, operations in ASKED.items():
        for method, operation in operations.items():
            for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
                for schema in content["schema"].get("anyOf", [content["schema"]]):
                    yield Asked(method.upper(), path, media_type, schema)


def parameters() -> Iterator[tuple[Asked, Json]]:
    for path, operations in ASKED.items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                yield Asked(method.upper(), path, "", operation), parameter


def filled(path: str, **values: str) -> str:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return path.format(**{name: values.get(name, "1" if name.endswith("_id") else "x") for name in names})


def test_everything_that_can_be_long_has_a_bound() -> None:
    found = [(asked.path, bound) for asked in bodies() for bound in bounds(asked.schema)]
    found += [
        (asked.path, bound)
        for asked, each in parameters()
        for bound in bounds(each["schema"], (each["name"],))
    ]
    found += [(name, bound) for name, schema in COMMANDS.items() for bound in bounds(schema, (name,))]
    assert len(found) > 200
    assert [f"{where} {bound}" for where, bound in found if bound.most is None] == []


def refused(answer: httpx.Response, bound: Bound) -> str:
    """What is wrong with an answer that should refuse what is too long; empty if nothing is."""
    if not 400 <= answer.status_code < 500:
        return f"{bound}: {answer.status_code}"
    problem = answer.json()
    named = [error["field"] for error in problem.get("errors", [])] or [problem["detail"].lower()]
    is_named = any(bound.name.lower() in field or field == "body" for field in named)
    return "" if is_named and len(answer.content) < 1000 else f"{bound}: {answer.text[:200]}"


async def test_no_body_may_be_longer_than_its_bounds(server_url: str) -> None:
    wrong = []
    async with http_client(server_url) as client:
        for asked in bodies():
            for bound in bounds(asked.schema):
                if asked.path == STREAMED:
                    continue
                body = json.dumps(value(asked.schema, bound), separators=(",", ":"))
                headers = {"content-type": asked.media_type}
                answer = await client.request(asked.method, filled(asked.path), content=body, headers=headers)
                if said := refused(answer, bound):
                    wrong.append(f"{asked.method} {asked.path} {said}")
    assert wrong == []


async def test_no_parameter_may_be_longer_than_its_bounds(server_url: str) -> None:
    wrong = []
    async with http_client(server_url) as client:
        for asked, parameter in parameters():
            name, where = parameter["name"], parameter["in"]
            for bound in bounds(parameter["schema"], (name,)):
                given = value({"type": "object", "properties": {name: parameter["schema"]}}, bound)[name]
                others = {
                    each["name"]: "x"
                    for each in asked.schema["parameters"]
                    if each["in"] == "query" and each["required"] and each["name"] != name
                }
                path = filled(asked.path, **({name: given} if where == "path" else {}))
                request = client.build_request(
                    asked.method,
                    path,
                    params=others | ({name: given} if where == "query" else {}),
                    headers={name: given} if where == "header" else {},
                    json=least(next(each.schema for each in bodies() if each[:2] == asked[:2]))
                    if "requestBody" in asked.schema
                    else None,
                )
                # An answer that is a stream does not end.
                answer = await client.send(request, stream=True)
                if answer.status_code >= 400:
                    await answer.aread()
                await answer.aclose()
                if said := refused(answer, bound):
                    wrong.append(f"{asked.method} {asked.path} {where} {said}")
    assert wrong == []


async def test_an_error_names_an_unknown_member_by_its_first_characters(server_url: str) -> None:
    async with http_client(server_url) as client:
        for asked in bodies():
            headers = {"content-type": asked.media_type}
            content = json.dumps({UNKNOWN: 1})
            answer = await client.request(asked.method, filled(asked.path), content=content, headers=headers)
            assert answer.status_code in (400, 422), asked
            assert len(answer.content) < 1000, asked
        answer = await client.get(f"/v1/channels?{UNKNOWN}=1")
        assert answer.json()["errors"][0]["field"] == UNKNOWN[:100]
        message = {"data": 1, "headers": {UNKNOWN: "\n"}}
        answer = await client.post("/v1/channels/x/messages", json=message)
        assert len(answer.content) < 1000
        answer = await client.put("/v1/subscriptions/x", json={"channels": ["x"], "ordering": UNKNOWN})
        assert answer.json()["errors"][0]["field"] == "ordering"
        assert len(answer.content) < 1000


@pytest.mark.parametrize("method", COMMANDS)
async def test_no_command_may_be_longer_than_its_bounds(server_url: str, method: str) -> None:
    wrong = []
    for bound in bounds(COMMANDS[method]):
        given = value(COMMANDS[method], bound)
        frames = await Frames.open(server_url, connected=method != "connect")
        reply = await frames.ask(method, **given)
        subs = reply.get("connect", {}).get("subs", {})
        if reply.get("error", {}).get("code") not in (106, 107) and (method != "connect" or subs):
            wrong.append(f"{bound}: {reply}")
        await frames.close()
    frames = await Frames.open(server_url, connected=method != "connect")
    reply = await frames.ask(method + UNKNOWN)
    assert UNKNOWN[:50] in reply["error"]["message"]
    assert len(reply["error"]["message"]) < 300
    await frames.close()
    assert wrong == []


async def test_a_subscription_of_a_connect_has_no_longer_name(server_url: str) -> None:
    frames = await Frames.open(server_url, connected=False)
    selection = {"channel": ["x"]}
    subs = {"n" * length: {"selection": selection} for length in (255, 256)}
    assert list((await frames.ask("connect", subs=subs))["connect"]["subs"]) == ["n" * 255]
    await frames.close()
