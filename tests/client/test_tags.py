"""Changes that hold only for what was read: the tag goes out, and a refusal is an error of its own."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from gapless import PreconditionFailed, Unreachable

from tests.client.faces import Face
from tests.client.test_manage import RAW_SUBSCRIPTION

CHANNEL = {"name": "c", "last_id": 1, "last_seq": 1, "first_seq": 1}
POLICY = {"name": "p", "pattern": "*", "applies_to": "channels", "priority": 0, "definition": {}}
IMPORTED: dict[str, Any] = {"dry_run": False, "created": [], "updated": [], "unchanged": 0, "diff": []}
CHANGES: list[tuple[str, tuple[Any, ...], dict[str, Any], str, str, dict[str, Any]]] = [
    ("subscriptions.pause", ("orders",), {}, "POST", "/v1/subscriptions/orders/pause", RAW_SUBSCRIPTION),
    ("subscriptions.resume", ("orders",), {}, "POST", "/v1/subscriptions/orders/resume", RAW_SUBSCRIPTION),
    ("subscriptions.seek", ("orders", 7), {}, "POST", "/v1/subscriptions/orders/seek", RAW_SUBSCRIPTION),
    (
        "subscriptions.seek",
        ("orders", 7),
        {"dry_run": True},
        "POST",
        "/v1/subscriptions/orders/seek?dry_run=true",
        RAW_SUBSCRIPTION,
    ),
    ("subscriptions.purge", ("orders",), {}, "POST", "/v1/subscriptions/orders/purge", {"purged": 1}),
    ("channels.put", ("c",), {}, "PUT", "/v1/channels/c", CHANNEL),
    ("channels.update", ("c",), {"message_ttl": None}, "PATCH", "/v1/channels/c", CHANNEL),
    ("channels.delete", ("c",), {}, "DELETE", "/v1/channels/c", {}),
    ("policies.put", ("p", "*", "channels", {}), {}, "PUT", "/v1/policies/p", POLICY),
    ("policies.delete", ("p",), {}, "DELETE", "/v1/policies/p", {}),
    ("definitions.import_", ({"version": 1},), {}, "POST", "/v1/definitions?dry_run=false", IMPORTED),
]


@pytest.mark.parametrize(("name", "arguments", "options", "method", "where", "told"), CHANGES)
def test_each_change_takes_a_tag_and_is_refused_with_an_error_of_its_own(
    face: Face,
    name: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    method: str,
    where: str,
    told: dict[str, Any],
) -> None:
    """The answer's tag is the one of next time. Without a tag none is sent."""
    asked: list[tuple[str, str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        tag = request.headers.get("if-match")
        asked.append((request.method, request.url.raw_path.decode(), tag))
        if tag == '"old"':
            return httpx.Response(412, json={"code": "precondition_failed", "detail": "it is another by now"})
        return httpx.Response(200, json=told, headers={"ETag": '"new"'})

    face.connect(handler=answer)
    done = face.call(name, *arguments, **options, if_match='"seen"')
    if hasattr(done, "etag"):
        assert done.etag == '"new"'
    face.call(name, *arguments, **options)
    with pytest.raises(PreconditionFailed) as refused:
        face.call(name, *arguments, **options, if_match='"old"')
    assert (refused.value.status, refused.value.code) == (412, "precondition_failed")
    assert asked == [(method, where, tag) for tag in ('"seen"', None, '"old"')]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("channels.get", ("c",), CHANNEL),
        ("policies.get", ("p",), POLICY),
        ("definitions.export", (), {"version": 1}),
    ],
)
def test_what_is_read_has_its_tag(
    face: Face, name: str, arguments: tuple[str, ...], told: dict[str, Any]
) -> None:
    face.connect(handler=lambda request: httpx.Response(200, json=told, headers={"ETag": '"x"'}))
    assert face.call(name, *arguments).etag == '"x"'


def test_a_change_that_may_have_been_done_to_its_tag_is_not_repeated(face: Face) -> None:
    """The repetition would be refused, whether the first was done or not."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        raise httpx.ReadError("cut off")

    face.connect(handler=answer)
    for name, arguments, options, *_ in CHANGES:
        asked.clear()
        with pytest.raises(Unreachable):
            face.call(name, *arguments, **options, if_match='"x"')
        assert len(asked) == 1 or options == {"dry_run": True}, name
