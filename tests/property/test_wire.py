"""Whatever is let in comes out the same: strict JSON, publish bodies, messages and CloudEvents."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.message.cloudevents import to_cloudevent
from app.message.head import Form, PublishHead
from app.message.json import check, one_line
from app.message.limits import MAX_TTL_S
from app.message.message import encode_message
from app.message.publish import parse_batch, parse_publication
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Message, NewMessage

AT_US = 1_795_176_000_123_456
JSON_HEAD = PublishHead(Form.JSON, "application/json", False, None, None, None, {})
EVENT_HEAD = PublishHead(Form.EVENT, "", False, None, None, None, {})

# Strings rich in what confuses counting: colons, quotes, backslashes, the escapes of each.
texts = st.one_of(
    st.text(alphabet=':"\\,{}u0 \n\u2028é', max_size=8),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=20,
)
printable = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)


@st.composite
def written(draw: st.DrawFn) -> tuple[Any, bytes]:
    """A value and one of the many ways to write it."""
    value = draw(values)
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n", "\t:"), (",", " \n : ")]))
    text = json.dumps(value, separators=separators, ensure_ascii=draw(st.booleans()))
    return value, text.encode()


@given(written())
def test_valid_json_is_let_in_unchanged(pair: tuple[Any, bytes]) -> None:
    value, raw = pair
    assert check(raw) == value == json.loads(raw)
    line = one_line(raw)
    assert b"\n" not in line
    assert b"\r" not in line
    assert check(line) == value


def repeats_a_key(raw: bytes) -> bool:
    """The naive reading: every object's pairs are counted as they are read."""
    found = False

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        found = found or len(dict(members)) < len(members)
        return dict(members)

    json.loads(raw, object_pairs_hook=pairs)
    return found


def outcome(parse: Callable[[bytes], object], raw: bytes) -> Code | None:
    """The code of the refusal, None when there was none; anything else is let through as a failure."""
    try:
        parse(raw)
    except GaplessError as error:
        return error.code
    return None


keys = st.sampled_from(["a", "b", ":", '"', "\\", ""])


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    space = st.sampled_from(["", " ", "\n"])
    member = st.builds(lambda k, s, v: f"{json.dumps(k)}{s}:{s}{v}", keys, space, inner)
    lists = st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]")
    return st.one_of(st.lists(member, max_size=4).map(lambda items: "{" + ",".join(items) + "}"), lists)


@settings(max_examples=500)
@given(st.recursive(keys.map(json.dumps), objects, max_leaves=12))
def test_repeated_keys_are_found_and_only_they(text: str) -> None:
    raw = text.encode()
    assert outcome(check, raw) is (Code.MALFORMED_JSON if repeats_a_key(raw) else None)


@settings(max_examples=500)
@given(
    st.one_of(
        st.binary(max_size=60), st.text(alphabet='{}[]",:\\u0dEe+-.1 \nNaI', max_size=40).map(str.encode)
    )
)
def test_nothing_but_refusals_comes_of_garbage(raw: bytes) -> None:
    for parse in (
        check,
        lambda r: parse_batch(JSON_HEAD, r),
        lambda r: parse_publication("c", JSON_HEAD, r, now_us=0),
        lambda r: parse_publication("c", EVENT_HEAD, r, now_us=0),
    ):
        code = outcome(parse, raw)
        assert code in (None, Code.MALFORMED_JSON, Code.INVALID_REQUEST)
        if code is None:
            json.loads(raw)


def stored(new: NewMessage) -> Message:
    return Message(
        1042, new.channel, 17, new.type, new.key, new.data, new.binary, new.headers, "s", AT_US, None
    )


@given(
    written(),
    printable,
    st.one_of(st.none(), printable),
    st.dictionaries(
        printable, st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20), max_size=5
    ),
    st.floats(min_value=0.001, max_value=MAX_TTL_S),
)
def test_what_is_published_is_what_readers_see(
    pair: tuple[Any, bytes], kind: str, key: str | None, headers: dict[str, str], ttl: float
) -> None:
    value, raw = pair
    envelope = json.dumps({"type": kind, "key": key, "headers": headers, "ttl": ttl}).encode()
    (message,) = parse_publication(
        "c", JSON_HEAD, envelope[:-1] + b',"data":' + raw + b"}", now_us=0
    ).messages
    encoded = encode_message(stored(message))
    assert b"\n" not in encoded
    seen = json.loads(encoded)
    assert (seen["data"], seen["type"], seen.get("key"), seen.get("headers", {})) == (
        value,
        kind,
        key,
        headers,
    )
    assert message.ttl == ttl
    event = json.loads(to_cloudevent(stored(message)))
    assert event["data"] == value
    assert b"\n" not in to_cloudevent(stored(message))


names = st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True).filter(
    lambda name: (
        name not in ("data", "id", "source", "type", "specversion", "subject", "time", "dataschema")
        and not name.startswith("gapless")
    )
)


@given(printable, printable, printable, st.dictionaries(names, printable, max_size=5), written())
def test_events_come_back_whole(
    event_id: str, source: str, kind: str, extensions: dict[str, str], pair: tuple[Any, bytes]
) -> None:
    value, raw = pair
    event = {"specversion": "1.0", "id": event_id, "source": source, "type": kind, **extensions}
    body = json.dumps(event).encode()[:-1] + b', "data":' + raw + b"}"
    (message,) = parse_publication("c", EVENT_HEAD, body, now_us=0).messages
    came_back = json.loads(to_cloudevent(stored(message)))
    assert {name: came_back[name] for name in event} == event
    assert came_back["data"] == value
