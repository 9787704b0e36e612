"""Presence in Redis: who is on a channel, over all processes.

For each channel and process there is a sorted set of the process's clients on it, and a set of their users.
Only that process writes them, and they expire soon after it stops to renew them. For each channel a sorted
set names these processes. A page is a merge of the processes' sets by the ids of the clients.

At any time Redis may be away, slow or emptied, and others may write to it. What a process has shown is
compared with what it holds at each beat, and written again if it differs. A connection that fails is opened
again, and all is written again.

One more sorted set names the processes that have no place for all of their clients, so that no answer passes
for complete meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from prometheus_client import Counter
from redis.exceptions import RedisError, ResponseError

from cache.keeping import Keeper, close, end_if_cancelled
from cache.link import Address, Link, LinkError
from cache.presence_members import PROCESS, Command, added, client_of, heard_with, member, parts, said_with
from cache.processes import Processes
from cache.rounds import MAX_ARGUMENTS, Rounds, refuse_errors
from subscriptions.domain.errors import GaplessError, unavailable
from subscriptions.domain.presence import Channel, ClientInfo, Clients
from subscriptions.ports import PresencePage, PresenceStats

log = logging.getLogger(__name__)

RECONNECT_S = 1.0
GATHER_S = 0.1
"""Joins and leaves are gathered for this long, unless somebody asks."""
PING_EVERY_S = 1.0
"""How often the process says that it lives, and looks who else does; after a tenth of the expiry, if that is
less."""
LOST_AFTER: Final = 0.4
"""After this part of the expiry without a sign of life a process counts as lost. It renewed what it has shown
a third of the expiry before that sign, or a beat longer, so there is time to read it."""
BEATS: Final = 3
"""The process renews its keys so often before they would expire."""
FORGET_AFTER_S: Final = 300
"""A process that did not renew for this long is not named any more. The clocks of processes may differ."""
FLUSH_TIMEOUT_S = 2.0
MAX_READING = 1000
"""Questions at once; more are refused. Those that are alike come as one."""
MAX_TOGETHER: Final = 64
"""Questions that are asked together; the others wait. What is found is held for each."""
DEADLINE_S = 5.0
"""A question waits so long for its turn, and then for Redis, or is refused."""
MAX_CHANGED: Final = 1000
"""Joins and leaves of a channel that are gathered; beyond that the channel is written as a whole."""
RENEWED_AT_ONCE: Final = 40
"""Channels that are renewed together, with about six commands each; for the same reason no more."""
MAX_PROCESSES: Final = 256
PROCESSES_AT_ONCE: Final = 16
MAX_UNION: Final = 100_000
"""Above this many users of all processes, one who is in several processes counts several times."""
UNION_EXPIRES_S: Final = 5

FAILED = Counter(
    "gapless_presence_unavailable_total",
    "Questions about presence that Redis did not answer, or not in time.",
)
CROWDED = Counter(
    "gapless_presence_crowded_total", "Questions about presence refused because too many were asked at once."
)
REWRITTEN = Counter(
    "gapless_presence_rewritten_total", "Channels whose clients were written to Redis again, as a whole."
)


class RedisPresence:
    """Implements `PresencePort`. `topic` begins the names of all keys; they expire `expiry_s` seconds after
    the process renewed them last. `process` names this one: 16 hexadecimal digits."""

    def __init__(self, url: str, topic: str, process: str, clients: Clients, expiry_s: float) -> None:
        self._address = Address(url)
        self._topic = topic
        self._clients = clients
        self._expiry_ms = str(int(expiry_s * 1000))
        self._beat_s = expiry_s / BEATS
        self._process = process
        self._ping_every_s = min(PING_EVERY_S, expiry_s / 10)
        self._check_at = 0.0
        self._others = Processes(topic, process, LOST_AFTER * expiry_s)
        self._changed: dict[Channel, dict[str, ClientInfo]] = {}
        self._whole: set[Channel] = set()
        self._written: dict[Channel, tuple[int, int]] = {}
        """How many clients and users each channel has in Redis, as this process has written them."""
        self._written_hides: bool | None = None
        """Whether Redis says that this process hides clients; None: that is not known."""
        self._asked = asyncio.Event()
        self._flushed: list[asyncio.Future[None]] = []
        self._rounds = Rounds(self._address, _away)
        self._places = asyncio.Semaphore(MAX_TOGETHER)
        self._reading = 0
        self._writing = False
        self._tried = asyncio.Event()
        self.connected = False

    def __repr__(self) -> str:
        return f"RedisPresence({'connected' if self.connected else 'away'}, {len(self._written)} channels)"

    # --- showing the clients of this process

    def changed(self, channel: Channel, client: ClientInfo) -> None:
        """Note that the client joined or left."""
        if not self._writing or channel in self._whole:
            return  # It is written with all others.
        changed = self._changed.setdefault(channel, {})
        changed[client.id] = client
        if len(changed) > MAX_CHANGED:
            del self._changed[channel]
            self._whole.add(channel)

    async def run(self) -> None:
        """Write until cancelled."""
        keeper = Keeper(log, "presence cannot be shown")
        try:
            while True:
                await keeper.use_one(self._address, self._write_over, self._ended)
                await asyncio.sleep(RECONNECT_S)
        finally:
            await self._rounds.close()

    async def remove(self) -> None:
        """Delete the keys of this process."""
        with suppress(RedisError, OSError, TimeoutError, LinkError):
            link = await Link.open(self._address)
            try:
                async with asyncio.timeout(FLUSH_TIMEOUT_S):
                    await self._send(link, self._removals(list(self._written)))
                    await self._send(link, [*self._hiding(hides=False), *self._others.removal()])
            finally:
                await close(link)

    async def _write_over(self, link: Link) -> None:
        self._writing, self._written_hides = True, None
        self._changed.clear()
        self._whole.update(self._clients.channels, self._written)
        beat_at, self._check_at = _now() + self._beat_s, _now()
        while True:
            self._asked.clear()
            await self._check(link)
            await self._flush(link)
            self.connected = True
            self._tried.set()
            if _now() >= beat_at:
                await self._beat(link)
                beat_at = _now() + self._beat_s
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    await self._asked.wait()
            end_if_cancelled()

    async def _check(self, link: Link) -> None:
        """Say that this process lives, and look who else does, if it is time. Long work is no silence."""
        if self._writing and _now() >= self._check_at:
            await self._others.check(link)
            self._check_at = _now() + self._ping_every_s

    def _ended(self) -> None:
        self.connected = self._writing = False
        self._tried.set()
        flushed, self._flushed = self._flushed, []
        for future in flushed:
            if not future.done():
                future.set_exception(_away())

    async def _flush(self, link: Link) -> None:
        """Write what changed, and let go on who waits for it."""
        changed, self._changed = self._changed, {}
        whole, self._whole = self._whole, set()
        flushed, self._flushed = self._flushed, []
        try:
            if (hides := self._clients.hides) != self._written_hides:
                await self._send(link, self._hiding(hides=hides))
                self._written_hides = hides
            if changed or whole:
                await self._send(link, self._writes(changed, whole))
        except BaseException:
            self._flushed += flushed
            raise
        for future in flushed:
            if not future.done():
                future.set_result(None)

    def _writes(
        self, changed: dict[Channel, dict[str, ClientInfo]], whole: set[Channel]
    ) -> Iterator[Command]:
        for channel in whole.union(changed):
            counts = len(self._clients.of(channel)), len(self._clients.users(channel))
            if not counts[0]:
                yield from self._removals([channel])
                self._written.pop(channel, None)
                continue
            if channel in whole or channel not in self._written:
                if channel in self._written:
                    REWRITTEN.inc()
                yield from self._all_of(channel)
            else:
                yield from self._changes(channel, changed[channel].values())
            yield from self._renewal(channel, *counts)
            self._written[channel] = counts

    def _all_of(self, channel: Channel) -> Iterator[Command]:
        """Replace what is there in one step, so that no page shows a part of it."""
        processes, clients, users = self._keys(channel)
        held = self._clients.of(channel)
        for key, members in (
            (clients, [member(client) for client in held.values()]),
            (users, [user.encode() for user in self._clients.users(channel)]),
        ):
            if not members:
                yield ("DEL", key)
                continue
            new = f"{key}/new"
            yield ("DEL", new)
            for some in parts(members):
                yield added(new, some) if key == clients else ("SADD", new, *some)
            yield ("PEXPIRE", new, self._expiry_ms)
            yield ("RENAME", new, key)
        now = time.time()
        yield ("ZREMRANGEBYSCORE", processes, "-inf", f"({now - FORGET_AFTER_S:.0f}")

    def _changes(self, channel: Channel, changed: Iterable[ClientInfo]) -> Iterator[Command]:
        _, clients, users = self._keys(channel)
        held, held_users = self._clients.of(channel), self._clients.users(channel)
        joined: list[bytes] = []
        left: list[bytes] = []
        for client in changed:
            (joined if client.id in held else left).append(member(client))
        told = {client.counts_as for client in changed}
        come = {user.encode() for user in told if user in held_users}
        gone = {user.encode() for user in told} - come
        yield from (added(clients, some) for some in parts(joined))
        yield from (("ZREM", clients, *some) for some in parts(left))
        yield from (("SADD", users, *some) for some in parts(list(come)))
        yield from (("SREM", users, *some) for some in parts(list(gone)))

    def _renewal(self, channel: Channel, count: int, count_of_users: int) -> Iterator[Command]:
        processes, clients, users = self._keys(channel)
        yield ("ZADD", processes, heard_with(time.time(), count), self._process)
        yield ("PEXPIRE", processes, self._expiry_ms)
        yield ("PEXPIRE", clients, self._expiry_ms)
        if count_of_users:
            yield ("PEXPIRE", users, self._expiry_ms)

    def _removals(self, channels: list[Channel]) -> Iterator[Command]:
        for channel in channels:
            processes, clients, users = self._keys(channel)
            yield ("DEL", clients, users)
            yield ("ZREM", processes, self._process)

    def _hiding(self, *, hides: bool) -> Iterator[Command]:
        key, now = self._hiding_key, time.time()
        if not hides:
            yield ("ZREM", key, self._process)
            return
        yield ("ZREMRANGEBYSCORE", key, "-inf", f"({now - FORGET_AFTER_S:.0f}")
        yield ("ZADD", key, f"{now:.0f}", self._process)
        yield ("PEXPIRE", key, self._expiry_ms)

    async def _beat(self, link: Link) -> None:
        """Renew all keys, and find those that do not hold what was written: they are written again."""
        answers = await link.ask(list(self._hiding(hides=self._written_hides is True)))
        refuse_errors(answers)
        if any(isinstance(answer, ResponseError) for answer in answers):
            refuse_errors(await link.ask([("DEL", self._hiding_key)]))
            self._written_hides = None
        channels = list(self._written)
        for some in parts(channels, RENEWED_AT_ONCE):
            await self._flush(link)  # Neither joins nor questions wait until all is renewed.
            await self._check(link)
            asked: list[Command] = []
            ends: list[tuple[Channel, int, tuple[int, int]]] = []
            for channel in some:
                if (counts := self._written.get(channel)) is None:
                    continue
                _, clients, users = self._keys(channel)
                asked += [*self._renewal(channel, *counts), ("ZCARD", clients), ("SCARD", users)]
                ends.append((channel, len(asked), counts))
            answers, begin = await link.ask(asked), 0
            for channel, end, counts in ends:
                refuse_errors(answers[begin:end])
                if wrong := isinstance(answers[begin], ResponseError):
                    # The key of the processes is of another kind, which no process can repair otherwise.
                    refuse_errors(await link.ask([("DEL", self._processes_of(channel))]))
                if wrong or tuple(answers[end - 2 : end]) != counts:
                    self._whole.add(channel)
                    self._changed.pop(channel, None)
                begin = end
            await asyncio.sleep(0)

    async def _send(self, link: Link, commands: Iterable[Command]) -> None:
        """Send commands in bounded parts. Raises what Redis says, but for keys of another kind: the next beat
        finds them."""
        part: list[Command] = []
        size = 0
        for command in commands:
            part.append(command)
            size += len(command)
            if size >= MAX_ARGUMENTS:
                refuse_errors(await link.ask(part))
                part, size = [], 0
                await self._check(link)
        if part:
            refuse_errors(await link.ask(part))

    # --- processes that died

    async def lost(self) -> str:
        """The next process that died. Its clients are on no page any more."""
        return await self._others.next_gone()

    async def lost_clients(
        self, process: str, channels: Sequence[Channel], limit: int
    ) -> dict[Channel, list[ClientInfo]]:
        """Clients that the process had on these channels, at most `limit` of each. Raises `unavailable`."""
        asked: list[Command] = [
            ("ZRANGE", self._clients_of(c, process), "0", str(limit - 1)) for c in channels
        ]
        found: dict[Channel, list[ClientInfo]] = {}
        for channel, members in zip(channels, await self._rounds.ask(asked, len(asked) * limit), strict=True):
            if isinstance(members, list) and members:
                found[channel] = [client for client in map(client_of, members) if client is not None]
        return found

    async def doubt(self, process: str) -> None:
        """Tell a process, should it live, that its clients were said to have left. Raises `unavailable`."""
        await self._rounds.ask(self._others.doubting(process))

    def doubted(self) -> bool:
        """Whether others said that the clients of this process have left, since this was asked before."""
        doubted, self._others.doubted = self._others.doubted, False
        return doubted

    # --- asking about all processes

    async def opened(self) -> None:
        """Wait until the storage was reached, or the first try to reach it failed."""
        await self._tried.wait()

    async def page(self, channel: Channel, after: str, limit: int) -> PresencePage:
        """Clients of all processes. Raises `unavailable`."""
        async with self._turn():
            processes, complete = await self._processes(channel)
            lowest = f"({after}\x01" if after else "-"
            found: dict[str, ClientInfo] = {}
            has_more = False
            for some in parts(list(processes), PROCESSES_AT_ONCE):
                command = [lowest, "+", "LIMIT", "0", str(limit + 1)]
                keys = [self._clients_of(channel, process) for process in some]
                pages: list[Command] = [("ZRANGEBYLEX", key, *command) for key in keys]
                for members in await self._rounds.ask(pages, len(pages) * (limit + 1)):
                    if isinstance(members, ResponseError):  # Of another kind.
                        complete = False
                        continue
                    if not isinstance(members, list) or len(members) > limit + 1:
                        raise await self._broken(members)
                    has_more |= len(members) > limit
                    clients = [client for client in map(client_of, members) if client is not None]
                    complete &= len(clients) == len(members)
                    found |= {client.id: client for client in clients}
                if len(found) > limit:
                    has_more = True
                    found = dict(sorted(found.items())[: limit + 1])
        clients = [client for _, client in sorted(found.items())[:limit]]
        return PresencePage(clients, has_more and bool(clients), complete)

    async def stats(self, channel: Channel) -> PresenceStats:
        """Numbers of all processes. Raises `unavailable`."""
        async with self._turn():
            processes, complete = await self._processes(channel)
            clients = [self._clients_of(channel, process) for process in processes]
            users = [f"{key}/users" for key in clients]
            said = processes.values()
            asked: list[Command] = [("ZCARD", key) for key in clients]
            asked += [("SCARD", key) for key in users]
            answers = await self._rounds.ask(asked)
            complete &= not any(isinstance(answer, ResponseError) for answer in answers)
            counts = [n if isinstance(n, int) and n > 0 else 0 for n in answers]
            here = [(key, n) for key, n in zip(users, counts[len(clients) :], strict=True) if n]
            together = sum(n for _, n in here)
            if len(here) > 1 and together <= MAX_UNION:
                together = await self._union(channel, [key for key, _ in here])
        # Members that others have added are not counted, nor those that they have taken away.
        number = sum(min(n, count) if count else n for n, count in zip(counts, said, strict=False))
        return PresenceStats(number, together, complete)

    async def _union(self, channel: Channel, keys: list[str]) -> int:
        union = f"{self._keys(channel)[1]}/union"
        count, _ = await self._rounds.ask(
            [("SUNIONSTORE", union, *keys), ("EXPIRE", union, str(UNION_EXPIRES_S))]
        )
        return count if isinstance(count, int) else 0

    async def _processes(self, channel: Channel) -> tuple[dict[str, int | None], bool]:
        """The processes with clients on the channel, those heard last first, each with as many clients as it
        says it has, but none that died; and whether these are all and none hides clients."""
        heard = f"{time.time() - FORGET_AFTER_S:.0f}"
        found, hiding = await self._rounds.ask(
            [
                ("ZRANGE", self._processes_of(channel), "0", str(MAX_PROCESSES), "REV", "WITHSCORES"),
                ("ZRANGE", self._hiding_key, heard, "+inf", "BYSCORE", "LIMIT", "0", "1"),
            ]
        )
        complete = hiding == [] and not self._clients.hides
        if isinstance(found, ResponseError):
            return {}, False
        if not isinstance(found, list) or len(found) > 2 * (MAX_PROCESSES + 1):
            raise await self._broken(found)
        complete &= len(found) <= 2 * MAX_PROCESSES
        names = [each if isinstance(each, bytes) else b"" for each in found[: 2 * MAX_PROCESSES : 2]]
        counts = {n: said_with(score) for n, score in zip(names, found[1::2], strict=False)}
        known = {n.decode(): count for n, count in counts.items() if PROCESS.fullmatch(n)}
        return {name: count for name, count in known.items() if name not in self._others.gone}, complete

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait until what changed here is written, and until few enough others ask. Raises `unavailable`."""
        if not self.connected:
            FAILED.inc()
            raise _away()
        if self._reading >= MAX_READING:
            raise _crowded()
        self._reading += 1
        others_first = False
        try:
            async with asyncio.timeout(DEADLINE_S) as limit:
                await self.put_all()
                others_first = True
                async with self._places:
                    others_first = False
                    limit.reschedule(_now() + DEADLINE_S)
                    yield
        except GaplessError:
            FAILED.inc()
            raise
        except TimeoutError:
            if others_first:
                raise _crowded() from None
            FAILED.inc()
            raise _away() from None
        finally:
            self._reading -= 1

    async def put_all(self) -> None:
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushed.append(flushed)
        self._asked.set()
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await flushed
        except TimeoutError:
            raise _away() from None

    async def _broken(self, answer: object) -> GaplessError:
        await self._rounds.broken(answer)
        return _away()

    # --- keys

    def _keys(self, channel: Channel) -> tuple[str, str, str]:
        """Of the processes of a channel, of the clients of this process, and of their users."""
        clients = self._clients_of(channel, self._process)
        return self._processes_of(channel), clients, f"{clients}/users"

    @property
    def _hiding_key(self) -> str:
        """Of the processes that hide clients. Keys of channels have more slashes."""
        return f"{self._topic}/hiding"

    def _processes_of(self, channel: Channel) -> str:
        # No name has a slash in it.
        return f"{self._topic}/{channel[0]}/{channel[1]}"

    def _clients_of(self, channel: Channel, process: str) -> str:
        return f"{self._processes_of(channel)}/{process}"


def _now() -> float:
    return asyncio.get_running_loop().time()


def _away() -> GaplessError:
    return unavailable("presence needs Redis, which does not answer")


def _crowded() -> GaplessError:
    CROWDED.inc()
    return unavailable("too many questions about presence are asked at once")
