"""Calls for history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypedDict

from gapless._call import (
    JSON,
    Call,
    Params,
    Request,
    Slice,
    asking,
    json_of,
    params_from,
    path,
)
from gapless._calls.listing import listing
from gapless._calls.subscription import Changes
from gapless._errors import ProtocolError
from gapless._models import Message, Page, gap_from, message_from
from gapless._retry import Reply
from gapless._start import Last, Start, parameters_of

View = Literal["log", "latest"]
"""The messages as they came, or originals only, as they are after all changes."""


class HistoryOptions(TypedDict, total=False):
    """Which messages of a history: those behind `start`, with ids below `before`, these types and these keys.

    `start` is an id, `earliest` (the default), or a time: an aware datetime, RFC 3339, or an age such as
    `10m`, `2h`, `1d`. With the `order` `desc` it is where reading ends. `changes`: with the messages that
    change others (`all`, the default), without them (`none`) or `only` them. With the `view` `latest` they
    are `Original`s, as they are after all changes; `changed_after`: only those that a message after this id
    changed.
    """

    start: Start | None
    before: int | None
    types: Sequence[str] | None
    keys: Sequence[str] | None
    changes: Changes | None
    view: View
    changed_after: int | None
    order: Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """A query of a channel's history that can be resumed behind any message."""

    channel: str
    after: int | None = None
    before: int | None = None
    since: datetime | str | None = None
    types: Sequence[str] | None = None
    keys: Sequence[str] | None = None
    changes: Changes | None = None
    view: View = "log"
    changed_after: int | None = None
    order: Literal["asc", "desc"] = "asc"

    @classmethod
    def of(cls, channel: str, *, start: Start | None = None, **options: Any) -> HistoryQuery:
        """The query for the options of `history`. Raises `ValueError` for a start that a history has not."""
        if start == "latest" or isinstance(start, Last):
            raise ValueError(
                f"a history has no start at {start!r}: for the newest, read it with order='desc'"
            )
        given = parameters_of(start)
        return cls(channel, after=given.get("after"), since=given.get("since"), **options)

    @property
    def where(self) -> str:
        return path("channels", self.channel, "messages")

    def params(self, limit: int | None) -> Params:
        """The query's parameters; without a limit the service streams everything."""
        return params_from(
            {
                "after": self.after,
                "before": self.before,
                "since": self.since,
                "type": self.types,
                "key": self.keys,
                "changes": self.changes,
                "limit": limit,
                "view": None if self.view == "log" else self.view,
                "changed_after": self.changed_after,
                "order": self.order,
            }
        )

    def past(self, message_id: int) -> HistoryQuery:
        """The same query from behind this message."""
        return replace(self, after=message_id) if self.order == "asc" else replace(self, before=message_id)

    def is_past(self, message_id: int) -> bool:
        """Whether this message was given out already: the query now starts behind it."""
        if self.order == "asc":
            return self.after is not None and message_id <= self.after
        return self.before is not None and message_id >= self.before


def history_pages(query: HistoryQuery, page_size: int) -> Call[Slice[Page]]:
    """The pages of a channel's history; `page_size` is in messages, up to 1000."""

    def decode(reply: Reply) -> Slice[Page]:
        page = _page(json_of(reply))
        if not page.has_more:
            return Slice((page,) if page.messages else (), None)
        if query.is_past(page.cursor) and page.lost is None:
            raise ProtocolError(f"the next page of history begins at {page.cursor} again")
        return Slice((page,), history_pages(query.past(page.cursor), page_size))

    return Call(Request("GET", query.where, query.params(page_size), JSON), decode)


def get_message(channel: str, message_id: int, view: View) -> Call[Message]:
    """One message by its id."""
    params = params_from({"view": None if view == "log" else view})
    return asking("GET", path("channels", channel, "messages", message_id), message_from, params=params)


def changes_of(channel: str, message_id: int, kind: Literal["versions", "replies"]) -> Call[Slice[Message]]:
    """A message's versions or the replies to it, as they came."""
    where = path("channels", channel, "messages", message_id, kind)
    return listing(where, "messages", message_from, {}, 100)


def _page(answer: Any) -> Page:
    if not isinstance(answer, dict) or not isinstance(answer.get("messages"), list):
        raise ProtocolError(f"not a page of history: {answer!r:.200}")
    messages = tuple(message_from(raw) for raw in answer["messages"])
    cursor = answer.get("cursor")
    if not isinstance(cursor, int):
        cursor = messages[-1].id if messages else 0
    gap = answer.get("gap")
    lost = None if gap is None else gap_from(gap).ids
    return Page(messages, bool(answer.get("has_more")), cursor, lost, answer.get("head"))
