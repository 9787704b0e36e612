"""Deliveries, the results of settling them, and the calls that take and settle them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from gapless._call import SENDING, Call, Request, Slice, asking, json_body, json_of, path
from gapless._calls.gaps import tell
from gapless._calls.listing import listing
from gapless._errors import ProtocolError
from gapless._lost import Gap
from gapless._models import Message, gap_from, message_from

MAX_RECEIPTS = 1000
"""The most receipts of one call."""
MAX_REASON_CHARACTERS = 1000

Status = Literal["acked", "nacked", "released", "extended", "lease_expired", "unknown"]
"""The result of a receipt. `lease_expired`: the lease had ended, nothing was done. `unknown`: it was settled
before (also by the first attempt of a repeated call), a seek forgot it, or it is not a receipt."""


class Leased(Protocol):
    """Anything that names one lease: a `PulledDelivery` of `pull`, or one that `consume` gave."""

    @property
    def subscription(self) -> str: ...

    @property
    def receipt(self) -> str | None: ...


Ack = Literal["manual", "auto"]
"""When deliveries are settled: by their receiver, or when they are handed out (each at most once)."""

Receipt = str | Leased
"""Names a delivery to settle: its receipt, or the delivery itself."""


@dataclass(frozen=True, slots=True)
class PulledDelivery:
    """One message handed out to one member of a subscription, leased until `deadline`.

    `attempt` counts how often the message was handed out, this time included. With `ack="auto"` it was
    settled before: then `receipt` and `deadline` are None.
    """

    subscription: str
    receipt: str | None
    attempt: int
    deadline: datetime | None
    message: Message


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of one receipt. `dead_letter` is the id of the entry that a nack made; `deadline` is the new
    deadline after an extend."""

    receipt: str
    status: Status
    dead_letter: int | None = None
    deadline: datetime | None = None


