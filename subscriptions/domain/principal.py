"""Who asks, and what they may do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.pattern import covers, intersect
from subscriptions.domain.word import Word


class Action(Word):
    """What a grant allows; the names are part of the protocol."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    CONSUME = "consume"
    MANAGE = "manage"
    MODERATE = "moderate"
    ADMIN = "admin"


class Noun(Word):
    """What an action is done to."""

    CHANNEL = "channel"
    SUBSCRIPTION = "subscription"


@dataclass(frozen=True, slots=True)
class Grant:
    """Actions on all channels and subscriptions whose names one of the (valid) patterns covers."""

    actions: frozenset[Action]
    channels: tuple[str, ...] = ()
    subscriptions: tuple[str, ...] = ()

    def patterns(self, noun: Noun) -> tuple[str, ...]:
        """Those for names of this noun."""
        return self.channels if noun is Noun.CHANNEL else self.subscriptions

    def covers(self, noun: Noun, name: str) -> bool:
        """Whether it is about everything that `name`, a name or a pattern, stands for."""
        return any(covers(pattern, name) for pattern in self.patterns(noun))


DECISIONS: Final = 128
"""Answers that a principal remembers at most."""


class Lifetime:
    """Whether a credential is still good. What goes on for longer than a request watches it."""

    __slots__ = ("_watchers", "over")

    def __init__(self) -> None:
        self.over = False
        self._watchers: dict[object, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"Lifetime({'over' if self.over else f'{len(self._watchers)} watch it'})"

    @property
    def watched_by_nobody(self) -> bool:
        """Whether nothing goes on that watches it."""
        return not self._watchers

    def watch(self, end: Callable[[], None]) -> Callable[[], None]:
        """Have `end` called when the credential ends; at once if it has ended. Returns what stops that."""
        watcher = object()
        if self.over:
            end()
        else:
            self._watchers[watcher] = end
        return lambda: self._watchers.pop(watcher, None) and None

    @contextmanager
    def watched(self, end: Callable[[], None]) -> Iterator[None]:
        """As `watch`, until the block ends."""
        stop = self.watch(end)
        try:
            yield
        finally:
            stop()

    def end(self) -> None:
        """The credential is not good any more."""
        self.over = True
        watchers, self._watchers = self._watchers, {}
        for end in watchers.values():
            end()


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the subject of a credential, in one namespace. `grants` None: everything in the namespace. An
    operator is an admin of all namespaces. `key_id`: the API key, if it is one."""

    namespace: str
    subject: str | None = None
    grants: tuple[Grant, ...] | None = None
    operator: bool = False
    expires_at_us: int | None = None
    key_id: str | None = field(default=None, compare=False)
    lifetime: Lifetime = field(default_factory=Lifetime, compare=False)
    _decided: dict[tuple[tuple[Action, ...], Noun, str], bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def is_stranger(self) -> bool:
        """Whether nobody knows who it is: it may do nothing but what anybody may."""
        return self.grants == () and self.subject is None

    def may(self, actions: tuple[Action, ...], noun: Noun, name: str) -> bool:
        """Whether a grant has one of the actions on all that `name`, a name or a pattern, stands for."""
        if self.grants is None:
            return True
        # Each request comes here, and clients repeat themselves.
        found = self._decided.get((actions, noun, name))
        if found is None:
            found = any(
                not grant.actions.isdisjoint(actions) and grant.covers(noun, name) for grant in self.grants
            )
            if len(self._decided) >= DECISIONS:
                self._decided.clear()
            self._decided[actions, noun, name] = found
        return found

    def require(self, actions: tuple[Action, ...], noun: Noun, names: Iterable[str]) -> None:
        """Raises `forbidden` about the first of the names on which none of the actions is granted."""
        if self.grants is None:
            return
        for name in names:
            if not self.may(actions, noun, name):
                raise forbidden(actions, f"{noun.value} {name}")

    def narrow(self, actions: tuple[Action, ...], noun: Noun, patterns: Iterable[str]) -> list[str]:
        """What the grants leave of these patterns, as patterns. Raises `forbidden` about one of which they
        leave nothing."""
        if self.grants is None:
            return list(patterns)
        grants = [grant for grant in self.grants if not grant.actions.isdisjoint(actions)]
        granted = [each for grant in grants for each in grant.patterns(noun)]
        left: dict[str, None] = {}
        for pattern in patterns:
            common = [found for each in granted if (found := intersect(each, pattern)) is not None]
            if not common:
                raise forbidden(actions, f"{noun.value} {pattern}")
            left |= dict.fromkeys(common)
        return list(left)

    def require_any(self, actions: tuple[Action, ...]) -> None:
        """Raises `forbidden` if none of the actions is granted on anything."""
        if self.grants is None or any(not grant.actions.isdisjoint(actions) for grant in self.grants):
            return
        raise forbidden(actions, "anything")

    def require_operator(self) -> None:
        """Raises `forbidden` unless it is one."""
        if not self.operator:
            raise GaplessError(Code.FORBIDDEN, "only an operator may do this")

    def require_grants(self, grants: Iterable[Grant]) -> None:
        """Raises `forbidden` about the first of these grants that is more than it has itself."""
        for grant in grants:
            for action in sorted(grant.actions):
                for noun in Noun:
                    self.require((action,), noun, grant.patterns(noun))

    def own_key(self, key: str | None) -> str | None:
        """An idempotency key as it is stored: two subjects with the same key do not meet. A key of a request
        has no line break, so no two keys are stored alike."""
        return key if key is None or self.subject is None else f"{self.subject}\n{key}"


def forbidden(actions: tuple[Action, ...], what: str) -> GaplessError:
    """The credential grants none of the actions on `what`."""
    wanted = " or ".join(action.value for action in actions)
    return GaplessError(Code.FORBIDDEN, f"the credential does not grant {wanted} on {what}")
