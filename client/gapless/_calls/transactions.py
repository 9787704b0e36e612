"""The call that publishes and settles in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gapless._call import Call, json_of
from gapless._calls.delivery import Leased, receipt_of
from gapless._calls.publish import as_new_message, key_headers, member, posted, was_replayed
from gapless._errors import ProtocolError
from gapless._models import NewMessage, Payload, Published, published_from
from gapless._retry import Reply


@dataclass(frozen=True, slots=True)
class Committed:
    """The messages that a transaction published, in order, and how many receipts it settled."""

    messages: tuple[Published, ...]
    acked: int


def transaction(
    publish: Iterable[tuple[str, NewMessage | Payload]],
    ack: Iterable[Leased | tuple[str, str]],
    new_key: Callable[[], str],
    idempotency_key: str | None,
) -> Call[Committed]:
    """Publishes the messages and acks the receipts, all of it or nothing."""
    body: dict[str, Any] = {}
    messages = [{"channel": channel, **member(as_new_message(message))} for channel, message in publish]
    if messages:
        body["publish"] = messages
    receipts: dict[str, list[str]] = {}
    for one in ack:
        subscription, receipt = one if isinstance(one, tuple) else (one.subscription, receipt_of(one))
        receipts.setdefault(subscription, []).append(receipt)
    if receipts:
        body["ack"] = [{"subscription": name, "receipts": texts} for name, texts in receipts.items()]
    # Acks alone have no key: their receipts identify them.
    headers = key_headers(idempotency_key or (new_key() if messages else None), None)
    return posted("/v1/transactions", body, headers, _committed)


def _committed(reply: Reply) -> Committed:
    raw, replayed = json_of(reply), was_replayed(reply)
    try:
        messages = tuple(published_from(one, replayed=replayed) for one in raw["messages"])
        return Committed(messages, int(raw["acked"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not the answer to a transaction: {raw!r:.200}") from error
