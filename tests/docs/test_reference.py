"""The reference lists what there is."""

from __future__ import annotations

import subprocess
import sys

import httpx

from tests.docs.pages import read
from tests.support import ROOT


def test_every_route_is_in_the_reference(server_url: str) -> None:
    reference = read("docs/reference.md")
    document = httpx.get(f"{server_url}/openapi.json").json()
    routes = [f"`{verb.upper()} {path}`" for path, verbs in document["paths"].items() for verb in verbs]
    assert [route for route in routes if route not in reference] == []


def test_the_browser_proxy_needs_nothing_but_python() -> None:
    check = [sys.executable, "-I", "-S", "-m", "py_compile", str(ROOT / "docs" / "browser.py")]
    assert subprocess.run(check, check=False).returncode == 0
