"""The rows of the table of routes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from app.http.parameters import read_number
from app.http.request import JSON, Answer, Request
from subscriptions.domain.names import check_channel
from subscriptions.domain.principal import Action, Noun, Principal

Handler = Callable[..., Awaitable[Answer | None]]
"""Takes a request and dependencies. Returns an answer, or sends one itself and returns None."""

Bound = Callable[[Request[Any]], Awaitable[Answer | None]]
"""A handler that has its dependencies."""

_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Header:
    """A header of requests or answers, for the documents. The code that reads or writes it checks it."""

    name: str
    description: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body by media type: structs and unions of them. `example` is a JSON value."""

    forms: Mapping[str, Any]
    required: bool = True
    example: Any = None


@dataclass(frozen=True, slots=True)
class Returns:
    """An answer of a status: its description, and its body by media type; no media type is no body."""

    says: str
    forms: Mapping[str, Any] = field(default_factory=dict)
    headers: Sequence[Header] = ()


class Names(Enum):
    """On which names a request needs an action."""

    IN_PATH = "the name in the path"
    ASKED = "each name in the query or the body; the handler requires them"
    ALL = "every name in the namespace"
    NONE = "no name: a good credential is enough, whatever it grants"


@dataclass(frozen=True, slots=True)
class Needs:
    """What the credential of a request has to grant: one of the actions, on these names; or it has to be an
    operator's. Without both, and not with `Names.NONE`: nothing, anybody may ask. `later`: it may also come
    with the first command of a session, and who sends none may do nothing in it."""

    actions: tuple[Action, ...] = ()
    names: Names = Names.ALL
    nouns: tuple[Noun, ...] = (Noun.CHANNEL, Noun.SUBSCRIPTION)
    operator: bool = False
    later: bool = False
    nothing: bool = field(init=False)
    """Whether anybody may ask."""

    def __post_init__(self) -> None:
        free = not self.actions and not self.operator and self.names is not Names.NONE
        object.__setattr__(self, "nothing", free)

    def require(self, principal: Principal, name: str) -> None:
        """Raises `forbidden`. `name` is that in the path."""
        if self.operator:
            principal.require_operator()
        if not self.actions or (self.later and principal.is_stranger):
            return
        if self.names is Names.ASKED:
            principal.require_any(self.actions)
        else:
            for noun in self.nouns:
                principal.require(self.actions, noun, (name if self.names is Names.IN_PATH else ">",))


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A row of the table. The handler's docstring describes the route, and its name is the operation's name.

    `query` is the struct of the parameters. `face` is the label under which metrics count it. A `hot` one is
    asked at every message, so it is answered before the framework looks at it. A row that `takes_connection`
    opens a WebSocket on it, without the framework, so no middleware sees it.
    """

    method: str
    path: str
    handler: Handler
    needs: Needs
    returns: Mapping[int, Returns]
    query: type[Any] | None = None
    body: Body | None = None
    headers: Sequence[Header] = ()
    face: str = "rest"
    operation: str = ""
    hot: bool = False
    takes_connection: bool = False
    places: tuple[tuple[str, bool], ...] = field(init=False)
    """The placeholders in the path, each with whether it is a number."""
    methods: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        places = tuple((place, place.endswith("_id")) for place in _PLACE.findall(self.path))
        object.__setattr__(self, "places", places)
        streams = any("text/event-stream" in answer.forms for answer in self.returns.values())
        # A client can ask for the headers of a stream alone.
        object.__setattr__(self, "methods", (self.method, "HEAD") if streams else (self.method,))

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.operation or self.handler.__name__

    @property
    def text(self) -> tuple[str, str]:
        """The description of the route: its first sentence, and the whole text."""
        whole = inspect.getdoc(self.handler) or ""
        summary = re.split(r"[.:]\s", whole.replace("\n", " ") + " ", maxsplit=1)[0].rstrip(".")
        return summary, whole

    def bind(self, dependencies: object) -> Bound:
        """The handler with its dependencies: the members with the names of its parameters."""
        names = list(inspect.signature(self.handler).parameters)[1:]
        return partial(self.handler, **{name: getattr(dependencies, name) for name in names})

    def read_path(self, found: Sequence[str]) -> tuple[str, int, str]:
        """The name, the number and the name of a marker at its placeholders; empty and 0 if it has none.
        Raises `invalid_request`."""
        name, number, marker = "", 0, ""
        for (place, is_number), text in zip(self.places, found, strict=True):
            if is_number:
                number = read_number(text, place)
            elif place == "marker":
                marker = check_channel(text, place)
            else:
                name = check_channel(text, place)
        return name, number, marker


def json_body(form: Any, example: Any, *, required: bool = True) -> Body:
    """A body that is JSON only."""
    return Body({JSON: form}, required, example)


def returns(says: str, form: Any, *headers: Header) -> Returns:
    """An answer that is JSON only."""
    return Returns(says, {JSON: form}, headers)
