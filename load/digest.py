"""What a message says, as one number: two messages with equal digests carry the same type, key and data."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson


def digest(kind: str, key: str | None, data: Any) -> int:
    """The signed 64-bit digest of what the publisher chose: type, key and data.

    Member order and white space of the JSON do not count, since a store may keep the value instead
    of the text.
    """
    text = orjson.dumps([kind, key, data], option=orjson.OPT_SORT_KEYS)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


def digest_of(message: dict[str, Any]) -> int:
    """The digest of a message as the service writes it on any of its faces."""
    data = message["data"] if "data" in message else message.get("data_base64")
    return digest(message.get("type", "message"), message.get("key"), data)
