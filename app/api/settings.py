"""The settings of subscriptions: as they are sent, and as the plain JSON values that are stored.

All of them are checked here, from a definition, a policy or an import. They are stored in one form, so that
two spellings of one definition compare equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.faces.webhooks.secrets import WebhookSecrets
from app.faces.webhooks.signature import MAX_SECRET_CHARACTERS, check_secret
from app.faces.webhooks.url import MAX_URL_CHARACTERS, check_url
from app.message import limits
from app.message.json import number, plain
from subscriptions.domain.delivery import SUBSCRIPTION_SETTINGS, Settings
from subscriptions.domain.errors import GaplessError, invalid
from subscriptions.domain.names import MAX_NAME_CHARACTERS, check_channel
from subscriptions.domain.principal import Principal
from subscriptions.domain.selection import Changes

MAX_DELIVER: Final = 1_000_000
MAX_BACKOFFS: Final = 32
MAX_IN_FLIGHT: Final = 100_000
MAX_COUNT: Final = 2**53
CHANNEL: Final = "{channel}"
SUBSCRIPTION: Final = "{subscription}"

Ttl = Annotated[float, Meta(gt=0, le=limits.MAX_TTL_S)]


class Filter(msgspec.Struct, forbid_unknown_fields=True):
    """Only messages of these types and keys; an empty list allows all. `changes`: with the messages that
    change others, without them, or only them."""

    types: Annotated[list[limits.Type], Meta(max_length=limits.MAX_FILTERS)] | UnsetType | None = UNSET
    keys: Annotated[list[limits.Key], Meta(max_length=limits.MAX_FILTERS)] | UnsetType | None = UNSET
    changes: Changes | UnsetType | None = UNSET


class DeadLetterTo(msgspec.Struct, forbid_unknown_fields=True):
    """Where dead letters are also published; null: nowhere, even if a policy names a channel. `keep`: how
    many seconds they stay in the list of dead letters; true: until they are removed; false: only those stay
    that could not be published."""

    channel: limits.Name | None
    keep: bool | Ttl | UnsetType | None = UNSET


class SubscriptionSettings(msgspec.Struct, forbid_unknown_fields=True):
    """The settings of a subscription that a policy may also give. Times are in seconds."""

    ack_wait: Annotated[float, Meta(gt=0, le=limits.MAX_ACK_WAIT_S)] | UnsetType | None = UNSET
    max_deliver: Annotated[int, Meta(ge=0, le=MAX_DELIVER)] | UnsetType | None = UNSET
    backoff: (
        Annotated[list[Annotated[float, Meta(ge=0, le=limits.MAX_BACKOFF_S)]], Meta(max_length=MAX_BACKOFFS)]
        | UnsetType
        | None
    ) = UNSET
    max_in_flight: Annotated[int, Meta(ge=1, le=MAX_IN_FLIGHT)] | UnsetType | None = UNSET
    ordering: Literal["key", "channel", "none"] | UnsetType | None = UNSET
    message_ttl: Ttl | UnsetType | None = UNSET
    max_backlog: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | UnsetType | None = UNSET
    filter: Filter | UnsetType | None = UNSET
    dead_letter: DeadLetterTo | UnsetType | None = UNSET
    retain: bool | UnsetType | None = UNSET
    expires: Ttl | UnsetType | None = UNSET


class Push(msgspec.Struct, forbid_unknown_fields=True):
    """The URL that deliveries are posted to, and the secret that signs them. A change or an import may leave
    the secret out, to keep the present one."""

    url: Annotated[str, Meta(extra_json_schema={"maxLength": MAX_URL_CHARACTERS})]
    secret: (
        Annotated[str, Meta(extra_json_schema={"pattern": "^whsec_", "maxLength": MAX_SECRET_CHARACTERS})]
        | UnsetType
        | None
    ) = UNSET


def subscription_values(given: SubscriptionSettings) -> Iterator[tuple[str, Any]]:
    """The given settings as they are stored, with None for null. Raises `invalid_request`."""
    for name in SubscriptionSettings.__struct_fields__:
        value = getattr(given, name)
        if value is not UNSET:
            yield name, None if value is None else _KEPT.get(name, number)(value)


@dataclass(frozen=True, slots=True)
class PushRules:
    """How the setting `push` is checked and stored. `allow_private`: its URL may have an address that is not
    public. `by`: what is stored of who asks for it; it is pushed as long as their credential is good. Empty:
    it comes from a file, or no credential was needed."""

    allow_private: bool = False
    secrets: WebhookSecrets = field(default_factory=WebhookSecrets)
    by: Mapping[str, Any] = field(default_factory=dict)

    def of(self, principal: Principal) -> PushRules:
        """The same for what this principal asks."""
        if principal.subject is None:
            return self
        by = {"subject": principal.subject, "key": principal.key_id, "until_us": principal.expires_at_us}
        return replace(self, by={"by": by})


def push_value(given: Push, rules: PushRules, *, secret_required: bool) -> dict[str, Any]:
    """The setting `push` as it is stored. Raises `invalid_request`."""
    check_url(given.url, rules.allow_private)
    if given.secret is UNSET or given.secret is None:
        if secret_required:
            raise invalid("push.secret", "is required")
        return {"url": given.url, **rules.by}
    check_secret(given.secret)
    return {"url": given.url, "secret": rules.secrets.encrypt(given.secret), **rules.by}


def _backoff(given: list[float]) -> list[float]:
    # No waiting has one spelling, [0].
    return [number(seconds) for seconds in given] or [0]


def _filter(given: Filter) -> dict[str, Any]:
    kept: dict[str, Any] = {
        "types": _each("filter.types", given.types, limits.check_type),
        "keys": _each("filter.keys", given.keys, limits.check_key),
        "changes": None if given.changes in (UNSET, "all") else given.changes,
    }
    return {name: asked for name, asked in kept.items() if asked}


def _each(place: str, texts: list[str] | UnsetType | None, check: Callable[[str], str]) -> list[str]:
    if texts is UNSET or texts is None:
        return []
    for index, text in enumerate(texts):
        try:
            check(text)
        except GaplessError as error:
            raise invalid(f"{place}[{index}]", error.errors[0].message) from None
    return list(dict.fromkeys(texts))


def _dead_letter(given: DeadLetterTo) -> dict[str, Any]:
    """A channel name, or a template for the names of the failing channel and subscription. The result may be
    too long for a name: then the dead letter is not published there, and it says so."""
    template = given.channel
    if template is not None:
        if len(template) > MAX_NAME_CHARACTERS:
            raise invalid("dead_letter.channel", f"is longer than {MAX_NAME_CHARACTERS} characters")
        check_channel(template.replace(CHANNEL, "c").replace(SUBSCRIPTION, "s"), "dead_letter.channel")
    if given.keep is False and template is None:
        raise invalid("dead_letter.keep", "false needs a channel: else the message would be gone")
    if given.keep is True or given.keep is None or given.keep is UNSET:
        return {"channel": template}
    return {"channel": template, "keep": given.keep}


def dead_letters_of(template: str, subscription: str) -> str:
    """A name, or a pattern of all names, of the channels that a template gives for a subscription, or for all
    subscriptions that a pattern matches."""
    parts = template.replace(SUBSCRIPTION, subscription).split(".")
    for place, part in enumerate(parts):
        # The name of a channel may have several parts, and no pattern is about less than a part.
        if CHANNEL in part or ">" in part or ("*" in part and part != "*"):
            return ".".join([*parts[:place], ">"])
    return ".".join(parts)


_KEPT: Final[dict[str, Callable[[Any], Any]]] = {
    "backoff": _backoff,
    "ordering": str,
    "filter": _filter,
    "dead_letter": _dead_letter,
}


def shown_settings(settings: Settings) -> dict[str, Any]:
    """A subscription's settings in their order, without the secret and without settings that are not set."""
    shown = {name: settings[name] for name in SUBSCRIPTION_SETTINGS if settings.get(name) is not None}
    if "push" in shown:
        shown["push"] = {"url": shown["push"]["url"]}
    return {name: plain(value) for name, value in shown.items()}


def refuse_other_name(given: str | UnsetType | None, name: str) -> None:
    """A body may repeat the name in the path. Raises `invalid_request`."""
    if isinstance(given, str) and given != name:
        raise invalid("name", "is not the name in the path")
