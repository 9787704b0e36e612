"""Bad input to the routes of durable subscriptions: a clear 4xx, never a 500, and nothing changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.patience import eventually
from tests.raw_http import JSON_TYPE, Bad, check_refused, exchange, get

SUBSCRIPTION = "/v1/subscriptions/bad.sub"
POLICY = "/v1/policies/bad"
MALFORMED = [b"", b"{", b"{}{}", b"\xff", b'{"a":1,"a":2}', b"\xef\xbb\xbf{}", b'{"a":"\x00"}']
UNFIT = [b"null", b"[]", b"5", b'"x"', b'{"unknown":1}', b'{"a":"\\u0000"}', b'{"a":NaN}', b'{"a":"\\ud800"}',
         b'{"a":' + b"[" * 30_000 + b"]" * 30_000 + b"}", b'{"a":' + b"9" * 5000 + b"}"]  # fmt: skip
NAMES = ["a..b", ".a", "*", "a.>", "a b", "a" * 256, "\x00", "a\r\nb", "чат", "a%00", "..", "a;b"]
TAKES = [
    ("PUT", SUBSCRIPTION),
    ("PATCH", SUBSCRIPTION),
    ("POST", f"{SUBSCRIPTION}/seek"),
    ("POST", f"{SUBSCRIPTION}/bind"),
    ("POST", f"{SUBSCRIPTION}/unbind"),
    ("POST", f"{SUBSCRIPTION}/pull"),
    ("POST", f"{SUBSCRIPTION}/ack"),
    ("POST", f"{SUBSCRIPTION}/nack"),
    ("POST", f"{SUBSCRIPTION}/extend"),
    ("POST", "/v1/ack"),
    ("POST", "/v1/nack"),
    ("POST", "/v1/extend"),
    ("PUT", POLICY),
    ("POST", "/v1/definitions"),
    ("POST", "/v1/dead-letters/replay"),
    ("POST", "/v1/dead-letters/purge"),
    ("POST", "/v1/transactions"),
]
NO_BODY = [
    ("GET", SUBSCRIPTION),
    ("DELETE", SUBSCRIPTION),
    ("POST", f"{SUBSCRIPTION}/pause"),
    ("POST", f"{SUBSCRIPTION}/resume"),
    ("GET", "/v1/subscriptions"),
    ("GET", "/v1/policies"),
    ("GET", POLICY),
    ("DELETE", POLICY),
    ("GET", "/v1/definitions"),
    ("GET", "/v1/dead-letters"),
    ("GET", "/v1/dead-letters/1"),
    ("DELETE", "/v1/dead-letters/1"),
    ("POST", "/v1/dead-letters/1/replay"),
    ("GET", "/v1/scheduled"),
    ("GET", "/v1/scheduled/1"),
    ("DELETE", "/v1/scheduled/1"),
    ("POST", "/v1/scheduled/1/promote"),
    ("GET", f"{SUBSCRIPTION}/consume"),
]


def said(method: str, target: str, body: Any, name: str = "") -> Bad:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    label = name or f"{method} {target.rsplit('/', 1)[-1]} {raw.decode(errors='replace'):.50}"
    return Bad(label, 422, "invalid_request", method, target, body=raw)


def each(method: str, target: str, bodies: str) -> Iterator[Bad]:
    """A body a line."""
    for line in bodies.strip().splitlines():
        yield said(method, target, line.strip().encode())


def asked(target: str, query: str, status: int | tuple[int, ...] = (400, 422)) -> Bad:
    return Bad(f"{target} {query:.40}", status, None, "GET", f"{target}?{query}", {}, b"")


def texts() -> Iterator[Bad]:
    for method, target in TAKES:
        for body in MALFORMED:
            if body or not target.endswith("/pull"):
                name = f"{method} {target} {body[:20]!r}"
                yield Bad(name, 400, "malformed_json", method, target, body=body)
        for body in UNFIT:
            yield said(method, target, body, f"{method} {target} {body[:20]!r}")
        too_long = b'{"a":"' + b"x" * (9 * 1024 * 1024) + b'"}'
        yield Bad(f"{method} {target} of 9 MiB", 413, "payload_too_large", method, target, body=too_long)
        for media_type in ("text/plain", "application/cloudevents+json", ""):
            headers = {"Content-Type": media_type}
            name = f"{method} {target} as {media_type!r}"
            yield Bad(name, 415, "unsupported_media_type", method, target, headers, b"{}")


def names() -> Iterator[Bad]:
    for name in NAMES:
        path = quote(name, safe="")
        label = f"{name!r:.20}"
        for method, target, body in (
            ("PUT", f"/v1/subscriptions/{path}", b'{"channels":["a"]}'),
            ("GET", f"/v1/subscriptions/{path}", b""),
            ("POST", f"/v1/subscriptions/{path}/pause", b""),
            ("POST", f"/v1/subscriptions/{path}/pull", b"{}"),
            ("POST", f"/v1/subscriptions/{path}/ack", b'{"receipts":["x"]}'),
            ("GET", f"/v1/subscriptions/{path}/consume", b""),
            ("PUT", f"/v1/policies/{path}", json.dumps(policy()).encode()),
            ("DELETE", f"/v1/policies/{path}", b""),
        ):
            headers = JSON_TYPE if body else {}
            status = (404, 405, 422) if name == ".." else 422
            yield Bad(f"{method} {target[:24]} {label}", status, None, method, target, dict(headers), body)
        for target in (
            "/v1/dead-letters?subscription=",
            "/v1/dead-letters?channel=",
            "/v1/scheduled?channel=",
        ):
            yield Bad(f"{target}{label}", 422, "invalid_request", "GET", target + path, {}, b"")


def policy(**members: Any) -> dict[str, Any]:
    return {"pattern": "bad.>", "applies_to": "subscriptions", "definition": {"ack_wait": 5}, **members}


def definitions() -> Iterator[Bad]:
    yield from each("PUT", SUBSCRIPTION, BAD_SUBSCRIPTIONS)
    yield from each("PATCH", SUBSCRIPTION, BAD_CHANGES)
    yield from each("POST", f"{SUBSCRIPTION}/seek", BAD_SEEKS)
    yield said("PUT", SUBSCRIPTION, {"channels": ["a"] * 129})
    for verb in ("bind", "unbind"):
        yield from each("POST", f"{SUBSCRIPTION}/{verb}", BAD_BINDINGS)
        yield said("POST", f"{SUBSCRIPTION}/{verb}", {"channels": ["a"] * 129})
    yield said("POST", f"{SUBSCRIPTION}/bind", {"channels": [f"bad.{n}" for n in range(128)]})
    costly = [f"*.{'*.' * 62}{n}" for n in range(9)]  # 576 tokens together
    for method, target in (("PUT", SUBSCRIPTION), ("PATCH", SUBSCRIPTION), ("POST", f"{SUBSCRIPTION}/bind")):
        yield said(method, target, {"channels": costly}, f"{method} {target[-6:]} of costly patterns")
    document: dict[str, Any] = {"subscriptions": [{"name": "bad", "channels": costly}]}
    yield said("POST", "/v1/definitions", document, "definitions of costly patterns")
    yield asked("/v1/subscribe", "&".join(f"channel={text}" for text in costly))
    for line in BAD_POLICIES.strip().splitlines():
        body = policy(**json.loads(line))
        yield said("PUT", POLICY, body, f"policy {line}")
        document = {"version": 1, "policies": [{"name": "bad", **body}]}
        yield said("POST", "/v1/definitions", document, f"definitions with policy {line}")
    yield from each("POST", "/v1/definitions", BAD_DOCUMENTS)
    for rest in ('"start":9007199254740991', '"push":{"url":"https://example.com"}'):
        # What fails in the database, after something else was made there.
        start = b'{"version":1,"channels":[{"name":"bad.made","message_ttl":5}],"subscriptions":['
        late = start + b'{"name":"bad.made","channels":["a"],%b}]}' % rest.encode()
        yield said("POST", "/v1/definitions", late, f"definitions with {rest}")


def consuming() -> Iterator[Bad]:
    yield from each("POST", f"{SUBSCRIPTION}/pull", BAD_PULLS)
    for where in (SUBSCRIPTION, "/v1"):
        for verb in ("ack", "nack", "release", "extend"):
            yield from each("POST", f"{where}/{verb}", BAD_RECEIPTS)
            yield said("POST", f"{where}/{verb}", {"receipts": ["x"] * 1001})
        yield from each("POST", f"{where}/nack", BAD_NACKS)
        yield said("POST", f"{where}/nack", {"receipts": ["x"], "reason": "r" * 1001})
        yield from each("POST", f"{where}/extend", BAD_EXTENDS)
    for query in (
        "prefetch=0",
        "prefetch=1001",
        "prefetch=x",
        "heartbeat=4",
        "heartbeat=61",
        "x=1",
        "prefetch=%00",
    ):
        yield asked(f"{SUBSCRIPTION}/consume", query)
    yield from each("POST", "/v1/transactions", BAD_TRANSACTIONS)
    message = {"channel": "bad.made", "data": 1}
    yield said("POST", "/v1/transactions", {"publish": [message] * 10_001})
    acks = [{"subscription": "bad.sub", "receipts": ["x"] * 5001}] * 2
    yield said("POST", "/v1/transactions", {"publish": [message], "ack": acks})


def lists() -> Iterator[Bad]:
    for target in ("/v1/subscriptions", "/v1/dead-letters", "/v1/scheduled"):
        for query in (
            "limit=0",
            "limit=1001",
            "limit=x",
            "limit=1_0",
            "limit=1&limit=2",
            "x=1",
            "cursor=%00",
        ):
            yield asked(target, query)
    for query in ("pattern=a..b", "pattern=a*", "pattern=%00", "cursor=a..b"):
        yield asked("/v1/subscriptions", query)
    for target in ("/v1/dead-letters", "/v1/scheduled"):
        for cursor in ("-1", "x", "9" * 30, "1.5", "١"):
            yield asked(target, f"cursor={quote(cursor)}")
        for number in ("x", "-1", "1.5", "9" * 30, "%00", "1%0A", "1_0"):
            yield Bad(f"{target}/{number:.20}", (404, 422), None, "GET", f"{target}/{number}", {}, b"")
    yield asked("/v1/dead-letters", "reason=boredom")
    yield asked("/v1/policies", "limit=5")
    yield said("POST", "/v1/definitions?dry_run=perhaps", {"version": 1})
    yield from each("POST", "/v1/dead-letters/replay", BAD_REPLAYS)
    yield said("POST", "/v1/dead-letters/replay", {"ids": [1] * 1001})
    yield from each("POST", "/v1/dead-letters/purge", BAD_PURGES)


def absent() -> Iterator[Bad]:
    none = "/v1/subscriptions/bad.none"
    for method, target, body in (
        ("GET", none, b""),
        ("DELETE", none, b""),
        ("POST", f"{none}/pause", b""),
        ("POST", f"{none}/resume", b""),
        ("PATCH", none, b"{}"),
        ("POST", f"{none}/seek", b'{"to":"latest"}'),
        ("POST", f"{none}/bind", b'{"channels":["a"]}'),
        ("POST", f"{none}/unbind", b'{"channels":["a"]}'),
        ("POST", f"{none}/pull", b"{}"),
        ("POST", f"{none}/ack", b'{"receipts":["x"]}'),
        ("POST", f"{none}/nack", b'{"receipts":["x"]}'),
        ("POST", f"{none}/extend", b'{"receipts":["x"]}'),
        ("GET", f"{none}/consume", b""),
    ):
        headers = dict(JSON_TYPE) if body else {}
        yield Bad(f"no {method} {target}", 404, "subscription_not_found", method, target, headers, body)
    for method, target, code in (
        ("GET", "/v1/policies/none", "not_found"),
        ("DELETE", "/v1/policies/none", "not_found"),
        ("GET", f"/v1/dead-letters/{2**52}", "dead_letter_not_found"),
        ("DELETE", f"/v1/dead-letters/{2**52}", "dead_letter_not_found"),
        ("POST", f"/v1/dead-letters/{2**52}/replay", "dead_letter_not_found"),
        ("GET", f"/v1/scheduled/{2**52}", "message_not_found"),
        ("DELETE", f"/v1/scheduled/{2**52}", "message_not_found"),
        ("POST", f"/v1/scheduled/{2**52}/promote", "message_not_found"),
    ):
        yield Bad(f"no {method} {target}", 404, code, method, target, {}, b"")


def methods() -> Iterator[Bad]:
    for target in sorted({target for _, target in TAKES + NO_BODY}):
        yield Bad(f"FOO {target}", 405, "method_not_allowed", "FOO", target)
    for method, target in NO_BODY:
        yield Bad(f"{method} {target}?x=1", 422, "invalid_request", method, f"{target}?x=1", {}, b"")


BAD_SUBSCRIPTIONS = """
{}
{"channels": []}
{"channels": ["a..b"]}
{"channels": ["a"], "x": 1}
{"channels": ["a"], "stats": {}}
{"channels": ["a"], "name": "other"}
{"channels": ["a"], "start": "soon"}
{"channels": ["a"], "start": 9007199254740992}
{"channels": ["a"], "ack_wait": 0}
{"channels": ["a"], "max_deliver": -1}
{"channels": ["a"], "backoff": [-1]}
{"channels": ["a"], "ordering": "fifo"}
{"channels": ["a"], "filter": {"types": ["\\n"]}}
{"channels": ["a"], "dead_letter": "dead"}
{"channels": ["a"], "dead_letter": {"channel": "a.*"}}
{"channels": ["a"], "dead_letter": {"channel": null, "keep": false}}
{"channels": ["a"], "dead_letter": {"channel": "dead", "keep": 0}}
{"channels": ["a"], "dead_letter": {"channel": "dead", "keep": "1d"}}
{"channels": ["a"], "dead_letter": {"keep": false}}
{"channels": ["a"], "push": {"url": "https://example.com/", "secret": "secret"}}
{"channels": ["a"], "push": {"url": "ftp://example.com/", "secret": "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}
{"channels": ["a"], "push": {"url": "http://127.0.0.1/", "secret": "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}
"""
BAD_CHANGES = """
{"channels": null}
{"channels": []}
{"start": "latest"}
{"ack_wait": -1}
{"paused": true}
"""
BAD_BINDINGS = """
{}
{"channels": null}
{"channels": []}
{"channels": "a"}
{"channels": [5]}
{"channels": ["a..b"]}
{"channels": ["a", "b "]}
{"channels": ["a\\u0000"]}
{"channels": ["a"], "start": "latest"}
"""
BAD_SEEKS = """
{}
{"to": null}
{"to": "soon"}
{"to": -1}
{"to": 1.5}
{"to": []}
{"to": "2026-01-01"}
{"to": 9007199254740991}
"""
BAD_POLICIES = """
{"pattern": "a..b"}
{"applies_to": "messages"}
{"applies_to": "channels"}
{"priority": 10000000}
{"definition": {}}
{"definition": {"ack_wait": 0}}
{"definition": {"channels": ["a"]}}
{"definition": {"start": "latest"}}
{"definition": {"push": {}}}
{"x": 1}
"""
BAD_DOCUMENTS = """
{"version": 2}
{"version": 1, "x": []}
{"version": 1, "channels": [{"name": "bad.made"}, {"name": "bad.made"}]}
{"version": 1, "channels": [{"name": "bad.made"}, {"name": "a..b"}]}
{"version": 1, "subscriptions": [{"name": "bad.made"}]}
"""
BAD_PULLS = """
{"max": 0}
{"max": 1001}
{"max": "1"}
{"wait": -1}
{"wait": 31}
{"wait": true}
"""
BAD_RECEIPTS = """
{}
{"receipts": []}
{"receipts": "x"}
{"receipts": [5]}
"""
BAD_NACKS = """
{"receipts": ["x"], "delay": -1}
{"receipts": ["x"], "delay": 604801}
{"receipts": ["x"], "reason": 5}
{"receipts": ["x"], "dead_letter": 1}
{"receipts": ["x"], "dead_letter": true, "delay": 1}
"""
BAD_EXTENDS = """
{"receipts": ["x"], "ack_wait": 0}
{"receipts": ["x"], "ack_wait": 86401}
{"receipts": ["x"], "ack_wait": "5"}
"""
BAD_TRANSACTIONS = """
{"publish": [], "ack": []}
{"publish": [{"channel": "a..b", "data": 1}]}
{"publish": [{"channel": "bad.made", "data": 1}, {"channel": "bad.made"}]}
{"publish": [{"channel": "bad.made", "data": 1, "delay": 5}]}
{"publish": [{"channel": "bad.made", "data": 1, "ephemeral": true}]}
{"publish": [{"channel": "bad.made", "data": 1}], "ack": [{"subscription": "a b"}]}
{"publish": [{"channel": "bad.made", "data": 1}], "ack": [{"subscription": "bad.sub", "receipts": []}]}
"""
BAD_REPLAYS = """
{"ids": ["1"]}
{"reason": "x"}
{"subscription": "a b"}
{"older_than": 1}
"""
BAD_PURGES = """
{}
{"older_than": -1}
{"older_than": "soon"}
{"older_than": null}
{"older_than": 1, "ids": []}
"""
CASES = [case for cases in (texts, names, definitions, consuming, lists, absent, methods) for case in cases()]


@pytest.fixture(scope="module")
def defined(server_url: str) -> str:
    """The service, with the subscription that is asked about."""
    asyncio.run(eventually(lambda: get(server_url, "/readyz").status == 200))
    body = b'{"channels":["bad.sub.>"]}'
    assert exchange(server_url, said("PUT", SUBSCRIPTION, body).request()).status in (200, 201)
    return server_url


def definitions_of(server_url: str) -> Any:
    document = get(server_url, "/v1/definitions").document
    return document, get(server_url, "/v1/channels?pattern=bad.made").document


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_is_refused_and_changes_nothing(defined: str, case: Bad) -> None:
    before = definitions_of(defined)
    check_refused(defined, case)
    assert definitions_of(defined) == before


def test_forged_receipts_are_unknown(defined: str) -> None:
    receipts = ["", "x", "A" * 60, "\n", '"', "x" * 200]
    for verb in ("ack", "nack", "release", "extend"):
        answer = exchange(defined, said("POST", f"{SUBSCRIPTION}/{verb}", {"receipts": receipts}).request())
        assert answer.status == 200
        expected = [{"receipt": receipt, "status": "unknown"} for receipt in receipts]
        assert answer.document == {"results": expected}


def test_a_transaction_with_a_forged_receipt_does_nothing(defined: str) -> None:
    body = {
        "publish": [{"channel": "bad.made", "data": 1}],
        "ack": [{"subscription": "bad.sub", "receipts": ["x", "A" * 60]}],
    }
    before = definitions_of(defined)
    answer = exchange(defined, said("POST", "/v1/transactions", body).request())
    assert (answer.status, answer.document["code"]) == (409, "transaction_conflict")
    assert answer.document["errors"][0]["field"] == "ack[0].receipts[0]"
    assert definitions_of(defined) == before
