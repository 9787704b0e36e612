"""The rules for browsers on the running service: they stand before every face, and say so on every answer."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.conftest import Serve
from tests.patience import PATIENCE_S
from tests.raw_http import JSON_TYPE, Answer, Bad, connect, exchange, get, read_answer
from tests.support import RunningService

CHAT = "https://chat.example.org"
ROUTES = [
    ("GET", "/"),
    ("GET", "/docs"),
    ("GET", "/docs/browser"),
    ("GET", "/openapi.json"),
    ("GET", "/asyncapi.json"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/nowhere"),
    ("HEAD", "/v1/channels"),
    ("GET", "/v1/channels"),
    ("GET", "/v1/channels/browsers.a/messages"),
    ("GET", "/v1/subscribe?channel=browsers.a"),
    ("GET", "/v1/subscribe"),
    ("GET", "/v1/subscriptions/browsers/consume"),
    ("POST", "/v1/channels/browsers.a/messages"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/transactions"),
    ("POST", "/v1/subscriptions/browsers/pull"),
    ("POST", "/v1/subscriptions/browsers/pause"),
    ("PUT", "/v1/channels/browsers.b"),
    ("DELETE", "/v1/channels/browsers.b"),
    ("OPTIONS", "/v1/channels"),
    ("OPTIONS", "*"),
]


@pytest.fixture(scope="module")
def url(server_url: str) -> str:
    made = exchange(server_url, Bad("", 0, None, target="/v1/channels/browsers.a/messages").request())
    assert made.status == 201
    body = b'{"channels": ["browsers.a"]}'
    case = Bad("", 0, None, "PUT", "/v1/subscriptions/browsers", body=body)
    assert exchange(server_url, case.request()).status in (200, 201)
    return server_url


def ask(url: str, method: str, target: str, **headers: str) -> Answer:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return exchange(url, Bad("", 0, None, method, target, fields, b"").request())


def check_protected(answer: Answer) -> None:
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "Origin" in answer.headers["vary"]
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "target"),
    [route for route in ROUTES if "/v1/" in route[1] and route[0] not in ("HEAD", "OPTIONS")],
)
@pytest.mark.parametrize("credential", ["Bearer abc", "Basic YTpi", ""])
def test_a_credential_that_nothing_can_check_is_refused(
    url: str, method: str, target: str, credential: str
) -> None:
    answer = ask(url, method, target, Authorization=credential)
    check_protected(answer)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.document["code"] == "unauthenticated"
    assert "no keys were made here" in answer.document["detail"]


@pytest.mark.parametrize("target", ["/v1/subscribe?channel=a", "/v1/subscriptions/browsers/consume?"])
def test_a_ticket_that_nothing_can_check_is_refused(url: str, target: str) -> None:
    assert ask(url, "GET", f"{target}&ticket=t").status == 401
    assert ask(url, "GET", f"{target}&ticket=").status == 200


@pytest.mark.parametrize(("method", "target"), ROUTES)
def test_every_answer_is_protected_and_none_is_for_strangers(url: str, method: str, target: str) -> None:
    welcome = ask(url, method, target)
    assert welcome.status not in (403, 421)
    check_protected(welcome)
    assert not any(name.startswith("access-control") for name in welcome.headers)
    for status, code, headers in (
        (421, "host_not_allowed", {"Host": "evil.example"}),
        (403, "origin_not_allowed", {"Origin": "http://evil.example"}),
        (403, "origin_not_allowed", {"Sec-Fetch-Site": "cross-site"}),
        (
            403,
            "origin_not_allowed",
            {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"},
        ),
    ):
        refused = ask(url, method, target, **headers)
        assert refused.status == status
        check_protected(refused)
        if method != "HEAD":
            assert refused.document["code"] == code
        assert not any(name.startswith("access-control") for name in refused.headers)


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /v1/channels\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01",
        b"FOO / HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * 20_000,
    ],
)
def test_what_never_becomes_a_request_is_answered_as_carefully(url: str, raw: bytes) -> None:
    check_protected(exchange(url, raw))


def test_a_refused_request_does_nothing(url: str) -> None:
    before = get(url, "/v1/channels/browsers.a").document
    for headers in (
        JSON_TYPE | {"Origin": "null"},
        JSON_TYPE | {"Host": "evil.example"},
        {"Content-Type": "text/plain"},
    ):
        case = Bad("", 0, None, target="/v1/channels/browsers.a/messages", headers=headers)
        assert exchange(url, case.request()).status in (403, 415, 421)
    assert get(url, "/v1/channels/browsers.a").document == before


def test_links_from_anywhere_lead_to_the_pages_and_the_docs_work(url: str) -> None:
    navigation = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    page = ask(url, "GET", "/docs", **navigation)
    assert page.status == 200
    assert ask(url, "GET", "/docs", **navigation | {"Sec-Fetch-Dest": "iframe"}).status == 403
    links = [part.split('"')[0] for part in page.body.decode().split('"/')[1:]]
    assert len(links) >= 2
    for link in links:
        part = ask(url, "GET", f"/{link}", **{"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "no-cors"})
        assert part.status == 200


@pytest.fixture
def open_to_chat(serve: Serve) -> RunningService:
    return serve(
        GAPLESS_ALLOWED_ORIGINS=f"{CHAT}, http://localhost:3000", GAPLESS_ALLOWED_HOSTS="gapless.example.org"
    )


def test_an_allowed_origin_and_host(open_to_chat: RunningService) -> None:
    url, page = open_to_chat.url, {"Origin": CHAT, "Sec-Fetch-Site": "cross-site"}
    asked = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,idempotency-key",
    }
    preflight = ask(url, "OPTIONS", "/v1/channels/chat/messages", **page, **asked)
    assert preflight.status == 204
    check_protected(preflight)
    assert preflight.headers["access-control-allow-origin"] == CHAT
    assert "idempotency-key" in preflight.headers["access-control-allow-headers"]
    published = exchange(
        url, Bad("", 0, None, target="/v1/channels/chat/messages", headers=JSON_TYPE | page).request()
    )
    # What the protocol itself refuses, after the head was read and before, is readable too.
    wrong = {"Content-Type": "text/plain"} | page
    refused = exchange(url, Bad("", 0, None, target="/v1/channels/chat/messages", headers=wrong).request())
    unread = exchange(url, Bad("", 0, None, target="/v1/subscriptions/none/pause", headers=wrong).request())
    for status, answer in (
        (201, published),
        (415, refused),
        (415, unread),
        (404, ask(url, "GET", "/nowhere", **page)),
        (422, ask(url, "GET", "/v1/subscribe", **page)),
        (200, ask(url, "GET", "/v1/subscribe?channel=chat", **page)),
        (200, ask(url, "GET", "/v1/channels", Host="gapless.example.org", **page)),
        (
            200,
            ask(url, "GET", "/v1/channels", Host="gapless.example.org", Origin="https://gapless.example.org"),
        ),
    ):
        assert answer.status == status
        check_protected(answer)
        if status != 200:
            assert answer.headers["access-control-allow-origin"] == CHAT
            assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_a_body_that_stops_is_told_to_an_allowed_page_too(open_to_chat: RunningService) -> None:
    head = f"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nOrigin: {CHAT}\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n"
    with connect(open_to_chat.url) as connection:
        connection.sendall(head.encode())
        answer = read_answer(connection)
    assert answer.status == 400
    assert answer.headers["access-control-allow-origin"] == CHAT
    check_protected(answer)


def test_the_lists_come_from_the_file_too(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "gapless.toml"
    file.write_text(f'allowed_hosts = ["gapless.example.org"]\nallowed_origins = ["{CHAT}"]\n')
    url = serve(GAPLESS_CONFIG=str(file)).url
    for headers in ({"Host": "gapless.example.org"}, {"Origin": CHAT}):
        answer = httpx.get(f"{url}/v1/channels", headers=headers, timeout=PATIENCE_S)
        assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == CHAT
