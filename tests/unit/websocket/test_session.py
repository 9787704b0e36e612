"""What a session does for a client that is gone."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import warnings
from typing import Any

import msgspec
import pytest

from app.faces.acks import Acks
from app.faces.deliveries import MemberDependencies
from app.faces.websocket.consuming import Queues
from app.faces.websocket.framing import FRAMES
from app.faces.websocket.session import Parts, Session
from app.faces.websocket.sessions import MAX_STRANGERS, Sessions
from app.http.principals import OPEN, Principals
from app.message.message import encode_message
from app.message.receipts import ReceiptCodec
from load.websocket import Messages
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.key import written
from subscriptions.domain.principal import Principal
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.gate import Gate
from subscriptions.engine.presence import OPEN_TIMEOUT_S
from subscriptions.engine.publisher import Publisher
from tests.contract.memory import MemoryHistory
from tests.contract.memory_bus import MemoryHub
from tests.engine.test_consumers import NS, Stage
from tests.patience import cancel
from tests.sim.loop import SeededLoop, run
from tests.unit.test_principals import SECRET, Stored, StoredTickets
from tests.unit.test_principals import key as key_of
from tests.unit.websocket.test_reader import World


class Connection:
    """A connection whose client takes everything."""

    def __init__(self) -> None:
        self.is_closing = False
        self.answered: list[int] = []
        self.said: list[dict[str, Any]] = []
        self._messages = Messages()

    def write(self, frames: bytes) -> None:
        for message in self._messages.feed(frames):
            said = [msgspec.json.decode(line) for line in message.split(b"\n")]
            self.said += said
            self.answered += [each["id"] for each in said if "id" in each]

    def write_chunk(self, frames: bytes) -> bool:
        raise AssertionError("nothing is published")

    def queue(self, size_bytes: int) -> None:
        raise AssertionError("nothing waits")

    async def taken(self) -> None:
        pass

    def close(self, code: int, reason: str) -> None:
        raise AssertionError(reason)


ANYBODY = Principals("default", lambda: 0, OPEN)


def parts(world: World, stage: Stage, principals: Principals = ANYBODY) -> Parts:
    codec, gate = ReceiptCodec(b"s" * 32), Gate()
    exchange = Exchange(world.engine, MemoryHub().open, now_us=lambda: 0)
    publisher = Publisher([], encode_message, lambda committed: None)
    members = MemberDependencies(stage.consumers, codec, world.reader)
    queues = Queues(members, Acks(stage.consumers, codec), gate)
    history = MemoryHistory(world.log)
    return Parts(world.engine, world.reader, publisher, exchange, history, world.presence, queues, principals)


class Opening(Connection):
    """A connection on which a session begins."""

    def begin(self, session: Session) -> None:
        self.session = session


class Closing(Opening):
    """One that tells with what it was closed."""

    closed: tuple[int, str] | None = None

    def close(self, code: int, reason: str) -> None:
        self.closed = code, reason
        self.session.dropped()


def test_a_session_in_a_subprotocol_that_is_not_read_ends_at_once() -> None:
    async def program() -> None:
        world, stage = World(loop, 1), Stage(loop)
        sessions = Sessions(parts(world, stage))
        for subprotocol, closed in (
            ("centrifuge-protobuf", (3501, "bad request")),
            ("centrifuge-json", None),
        ):
            connection: Any = Closing()
            sessions.open(connection, Principal(NS, "ann"), "", subprotocol=subprotocol)
            assert connection.closed == closed
            connection.session.dropped()
        assert repr(sessions) == "Sessions(0)"
        await cancel(world.running)
        await stage.consumers.stop()

    loop = SeededLoop(1)
    run(program(), loop=loop)


def test_clients_of_an_address_that_do_not_say_who_they_are_are_limited() -> None:
    scope = {"client": ("192.0.2.1", 1), "headers": []}
    other = {"client": ("192.0.2.2", 1), "headers": []}
    stranger, known = Principal(NS, grants=()), Principal(NS, "ann")

    async def program() -> None:
        world, stage = World(loop, 1), Stage(loop)
        sessions = Sessions(parts(world, stage))

        def begin(who: Principal) -> Session:
            connection: Any = Opening()
            sessions.open(connection, who, sessions.admit(who, scope))
            session: Session = connection.session
            return session

        begun = [begin(stranger) for _ in range(MAX_STRANGERS)]
        with pytest.raises(GaplessError) as refused:
            begin(stranger)
        assert refused.value.code is Code.RATE_LIMITED
        begin(known).dropped()
        assert sessions.admit(stranger, other) == "192.0.2.2"
        begun.pop().dropped()
        begun.append(begin(stranger))
        with pytest.raises(GaplessError):
            begin(stranger)
        # One that has connected has said who it is.
        begun[0].connected = True
        begun.append(begin(stranger))
        for session in begun:
            session.dropped()
        assert repr(sessions) == "Sessions(0)"
        assert not sessions._strangers
        await cancel(world.running)
        await stage.consumers.stop()

    loop = SeededLoop(1)
    run(program(), loop=loop)


CHANNEL = {"channel": "lobby"}
WAITING: list[list[dict[str, Any]]] = [
    [{"connect": {"subs": {"lobby": {}}}}],
    [{"connect": {}}, {"history": CHANNEL}, {"history": CHANNEL}],
    [{"connect": {}}, {"presence": CHANNEL}, {"presence_stats": CHANNEL}],
]


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("commands", WAITING)
def test_commands_of_a_client_that_left_in_the_same_turn_are_not_begun(
    commands: list[dict[str, Any]], leaves: bool
) -> None:
    """Each is answered while the client is there. None leaves a coroutine that nobody awaits."""
    connection = Connection()

    async def program() -> None:
        world, stage = World(loop, 1), Stage(loop)
        session = Session(connection, FRAMES, parts(world, stage), Principal(NS), lambda session: None)
        lines = [msgspec.json.encode({"id": n, **command}) for n, command in enumerate(commands, 1)]
        session.received(b"\n".join(lines))
        if leaves:
            session.dropped()
        await asyncio.sleep(2 * OPEN_TIMEOUT_S)
        assert session._replies.is_empty
        session.dropped()
        await cancel(world.running)
        await stage.consumers.stop()

    loop = SeededLoop(1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run(program(), loop=loop)
        gc.collect()
    assert [str(each.message) for each in warned] == []
    connects_only = len(commands) > 1
    assert len(connection.answered) == (connects_only if leaves else len(commands))


@pytest.mark.parametrize(("token", "codes"), [("a" * 12, [None, None]), ("b" * 12, [101, 101])])
def test_what_comes_with_a_connect_waits_until_its_credential_is_known(
    token: str, codes: list[int | None]
) -> None:
    """The official JavaScript client sends `connect` and its subscriptions in one message."""
    connection = Connection()
    key = dataclasses.replace(key_of(), namespace=NS, grants=None)

    async def program() -> None:
        world, stage = World(loop, 1), Stage(loop)
        principals = Principals(NS, lambda: 0)
        principals.bind(Stored(key), StoredTickets())
        own = parts(world, stage, principals)
        session = Session(connection, FRAMES, own, Principal(NS, grants=()), lambda session: None)
        commands = [{"connect": {"token": written(token, SECRET)}}, {"subscribe": {"channel": "lobby"}}]
        lines = [msgspec.json.encode({"id": n, **command}) for n, command in enumerate(commands, 1)]
        session.received(b"\n".join(lines))
        await asyncio.sleep(1)
        said = {each["id"]: each.get("error", {}).get("code") for each in connection.said if "id" in each}
        assert [said[1], said[2]] == codes
        session.dropped()
        await cancel(world.running)
        await stage.consumers.stop()

    loop = SeededLoop(1)
    run(program(), loop=loop)
