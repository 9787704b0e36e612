"""The shortest way through the whole service."""

from __future__ import annotations

import json
import re
from urllib.parse import urljoin

import httpx

from tests.patience import PATIENCE_S


def test_the_address_itself_says_what_is_there_and_where_to_go(server_url: str) -> None:
    with httpx.Client(base_url=server_url, timeout=PATIENCE_S) as client:
        front = client.get("/")
        assert (front.status_code, front.headers["content-type"]) == (200, "text/html; charset=utf-8")
        links = [urljoin("/", link) for link in re.findall('href="([^"]+)"', front.text)]
        assert {"/docs", "/healthz"} <= set(links)
        assert [link for link in links if client.get(link).status_code != 200] == []


def test_no_page_asks_another_host_for_anything(server_url: str) -> None:
    with httpx.Client(base_url=server_url, timeout=PATIENCE_S) as client:
        for page in ("/", "/docs", "/docs/browser"):
            asked = [
                urljoin(page, one) for one in re.findall('(?:href|src)="([^"]*)"', client.get(page).text)
            ]
            assert "/favicon.svg" in asked
            assert [one for one in asked if not re.match("/(?!/)", one)] == []
            assert [one for one in asked if client.get(one).status_code != 200] == []
        assert client.get("/redoc").status_code == 404, "its script asks its makers for a picture"


def test_what_is_published_is_read_and_followed(server_url: str) -> None:
    with httpx.Client(base_url=server_url, timeout=PATIENCE_S) as client:
        answer = client.post("/v1/channels/smoke.one/messages", json={"data": {"text": "hello"}})
        assert answer.status_code == 201
        position = answer.json()
        assert position["seq"] == 1

        page = client.get("/v1/channels/smoke.one/messages").json()
        assert [m["id"] for m in page["messages"]] == [position["id"]]

        parameters = {"channel": "smoke.*", "from": "earliest"}
        with client.stream("GET", "/v1/subscribe", params=parameters) as stream:
            lines = stream.iter_lines()
            assert [next(lines), next(lines)] == ["retry: 1000", f"id: {position['id']}"]
            message = json.loads(next(lines).removeprefix("data: "))
            assert message["data"] == {"text": "hello"}
            assert [next(lines), next(lines), next(lines)][2] == "event: ready"
