"""Who asks, from what a request brings."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from starlette.types import Scope

from app.http.principals import OPEN, Principals
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.key import Key, digest_of, read_key, written
from subscriptions.domain.principal import Action, Grant, Lifetime, Principal
from subscriptions.ports import Credentials

SECRET = b"\xab" * 32
GRANTS = (Grant(frozenset({Action.PUBLISH}), ("a.>",)),)


def key(id_: str = "a" * 12, *, expires_at_us: int | None = None, secret: bytes = SECRET) -> Key:
    return Key(id_, "acme", "shop", digest_of(secret), GRANTS, False, 0, expires_at_us)


def sent(*headers: tuple[bytes, bytes], server: tuple[str, int] = ("127.0.0.1", 80)) -> Scope:
    return {"headers": [(b"host", b"x"), *headers], "server": server}


def bearer(text: str) -> Scope:
    return sent((b"authorization", b"Bearer " + text.encode()))


class Stored:
    """The keys as the database has them."""

    def __init__(self, *keys: Key) -> None:
        self.now = Credentials(bool(keys), 1, keys)
        self.asked = 0

    def set(self, *keys: Key, required: bool = True) -> None:
        self.now = Credentials(required, self.now.version + 1, keys)

    async def credentials(self, known: int | None = None) -> Credentials | None:
        self.asked += 1
        return None if known == self.now.version else self.now

    async def put(self, key: Key) -> int:
        raise AssertionError

    async def require_credentials(self) -> None:
        self.now = Credentials(True, self.now.version + 1, self.now.keys)

    async def delete(self, namespace: str | None, key_id: str) -> bool:
        raise AssertionError


class StoredTickets:
    """Tickets in memory."""

    def __init__(self) -> None:
        self._tickets: dict[bytes, Principal] = {}

    async def put(self, digest: bytes, holder: Principal, seconds: float) -> int:
        self._tickets[digest] = dataclasses.replace(holder, lifetime=Lifetime())
        return 0

    async def delete(self, digest: bytes) -> Principal | None:
        return self._tickets.pop(digest, None)


def refused(principals: Principals, scope: Scope) -> Code:
    with pytest.raises(GaplessError) as error:
        principals.of(scope)
    return error.value.code


async def test_an_open_installation_lets_everybody_in_and_believes_no_credential() -> None:
    stored = Stored()
    principals = Principals("default", lambda: 0, OPEN)
    principals.bind(stored, StoredTickets())
    await principals.look()
    assert principals.of(sent()) == Principal("default")
    scope = bearer(written("a" * 12, SECRET))
    assert principals.of(scope) is None  # Another process may have made the first key.
    with pytest.raises(GaplessError, match="no keys were made here"):
        await principals.find(scope)
    assert refused(principals, bearer("what is no key needs no look")) is Code.UNAUTHENTICATED
    stored.set(key())
    assert await principals.find(scope) == Principal("acme", "shop", GRANTS)


@pytest.mark.parametrize("scope", [sent(), bearer(written("a" * 12, SECRET))])
async def test_nobody_is_known_before_the_keys_are(scope: Scope) -> None:
    principals = Principals("default", lambda: 0)
    assert principals.required
    assert principals.of(scope) is None
    with pytest.raises(GaplessError) as refusal:
        await principals.find(scope)
    assert refusal.value.code is Code.UNAVAILABLE


def test_a_key_is_who_it_was_made_for() -> None:
    principals = Principals("default", lambda: 0, Credentials(True, 1, (key(),)))
    assert principals.of(bearer(written("a" * 12, SECRET))) == Principal("acme", "shop", GRANTS)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic YTpi",
        b"Bearer x",
        b"Bearer gapless_" + b"a" * 12,
        b"Bearer gapless_" + b"a" * 12 + b"_" + b"0" * 64,
        b"Bearer gapless_" + b"a" * 12 + b"_" + SECRET.hex().upper().encode(),
        b"Bearer " + written("A" * 12, SECRET).encode(),
        b"Bearer " + written("a" * 12, SECRET).encode() + b"0",
        b"Bearer \xff\xfe",
    ],
)
def test_what_is_no_key_is_refused(value: bytes) -> None:
    principals = Principals("default", lambda: 0, Credentials(True, 1, (key(),)))
    assert refused(principals, sent((b"authorization", value))) is Code.UNAUTHENTICATED


def test_two_credentials_are_refused() -> None:
    principals = Principals("default", lambda: 0, Credentials(True, 1, (key(),)))
    assert (
        refused(principals, sent(*bearer(written("a" * 12, SECRET))["headers"][1:] * 2))
        is Code.UNAUTHENTICATED
    )
    assert refused(principals, sent((b"x-api-key", b"x"))) is Code.UNAUTHENTICATED


async def test_a_key_that_another_process_made_is_found() -> None:
    stored = Stored(key())
    principals = Principals("default", lambda: 0)
    principals.bind(stored, StoredTickets())
    await principals.look()
    stored.set(key(), key("b" * 12, secret=b"t" * 32))
    scope = bearer(written("b" * 12, b"t" * 32))
    assert principals.of(scope) is None
    assert (await principals.find(scope)).namespace == "acme"


async def test_unknown_keys_do_not_make_it_ask_each_time() -> None:
    stored = Stored(key())
    principals = Principals("default", lambda: 0)
    principals.bind(stored, StoredTickets())
    await principals.look()
    before = stored.asked
    found = await asyncio.gather(
        *[principals.find(bearer(written(f"{n:012}", SECRET))) for n in range(500)], return_exceptions=True
    )
    assert all(isinstance(one, GaplessError) and one.code is Code.UNAUTHENTICATED for one in found)
    assert stored.asked - before <= 2


async def test_what_a_key_opened_ends_with_it() -> None:
    now = [0]
    stored = Stored(key(), key("b" * 12), key("c" * 12, expires_at_us=10))
    principals = Principals("default", lambda: now[0])
    principals.bind(stored, StoredTickets())
    await principals.look()
    ended: list[str] = []
    holders = {}
    for letter in "abc":
        holder = holders[letter] = principals.of(bearer(written(letter * 12, SECRET)))
        assert holder is not None
        holder.lifetime.watch(lambda letter=letter: ended.append(letter))  # type: ignore[misc]
    stored.set(key(), key("c" * 12, expires_at_us=10))
    await principals.look()
    assert ended == ["b"]
    assert principals.of(bearer(written("a" * 12, SECRET))) is holders["a"]
    now[0] = 10
    assert principals.of(bearer(written("c" * 12, SECRET))) is None
    assert ended == ["b", "c"]


async def test_a_key_that_means_something_else_now_ends_what_it_opened() -> None:
    """As after a restore: the same id with other grants."""
    stored = Stored(key())
    principals = Principals("default", lambda: 0)
    principals.bind(stored, StoredTickets())
    await principals.look()
    scope = bearer(written("a" * 12, SECRET))
    before = principals.of(scope)
    assert before is not None
    stored.set(dataclasses.replace(key(), grants=()))
    await principals.look()
    assert before.lifetime.over
    assert principals.of(scope) == Principal("acme", "shop", ())


async def test_the_first_key_ends_what_nobody_opened_and_losing_it_opens_nothing() -> None:
    stored = Stored()
    principals = Principals("default", lambda: 0)
    principals.bind(stored, StoredTickets())
    await principals.look()
    anybody = principals.of(sent())
    assert anybody is not None
    ended: list[str] = []
    with anybody.lifetime.watched(lambda: ended.append("stream")):
        stored.set(key())
        await principals.look()
        assert ended == ["stream"]
    assert refused(principals, sent()) is Code.UNAUTHENTICATED
    stored.set()
    await principals.look()
    assert refused(principals, sent()) is Code.UNAUTHENTICATED
    stored.set(required=False)
    await principals.look()
    again = principals.of(sent())
    assert again == anybody
    assert again is not None
    assert not again.lifetime.over
    anybody.lifetime.watch(lambda: ended.append("late"))
    assert ended == ["stream", "late"]


def test_a_key_is_written_and_read() -> None:
    assert read_key(written("a1b2c3d4e5f6", SECRET)) == ("a1b2c3d4e5f6", SECRET)
    assert "digest" not in repr(key())


@pytest.mark.parametrize(
    "server", [("127.0.0.1", 80), ("::1", 80), ("::ffff:127.0.0.1", 80), ("/run/x", None)]
)
def test_without_keys_this_machine_is_served(server: tuple[str, int]) -> None:
    assert Principals("default", lambda: 0, OPEN).of(sent(server=server)) == Principal("default")


@pytest.mark.parametrize("server", [("192.0.2.7", 80), ("2001:db8::7", 80), ("gapless.example.org", 80)])
def test_without_keys_other_machines_are_not(server: tuple[str, int]) -> None:
    """`GAPLESS_ALLOW_ANONYMOUS` lets them in, and has no effect once there is a key."""
    scope = sent(server=server)
    assert refused(Principals("default", lambda: 0, OPEN), scope) is Code.FORBIDDEN
    assert Principals("default", lambda: 0, OPEN).of(scope, needed=False) == Principal("default")
    for anywhere, after in ((False, Code.FORBIDDEN), (True, None)):
        principals = Principals("default", lambda: 0, OPEN, anywhere=anywhere)
        principals.learn(Credentials(True, 2, (key(),)))
        assert refused(principals, scope) is Code.UNAUTHENTICATED
        assert principals.of({**bearer(written("a" * 12, SECRET)), "server": server}) is not None
        principals.learn(Credentials(False, 3, ()))
        if after is None:
            assert principals.of(scope) == Principal("default")
        else:
            assert refused(principals, scope) is after


def test_any_host_is_good_only_while_a_key_is_known_to_be_needed() -> None:
    principals = Principals("default", lambda: 0)
    assert (principals.required, principals.known_required) == (True, False)
    principals.learn(Credentials(True, 2, (key(),)))
    assert principals.known_required
    principals.learn(Credentials(False, 3, ()))
    assert not principals.known_required


async def test_a_ticket_opens_once_what_its_holder_may_and_ends_with_the_key() -> None:
    stored = Stored(key())
    principals = Principals("default", lambda: 0)
    principals.bind(stored, StoredTickets())
    await principals.look()
    holder = principals.of(bearer(written("a" * 12, SECRET)))
    assert holder is not None
    ticket, _ = await principals.give_ticket(dataclasses.replace(holder, grants=()), 30)
    spare, _ = await principals.give_ticket(holder, 30)
    found = await principals.with_ticket(ticket)
    assert (found.namespace, found.subject, found.grants) == ("acme", "shop", ())
    for used in (ticket, "never given"):
        with pytest.raises(GaplessError) as refusal:
            await principals.with_ticket(used)
        assert refusal.value.code is Code.UNAUTHENTICATED
    stored.set()
    await principals.look()
    assert found.lifetime.over
    with pytest.raises(GaplessError, match="expired or was revoked"):
        await principals.with_ticket(spare)


async def test_a_ticket_of_nobody_is_good_while_nobody_is_asked() -> None:
    stored = Stored()
    principals = Principals("default", lambda: 0)
    principals.bind(stored, StoredTickets())
    await principals.look()
    anybody = principals.of(sent())
    assert anybody is not None
    first, second = [(await principals.give_ticket(anybody, 30))[0] for _ in range(2)]
    found = await principals.with_ticket(first)
    assert found == anybody
    assert found.lifetime is anybody.lifetime
    stored.set(key())
    await principals.look()
    with pytest.raises(GaplessError, match="credentials are needed now"):
        await principals.with_ticket(second)


async def test_whoever_sends_a_credential_later_is_a_stranger_only_once_one_is_known_to_be_needed() -> None:
    """Until the keys are known a client waits: refused, it would not come again."""
    stored = Stored()
    principals = Principals("default", lambda: 0)
    principals.bind(stored, StoredTickets())
    assert principals.of(sent(), later=True) is None
    assert await principals.find(sent(), later=True) == Principal("default")
    stored.set(key())
    await principals.look()
    found = principals.of(sent(), later=True)
    assert found is not None
    assert found.is_stranger
    assert await principals.find(sent(), later=True) is found
    assert refused(principals, sent()) is Code.UNAUTHENTICATED


def test_a_stored_credential_is_good_as_long_as_the_key_or_the_token() -> None:
    now_us = 0
    found = Credentials(True, 1, (key("a" * 12, expires_at_us=50),))
    principals = Principals("default", lambda: now_us, found)
    assert principals.is_good("a" * 12, 50)
    assert not principals.is_good("b" * 12, None)
    assert principals.is_good(None, 20)
    now_us = 20
    assert not principals.is_good(None, 20)
    principals.learn(Credentials(True, 2, ()))
    assert not principals.is_good("a" * 12, 50)
    principals.learn(Credentials(False, 3, ()))
    assert principals.is_good("a" * 12, 50)


@pytest.mark.parametrize("in_header", [True, False])
def test_a_key_that_was_checked_ends_at_its_time_and_with_its_revocation(*, in_header: bool) -> None:
    now_us = 0
    lasting, ending = key("a" * 12), key("b" * 12, expires_at_us=50)
    principals = Principals("default", lambda: now_us, Credentials(True, 1, (lasting, ending)))

    def read() -> list[Principal | None]:
        texts = [written(each.id, SECRET) for each in (lasting, ending)]
        return [principals.of(bearer(text)) if in_header else principals.of_text(text) for text in texts]

    first = read()
    assert read() == first == [lasting.principal(), ending.principal()]
    now_us = 50
    assert read() == [first[0], None]
    principals.learn(Credentials(True, 2, (ending,)))
    assert read() == [None, None]
    with pytest.raises(GaplessError):
        Principals("default", lambda: 0, Credentials(True, 1, (lasting,))).of_text(
            written("a" * 12, b"x" * 32)
        )
