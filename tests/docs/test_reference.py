"""The reference lists what there is."""

from __future__ import annotations

import re

import httpx

from tests.docs.pages import read, section
from tests.patience import PATIENCE_S


def test_every_route_has_its_place_in_the_reference(server_url: str) -> None:
    page = read("docs/reference.md")
    reference = page.replace(section("docs/reference.md", "routes"), "")
    document = httpx.get(f"{server_url}/openapi.json", timeout=PATIENCE_S).json()
    routes = [f"`{verb.upper()} {path}`" for path, verbs in document["paths"].items() for verb in verbs]
    assert [route for route in routes if route not in reference] == []


def test_the_size_of_what_spark_needs_is_the_same_wherever_it_is_told() -> None:
    told = re.findall(r"[0-9.]+ GB", read("gapless"))
    page = read("docs/spark.md").partition("## Read")[0]
    assert set(re.findall(r"[0-9.]+ GB", page)) == set(told) != set()
