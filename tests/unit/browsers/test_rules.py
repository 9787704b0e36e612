"""Which requests are let in: good ones, and a table of bad ones."""

from __future__ import annotations

import pytest

from app.http.browsers.names import allowed_host, allowed_origin
from app.http.browsers.rules import EVERY_ANSWER, Admission, Browsers, Headers
from tests.unit.browsers.test_names import NO_AUTHORITY

CHAT = "https://chat.example.org"
OURS = "gapless.example.org"
RULES = Browsers([allowed_host(OURS)], [allowed_origin(CHAT), allowed_origin("http://localhost:3000")])
MOZILLA = "Mozilla/5.0 (X11; Linux x86_64)"
CONSUME = "/v1/subscriptions/q/consume"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def admit(method: str = "GET", target: str = "/v1/channels", **headers: str) -> Admission:
    return admit_by(RULES, method, target, **headers)


def admit_by(rules: Browsers, method: str = "GET", target: str = "/v1/channels", **headers: str) -> Admission:
    fields = {"Host": "127.0.0.1:8080", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return rules.admit(method.encode(), target.encode(), _raw(fields))


def _raw(fields: dict[str, str]) -> Headers:
    return [(name.lower().encode(), value.encode()) for name, value in fields.items()]


def code(admission: Admission) -> tuple[str, int | None] | None:
    return None if admission.refusal is None else (admission.refusal.code.value, admission.refusal.status)


FOREIGN = ("origin_not_allowed", None)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8080",
        "10.1.2.3:80",
        "0.0.0.0:8080",
        "[::1]",
        "[::1]:8080",
        "[FE80::1]:1",
        "localhost",
        "LocalHost:8080",
        "localhost.",
        "localhost.:8080",
        "localhost:",
        "chat.localhost",
        "a.b.LOCALHOST:1",
        OURS,
        f"{OURS.upper()}:443",
        f"{OURS}.",
    ],
)
def test_a_host_that_is_ours(host: str) -> None:
    assert code(admit(Host=host)) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "evil-localhost",
        "notlocalhost",
        "localhostx",
        "127.0.0.1.evil.example",
        "127.0.0.1.nip.io",
        f"evil.{OURS}",
        f"{OURS}.evil.example",
        f"x{OURS}",
        f"{OURS}x",
        "example.org",
        "org",
        *(text for text in NO_AUTHORITY if text),
    ],
)
def test_a_host_that_is_not(host: str) -> None:
    assert code(admit(Host=host)) == ("host_not_allowed", None)


def test_any_well_formed_host_once_credentials_are_required() -> None:
    rules = Browsers(any_host=lambda: True)
    assert code(admit_by(rules, Host="evil.example:8080")) is None
    for host in filter(None, NO_AUTHORITY):
        if not host.startswith("0x7f0"):
            assert code(admit_by(rules, Host=host)) == ("host_not_allowed", None), host
    assert code(admit_by(rules, Host="evil.example", Origin="http://other.example")) == FOREIGN


def test_one_host_and_the_same_one_in_the_target() -> None:
    bad = ("invalid_request", 400)
    assert code(RULES.admit(b"GET", b"/", [])) == bad
    assert code(admit(Host="")) == bad
    twice = [(b"host", b"localhost"), (b"accept", b"*/*"), (b"host", b"localhost")]
    assert code(RULES.admit(b"GET", b"/", twice)) == bad
    for target in (
        "http://evil.example/",
        "http://evil.example",
        "HTTP://localhost:8080/",
        "http://u@localhost/x",
    ):
        assert code(admit(target=target, Host="localhost")) == bad
    assert code(admit(target="http://LOCALHOST/v1/channels?x", Host="localhost")) is None
    assert code(admit("OPTIONS", "*", Host="localhost")) is None
    assert code(admit(target="http://evil.example/", Host="evil.example")) == ("host_not_allowed", None)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("localhost:8080", "http://localhost:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        (OURS, f"https://{OURS}"),
        (OURS, f"http://{OURS}"),
        (f"{OURS}:443", f"https://{OURS}"),
        (f"{OURS}.:8443", f"https://{OURS}.:8443"),
    ],
)
def test_its_own_pages_may_do_everything(host: str, origin: str) -> None:
    same = {"Host": host, "Sec_Fetch_Site": "same-origin"}
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
        assert admit(method, "/v1/subscriptions/q/pause", Origin=origin, **same) == Admission()
        assert admit(method, "/v1/subscriptions/q/pause", Host=host, Origin=origin) == Admission()
    assert admit(target=CONSUME, User_Agent=MOZILLA, Sec_Fetch_Mode="cors", **same) == Admission()


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "NULL",
        "",
        "*",
        "http://127.0.0.1",
        "http://127.0.0.1:8081",
        "http://localhost:8080",
        "https://127.0.0.1",
        "http://127.0.0.1:8080.evil.example",
        "http://127.0.0.1:8080@evil.example",
        "http://user@127.0.0.1:8080",
        "http://127.0.0.1:8080/",
        "http://127.0.0.1:8080 http://evil.example",
        "ftp://127.0.0.1:8080",
        "127.0.0.1:8080",
        "//127.0.0.1:8080",
        "http://[::ffff:127.0.0.1]:8080",
        "http://2130706433:8080",
        "https://chat.example.org.evil.example",
        "https://xchat.example.org",
        "https://a.chat.example.org",
        "http://chat.example.org",
        "https://chat.example.org:8443",
        "https://chat.example.org/",
        "https://chat.example.org.",
        "https://chat.example.org,null",
        "HTTPS://chat.example.org",
        "https://example.org",
        "file://",
    ],
)
def test_a_foreign_origin_may_do_nothing(origin: str) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        for target in (
            "/v1/channels",
            "/v1/subscribe?channel=a",
            CONSUME,
            "/nowhere",
            "/",
            "/docs",
            "/metrics",
        ):
            for site in ({}, {"Sec_Fetch_Site": "same-origin"}, {"Sec_Fetch_Site": "cross-site"}):
                admission = admit(method, target, Origin=origin, **site)
                assert code(admission) == FOREIGN
                assert not admission.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "none, none", "Same-Origin", "cross-origin"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
        NAVIGATION,
    ],
)
def test_a_request_from_another_site_without_an_origin(site: str, fields: dict[str, str]) -> None:
    for target in ("/v1/channels", CONSUME, "/openapi.json", "/docs/", "/docsx", "/v1/subscribe?channel=a"):
        assert code(admit(target=target, Sec_Fetch_Site=site, **fields)) == FOREIGN
    entrance = None if fields is NAVIGATION else FOREIGN
    for target in ("/", "/docs", "/console", "/docs?a=b"):
        assert code(admit(target=target, Sec_Fetch_Site=site, **fields)) == entrance
    assert code(admit("POST", "/docs", Sec_Fetch_Site=site, **fields)) == FOREIGN


