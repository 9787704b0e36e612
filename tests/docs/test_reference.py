"""The reference lists what there is."""

from __future__ import annotations

import httpx

from tests.docs.pages import read


def test_every_route_is_in_the_reference(server_url: str) -> None:
    reference = read("docs/reference.md")
    document = httpx.get(f"{server_url}/openapi.json").json()
    routes = [f"`{verb.upper()} {path}`" for path, verbs in document["paths"].items() for verb in verbs]
    assert [route for route in routes if route not in reference] == []