State = Literal["ready", "waiting", "delayed", "leased"]
"""The state of a message that a subscription has not settled."""


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A message that a subscription has not settled, as `look` shows it.

    `attempt` counts how often it was handed out. `deadline` and `member` (`pull`: it was pulled) are set
    while it is leased, `due_at` while it is delayed. `waits_for` is set while it waits: it is the message of
    its key that comes first.
    """

    subscription: str
    state: State
    attempt: int
    message: Message
    deadline: datetime | None = None
    due_at: datetime | None = None
    member: str | None = None
    waits_for: int | None = None
    last_error: str | None = None


def delivery_from(subscription: str, raw: Any) -> PulledDelivery:
    """A `PulledDelivery` from its JSON object. Raises `ProtocolError`."""
    try:
        receipt, deadline = raw.get("receipt"), raw.get("deadline")
        if (receipt is None) != (deadline is None):
            raise ValueError("a lease has a receipt and a deadline")
        message = message_from(raw["message"])
        attempt = int(raw["attempt"])
        return PulledDelivery(
            subscription, None if receipt is None else str(receipt), attempt, _moment(deadline), message
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a delivery: {raw!r:.200}") from error


def outstanding_from(subscription: str, raw: Any) -> Outstanding:
    """An `Outstanding` from its JSON object. Raises `ProtocolError`."""
    try:
        waits_for = raw.get("waits_for")
        return Outstanding(
            subscription=subscription,
            state=raw["state"],
            attempt=int(raw["attempt"]),
            message=message_from(raw["message"]),
            deadline=_moment(raw.get("deadline")),
            due_at=_moment(raw.get("due_at")),
            member=raw.get("member"),
            waits_for=None if waits_for is None else int(waits_for),
            last_error=raw.get("last_error"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a message of a subscription: {raw!r:.200}") from error


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def settled_from(raw: Any) -> Settled:
    """A `Settled` from its JSON object. Raises `ProtocolError`."""
    try:
        deadline, dead_letter = raw.get("deadline"), raw.get("dead_letter")
        return Settled(
            receipt=raw["receipt"],
            status=raw["status"],
            dead_letter=None if dead_letter is None else int(dead_letter),
            deadline=None if deadline is None else datetime.fromisoformat(deadline),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not the result of a receipt: {raw!r:.200}") from error


def pull(
    subscription: str,
    count: int,
    wait: float,
    on_gap: Callable[[Gap], object] | None = None,
    ack: Ack = "manual",
) -> Call[list[PulledDelivery]]:
    """Takes up to `count` deliveries, waiting `wait` seconds for the first. Reports the answer's gaps.

    Repeated after a lost answer it takes others: those of the lost answer come again when their leases end.
    With `auto` they were settled and are gone.
    """

    def decode(answer: Any) -> list[PulledDelivery]:
        if not isinstance(answer, dict) or not isinstance(answer.get("deliveries"), list):
            raise ProtocolError(f"not the answer to a pull: {answer!r:.200}")
        gaps = answer.get("gaps", [])
        if not isinstance(gaps, list):
            raise ProtocolError(f"not the gaps of a pull: {gaps!r:.200}")
        deliveries = [delivery_from(subscription, raw) for raw in answer["deliveries"]]
        for gap in [gap_from(raw) for raw in gaps]:
            tell(subscription, gap, on_gap)
        return deliveries

    body = json_body({"max": count, "wait": wait, **({} if ack == "manual" else {"ack": ack})})
    request = Request("POST", _path(subscription, "pull"), headers=SENDING, content=body, held_seconds=wait)
    return Call(request, lambda reply: decode(json_of(reply)))


def look(subscription: str, state: State | None, page_size: int) -> Call[Slice[Outstanding]]:
    """The messages that are not settled, by id."""

    def item(raw: Any) -> Outstanding:
        return outstanding_from(subscription, raw)

    return listing(_path(subscription, "messages"), "messages", item, {"state": state}, page_size)


def ack(subscription: str | None, receipts: Iterable[Receipt]) -> Call[list[Settled]]:
    """Settles the messages for good. If `subscription` is None, they may be of any, here and below."""
    return _settle(subscription, "ack", receipts, {})


def nack(
    subscription: str | None,
    receipts: Iterable[Receipt],
    delay: float | None = None,
    dead_letter: bool = False,
    reason: str | None = None,
) -> Call[list[Settled]]:
    """Gives the messages back. They come again after `delay` seconds, else as the backoff says."""
    said = {"delay": delay, "dead_letter": dead_letter or None, "reason": _storable(reason)}
    return _settle(subscription, "nack", receipts, said)


def release(
    subscription: str | None, receipts: Iterable[Receipt], delay: float | None = None
) -> Call[list[Settled]]:
    """Gives messages back that were not worked on, as if they had not been handed out. They come again at
    once, or after `delay` seconds."""
    return _settle(subscription, "release", receipts, {"delay": delay})


def extend(
    subscription: str | None, receipts: Iterable[Receipt], ack_wait: float | None = None
) -> Call[list[Settled]]:
    """Moves the deadlines to `ack_wait` seconds from now; the default is the subscription's `ack_wait`."""
    return _settle(subscription, "extend", receipts, {"ack_wait": ack_wait})


def receipt_of(receipt: Receipt) -> str:
    """The text by which the service knows a lease. Raises `ValueError` for a delivery that was settled when
    it was handed out."""
    text = receipt if isinstance(receipt, str) else receipt.receipt
    if text is None:
        raise ValueError("it was settled when it was handed out: there is nothing left to settle")
    return text


def reason_of(error: BaseException) -> str:
    """The reason that a nack gives for an exception."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _storable(reason: str | None) -> str | None:
    """The text cut to its limit, without characters that the service refuses in JSON."""
    if reason is None:
        return None
    shown = reason.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return shown[:MAX_REASON_CHARACTERS]


def _settle(
    subscription: str | None, verb: str, receipts: Iterable[Receipt], said: dict[str, Any]
) -> Call[list[Settled]]:
    asked = [receipt_of(receipt) for receipt in receipts]

    def decode(answer: Any) -> list[Settled]:
        if not isinstance(answer, dict) or not isinstance(answer.get("results"), list):
            raise ProtocolError(f"not the answer to {verb}: {answer!r:.200}")
        results = [settled_from(raw) for raw in answer["results"]]
        if [result.receipt for result in results] != asked:
            raise ProtocolError(f"the answer to {verb} is about other receipts than were sent")
        return results

    given = {name: value for name, value in said.items() if value is not None}
    where = path(verb) if subscription is None else _path(subscription, verb)
    return asking("POST", where, decode, {"receipts": asked, **given})


def _path(subscription: str, verb: str) -> str:
    return path("subscriptions", subscription, verb)