@pytest.mark.parametrize(
    "target",
    [
        CONSUME,
        f"{CONSUME}?prefetch=10",
        "/v1/subscriptions/q/c%6fnsume",
        "http://127.0.0.1:8080/v1/subscriptions/a.b/consume",
        f"{CONSUME}#x",
        "/v1/ws/sse",
        "/v1/ws/sse?cf_connect=%7B%7D",
        "/v1/ws/%73se",
        "http://127.0.0.1:8080/v1/ws/sse",
    ],
)
def test_a_get_that_acts_is_refused_where_the_browser_does_not_tell_from_where(target: str) -> None:
    assert code(admit(target=target, User_Agent="curl/8", Accept="*/*")) is None
    assert code(admit(target=target, User_Agent=MOZILLA, Sec_Fetch_Site="same-origin")) is None
    # An address that was typed and led on by a redirect says "none".
    assert code(admit(target=target, Sec_Fetch_Site="none", **NAVIGATION)) == FOREIGN
    # No Sec-Fetch headers go to an address that is neither loopback nor https.
    assert code(admit(target=target, User_Agent=MOZILLA)) == FOREIGN
    assert (
        code(admit(target=target, User_Agent=MOZILLA, Referer="http://evil.example/127.0.0.1:8080"))
        == FOREIGN
    )
    assert code(admit(target=target, User_Agent=MOZILLA, Referer="http://127.0.0.1:8080/console")) is None
    assert code(admit(target=target, User_Agent=MOZILLA, Referer=f"{CHAT}/")) is None
    assert code(admit(target="/v1/channels/consume", Sec_Fetch_Site="none", **NAVIGATION)) is None


def test_an_allowed_origin_gets_cors_in_full() -> None:
    site = {"Sec_Fetch_Site": "cross-site", "Origin": CHAT}
    for method in METHODS:
        admission = admit(method, CONSUME, **site)
        headers = dict(admission.headers)
        assert admission.refusal is None
        assert headers[b"access-control-allow-origin"] == CHAT.encode()
        assert b"idempotent-replayed" in headers[b"access-control-expose-headers"]
        assert b"access-control-allow-credentials" not in headers
        assert b"access-control-allow-methods" not in headers
    assert ("vary", "Origin") in EVERY_ANSWER


def test_a_preflight_names_what_may_be_sent() -> None:
    asked = {
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "content-type, ce-id,CE-X\u00e9, ce-, ce-a\x01,x-evil",
        "Access_Control_Request_Private_Network": "true",
    }
    admission = admit("OPTIONS", "/v1/messages", Origin=CHAT, Sec_Fetch_Site="cross-site", **asked)
    headers = {name.decode(): value.decode() for name, value in admission.headers}
    assert headers["access-control-allow-methods"].split(", ") == [
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "PATCH",
        "DELETE",
    ]
    allowed = headers["access-control-allow-headers"].split(", ")
    assert {"content-type", "authorization", "idempotency-key", "last-event-id", "ce-id"} <= set(allowed)
    assert not {"x-evil", "ce-"} & set(allowed)
    assert headers["access-control-max-age"] == "7200"
    assert headers["access-control-allow-private-network"] == "true"
    assert code(admit("OPTIONS", "/v1/messages", Origin="http://evil.example", **asked)) == FOREIGN


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_a_body_needs_a_media_type_of_ours(method: str) -> None:
    target, refused = "/v1/subscriptions/q/pause", ("unsupported_media_type", None)
    for given in ({"Content_Length": "2"}, {"Transfer_Encoding": "chunked"}):
        assert code(admit(method, target, **given)) == refused
        for wrong in (
            "",
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "application/jsonx",
            "text/plain;application/json",
            "application/json, text/plain",
        ):
            assert code(admit(method, target, Content_Type=wrong, **given)) == refused
        for good in ("application/json", "Application/JSON; charset=utf-8", "application/cloudevents+json"):
            assert code(admit(method, target, Content_Type=good, **given)) is None
        assert code(admit(method, target, Content_Type="text/plain", ce_specversion="1.0", **given)) is None
    assert code(admit(method, target)) is None
    assert code(admit(method, target, Content_Length="0", Content_Type="text/plain")) is None
    assert code(admit("DELETE", target, Content_Length="2")) is None
    # An allowed page must be able to read why it was refused.
    assert admit(method, target, Content_Length="2", Origin=CHAT).headers
