"""A small world of consumers for one seed: subscriptions in memory, processes of the service that share them,
members and pulls that come and go, are cancelled and die, and between them whatever may go wrong. `Consumers`
and the reaper are the real ones.

What must hold: nothing is leased to nobody for longer than a lease, and, once the faults have ended, not for
a moment; no stream is given more than it has room for; who was told that something is acked is told the
truth; a pull that waits for nothing sees what was there before it; everything is settled, each message once;
and whoever waits with nothing to do does next to nothing.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from subscriptions.domain.delivery import (
    Delivery,
    Nack,
    Receipt,
    Settled,
    Settlement,
    Subscription,
    Touched,
)
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, NewMessage
from subscriptions.domain.watermark import Watermark
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.durable.member import Member
from subscriptions.engine.durable.reaper import Reaper
from subscriptions.engine.gate import Gate
from subscriptions.engine.single_flight import SingleFlight
from tests.contract.memory import MemoryAppender, MemoryReader
from tests.contract.memory_deliveries import MemoryDeliveries
from tests.contract.memory_log import MemoryLog
from tests.contract.memory_queues import MemoryQueues, Queue
from tests.sim.loop import SeededLoop, run
from tests.sim.queue_faults import ACK_WAIT_S, AUDIT_S, BACK_S, IDLE_CLAIMS, IDLE_S, NAMESPACE, Faults
from tests.sim.world import BrokenPromiseError


class Process:
    """One worker, as the service wires it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.sessions: dict[asyncio.Task[None], None] = {}
        self.claims = 0
        self._watermark = Watermark()
        self._reader = MemoryReader(world.log, self._pause)
        self._tick = SingleFlight(self._reader.tick)
        self.port = MemoryDeliveries(world.queues, self._pause)
        skew_us = round(world.faults.skew_s * 1_000_000) if world.chance.random() < 0.5 else 0
        self.consumers = Consumers(
            self.port,
            self.port,
            clock=world.loop.time,
            now_us=lambda: world.log.now_us() + skew_us,
            read_watermark=self._look,
            touched=self.touched,
            tell=self._tell,
        )
        self.consumers.start()
        gate = Gate()
        gate.open(["default"])
        woken = lambda subscription_id: self.consumers.hear_settled([subscription_id], ())  # noqa: E731
        reaper = Reaper(self.port, gate, read_watermark=self._look, touched=self.touched, woken=woken)
        self.reaping = asyncio.create_task(reaper.run())

    async def _pause(self, step: str) -> None:
        """Of everything this process asks of the database."""
        world, faults = self.world, self.world.faults
        self.claims += step == "claim"
        await asyncio.sleep(world.chance.random() * faults.slow_s)
        if self.dead:
            world.graves.append(never := asyncio.get_running_loop().create_future())
            await never
        if not world.healed and world.chance.random() < faults.fail:
            raise GaplessError(Code.UNAVAILABLE, f"no {step} now")

    async def _look(self) -> tuple[int, int]:
        tick = await self._tick()
        self._watermark.observe(tick)
        return self._watermark.settled, tick.last_id

    def touched(self, touched: Iterable[Touched]) -> None:
        for t in touched:
            self.world.hint(self, lambda p, t=t: p.consumers.hear(t.namespace, t.channel, t.last_id))

    def _tell(self, ids: list[int], receipts: list[Receipt], released: list[Receipt]) -> None:
        self.world.hint(self, lambda p: p.consumers.hear_settled(ids, receipts, released), including=False)

    def begin(self, session: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Something that a client does with this process; it ends when the process dies."""
        task = asyncio.create_task(session)
        self.sessions[task] = None
        task.add_done_callback(self.sessions.pop)
        return task

    def kill(self) -> None:
        """kill -9."""
        self.dead = True
        for task in (*self.sessions, self.reaping):
            task.cancel()

    async def stop(self) -> None:
        """As on SIGTERM: streams end, then everything is given back."""
        self.consumers.dismiss()
        await asyncio.sleep(self.world.chance.random() * 0.2)
        for task in self.sessions:
            task.cancel()
        await self.consumers.stop()
        self.dead = True
        self.reaping.cancel()


class World:
    """Everything one seed runs."""

    def __init__(self, loop: SeededLoop, seed: int) -> None:
        self.loop = loop
        self.chance = random.Random(seed)
        self.faults = Faults.draw(self.chance)
        self.healed = False
        self.hinted = False
        self.graves: list[object] = []
        """What a process that died leaves behind. Kept, or it would be noticed that nobody can wake it."""
        self.log = MemoryLog(lambda: 1_700_000_000_000_000 + round(loop.time() * 1_000_000))
        self.queues = MemoryQueues(self.log)
        self.processes = [Process(self, f"p{n}") for n in range(2)]
        self.busy = [self._subscribe(f"busy{n}") for n in range(self.chance.randint(1, 2))]
        channels = self.chance.choice((("a",), ("a", "b")))
        self.solo = self.queues.subscribe("solo", *channels, ordering="none", max_deliver=0, ack_wait=8)
        self.held: dict[tuple[int, int, int], object] = {}
        """(subscription, message, lease) → the client that was given it."""

    def _subscribe(self, name: str) -> Subscription:
        chance = self.chance
        channels = chance.choice((("a",), ("a", "b"), (">",), ("b",)))
        settings: dict[str, Any] = {
            "ack_wait": ACK_WAIT_S,
            "ordering": chance.choice(("key", "channel", "none")),
            "max_in_flight": chance.choice((2, 1000)),
            "max_deliver": chance.choice((0, 2, 5)),
            "backoff": chance.choice(([0], [0.1, 0.5])),
        }
        if chance.random() < 0.3:
            settings["dead_letter"] = {"channel": "dead"}
        if chance.random() < 0.15:
            settings["message_ttl"] = 2.0
        return self.queues.subscribe(name, *channels, **settings)

    # --- between processes

    def hint(self, origin: Process, told: Any, *, including: bool = True) -> None:
        """Tell the others, who may not hear of it, and whoever it happened to itself."""
        if including:
            told(origin)
        for process in self.processes:
            lost = not self.hinted and self.chance.random() < self.faults.lose
            if process is not origin and not process.dead and not lost:
                self.loop.call_later(self.chance.random() * self.faults.late_s, told, process)

    def any_process(self) -> Process:
        return self.chance.choice([p for p in self.processes if not p.dead] or self.processes)

    # --- who publishes

    async def publish(self, process: Process | None, channel: str, count: int = 1) -> None:
        """Through a process, or by SQL, of which nobody is told."""
        new = tuple(
            NewMessage(channel, b"{}", key=self.chance.choice(("k", "l", None))) for _ in range(count)
        )
        (answer,) = await MemoryAppender(self.log, pause=self._hold).append([Append(NAMESPACE, new)])
        if process is not None and not isinstance(answer, GaplessError):
            last_id = answer.positions[-1].id
            self.hint(process, lambda p: p.consumers.hear(NAMESPACE, channel, last_id))

    async def _hold(self, step: str) -> None:
        await asyncio.sleep(self.chance.random() * self.faults.hold_s / 4)
        if step == "commit" and not self.healed and self.chance.random() < 0.1:
            raise GaplessError(Code.UNAVAILABLE, "rolled back")

    async def write(self) -> None:
        """One publisher."""
        for _ in range(self.chance.randint(2, 5)):
            by = self.any_process() if self.chance.random() < 0.7 else None
            with suppress(GaplessError):
                await self.publish(by, self.chance.choice("ab"), self.chance.randint(1, 3))
            await asyncio.sleep(self.chance.random() * 0.5)

    # --- who consumes

    def given(self, subscription: Subscription, client: object, deliveries: Iterable[Delivery]) -> None:
        for d in deliveries:
            self.held[subscription.id, d.message.id, d.lease] = client

    def live_of(self, subscription: Subscription, client: object) -> int:
        """How many leases this client really has."""
        queue = self.queues.queues[subscription.id]
        return sum(
            self.held.get((subscription.id, row.message.id, row.lease)) is client for row in queue.leased()
        )

    async def consume(self, process: Process, subscription: Subscription, prefetch: int) -> None:
        """A stream, as the face of it is."""
        member = await process.consumers.open(NAMESPACE, subscription.name, prefetch)
        working: set[asyncio.Task[None]] = set()
        try:
            while member.goodbye is None:
                deliveries = await member.next(self.chance.random() * 2)
                self.given(subscription, member, deliveries)
                if self.live_of(subscription, member) > prefetch:
                    raise BrokenPromiseError(f"{subscription.name} was given more than {prefetch}")
                for delivery in deliveries:
                    working.add(asyncio.create_task(self.work(member, subscription, delivery)))
        finally:
            process.consumers.close(member)

    async def pull(self, process: Process, subscription: Subscription, wait_s: float) -> None:
        client = object()
        limit = self.chance.randint(1, 4)
        pulled = await process.consumers.pull(NAMESPACE, subscription.name, limit, wait_s)
        process.consumers.reported(pulled)
        deliveries = pulled.deliveries
        self.given(subscription, client, deliveries)
        if len(deliveries) > limit:
            raise BrokenPromiseError(f"a pull of {limit} got {len(deliveries)}")
        for delivery in deliveries:
            await self.work(client, subscription, delivery)

    async def work(self, client: object, subscription: Subscription, delivery: Delivery) -> None:
        """Do something with a message, in the end, with whatever process there is."""
        await asyncio.sleep(self.chance.random() * 0.3)
        fate = 0.0 if self.healed else self.chance.random()
        if fate > 0.9:
            return
        holder = client.holder if isinstance(client, Member) else 0
        receipt = Receipt(subscription.id, delivery.message.id, delivery.lease, holder)
        with suppress(GaplessError):
            consumers = self.any_process().consumers
            if fate < 0.6:
                (settled,) = await consumers.ack(NAMESPACE, subscription.name, [receipt])
                self.check_told(subscription, receipt, settled)
            elif fate < 0.65:
                await consumers.extend(NAMESPACE, subscription.name, [receipt], 1.0)
                await self.work(client, subscription, delivery)
            elif fate < 0.75:
                delay = self.chance.choice((None, 0.2))
                (settled,) = await consumers.release(NAMESPACE, subscription.name, [receipt], delay)
                self.check_told(subscription, receipt, settled)
            else:
                delay = self.chance.choice((None, 0.0, 0.4))
                nack = Nack(None if fate > 0.85 else delay, fate > 0.85)
                await consumers.nack(NAMESPACE, subscription.name, [receipt], nack)

    def check_told(self, subscription: Subscription, receipt: Receipt, settled: Settled) -> None:
        queue = self.queues.queues[subscription.id]
        if settled.status is Settlement.ACKED and receipt.message_id not in queue.acked:
            raise BrokenPromiseError(f"{receipt} was said to be acked and is not")
        if settled.status is Settlement.RELEASED and queue.held(receipt, -1) is not None:
            raise BrokenPromiseError(f"{receipt} was said to be released and is not")

    async def come_and_go(self) -> None:
        """Clients of the busy subscriptions; half of them are cut off, at whatever moment."""
        for _ in range(self.chance.randint(3, 7)):
            process, subscription = self.any_process(), self.chance.choice(self.busy)
            if self.chance.random() < 0.6:
                session = partial(self.consume, process, subscription, self.chance.randint(1, 3))
            else:
                session = partial(self.pull, process, subscription, self.chance.choice((0.0, 0.5, 1.5)))
            task = process.begin(_tolerant(session))
            # A claim takes about as long: many are cut off in the middle of it.
            await asyncio.sleep(self.chance.random() * self.chance.choice((self.faults.slow_s, 0.5)))
            if self.chance.random() < 0.5:
                task.cancel()

    async def pull_without_waiting(self) -> None:
        """One of two who take everything of a subscription of their own."""
        while True:
            await asyncio.sleep(self.chance.random() * 0.2)
            process = self.any_process()
            turn = process.begin(self._look(process.consumers))
            await asyncio.wait([turn])
            if turn.cancelled() or isinstance(turn.exception(), GaplessError):
                await self._forget_solo()
            else:
                turn.result()

    async def _look(self, consumers: Consumers) -> None:
        """If it gets nothing, nothing of what was committed before is left."""
        queue = self.queues.queues[self.solo.id]
        settled = not self.log.running and self.log.flushed == self.log.lsn
        there = {m.id for _, m in self.queues.matching(queue, self.log.sequence)}
        sequence = self.log.sequence
        pulled = await consumers.pull(NAMESPACE, "solo", 1000, 0.0)
        consumers.reported(pulled)
        taken = pulled.deliveries
        self.given(self.solo, self, taken)
        left = there & {m.id for _, m in self.queues.matching(queue, self.log.sequence)}
        quiet = queue.single or (settled and sequence == self.log.sequence)
        if self.healed and quiet and left and not taken:
            raise BrokenPromiseError(f"a pull got nothing, and did not look at {left}")
        if taken:
            receipts = [Receipt(self.solo.id, d.message.id, d.lease) for d in taken]
            await consumers.ack(NAMESPACE, "solo", receipts)

    async def _forget_solo(self) -> None:
        """After an error it cannot tell what it holds: as if all its leases had ended."""
        queue = self.queues.queues[self.solo.id]
        async with queue.lock:
            for row in queue.leased():
                row.at_us = self.log.now_us()

    # --- what goes wrong

    async def lose_processes(self) -> None:
        """Some are killed, some stop as they should; another takes their place."""
        for way in ["kill"] * self.faults.kills + ["stop"] * self.faults.stops:
            await asyncio.sleep(self.chance.random())
            at = self.chance.randrange(len(self.processes))
            process = self.processes[at]
            self.graves.append(process)
            self.processes[at] = Process(self, f"{process.name}'")
            if way == "kill":
                process.kill()
            else:
                await process.stop()

    async def audit(self) -> None:
        """Look for leases that nobody holds."""
        since: dict[tuple[int, int, int, int], float] = {}
        while True:
            await asyncio.sleep(AUDIT_S)
            now = self.loop.time()
            orphans = {key: since.get(key, now) for key in self._orphans()}
            for key, began in orphans.items():
                allowed_s = BACK_S if self.healed and began >= self.healed_at else ACK_WAIT_S + BACK_S
                if now - began > allowed_s and key[0] != self.solo.id:
                    raise BrokenPromiseError(f"{key} is leased to nobody since {began:.3f}")
            since = orphans

    healed_at = float("inf")

    def _orphans(self) -> list[tuple[int, int, int, int]]:
        """(subscription, message, lease, deadline)."""
        streamed = {
            (group.subscription.id, message_id, lease)
            for process in self.processes
            for group in process.consumers._groups.values()
            for member in group.members
            for message_id, (lease, _) in member.outstanding.items()
        }
        pulled = {key for key, client in self.held.items() if not isinstance(client, Member)}
        rows = [
            (number, row.message.id, row.lease, row.at_us)
            for number, queue in self.queues.queues.items()
            for row in queue.leased()
            if row.at_us > self.log.now_us()
        ]
        return [row for row in rows if row[:3] not in streamed and row[:3] not in pulled]

    # --- the whole

    async def live(self) -> None:
        """Act, heal, drain, check, rest, stop."""
        always = [asyncio.create_task(self.pull_without_waiting()) for _ in range(2)]
        always.append(asyncio.create_task(self.audit()))
        await self._watched(
            asyncio.gather(self.write(), self.write(), self.come_and_go(), self.lose_processes()), always
        )
        # A lease that was left behind just before is seen as late as that.
        self.healed, self.healed_at = True, self.loop.time() + 2 * self.faults.slow_s + AUDIT_S
        await self._watched(asyncio.gather(self.write(), self.come_and_go()), always)
        await self._watched(self._drain(), always)
        await self._watched(self._publish_promptly(), always)
        await self._watched(self._drained(), always)
        for pulling in always[:2]:
            pulling.cancel()
        await self._watched(self._rest(), always[2:])
        always[2].cancel()
        await self._stop_all()

    async def _watched(self, doing: Any, always: list[asyncio.Task[None]]) -> None:
        task = asyncio.ensure_future(doing)
        await asyncio.wait([task, *always], return_when=asyncio.FIRST_COMPLETED)
        for watcher in always:
            if watcher.done():
                watcher.result()
        await task

    async def _drain(self) -> None:
        """With somebody to take everything, everything is settled."""
        for subscription in self.busy:
            for process in self.processes:
                process.begin(_tolerant(partial(self.consume, process, subscription, 2)))
        await self._drained()

    async def _drained(self) -> None:
        for _ in range(300):
            await asyncio.sleep(0.1)
            if all(self._is_drained(self.queues.queues[s.id]) for s in (*self.busy, self.solo)):
                return
        left = {s.name: self.queues.queues[s.id].rows for s in (*self.busy, self.solo)}
        raise BrokenPromiseError(f"never settled: {left}")

    def _is_drained(self, queue: Queue) -> bool:
        return not queue.rows and not list(self.queues.matching(queue, self.log.sequence))

    async def _publish_promptly(self) -> None:
        """With every hint heard, what one process streams and another acks needs no sweep."""
        self.hinted = True
        prompt = self.queues.subscribe("prompt", "c", ordering="none")
        streaming, acking = self.processes
        process = streaming.begin(self._stream_here_ack_there(streaming, acking, prompt))
        await asyncio.sleep(1.5)
        began = self.loop.time()
        await self.publish(acking, "c", 6)
        queue = self.queues.queues[prompt.id]
        while len(queue.acked) < 6 and not process.done():
            await asyncio.sleep(0.02)
        one_s = 6 * self.faults.slow_s + 2 * self.faults.late_s
        if self.loop.time() - began > 7 * one_s + 1.0:
            raise BrokenPromiseError(f"six messages took {self.loop.time() - began} s")

    async def _stream_here_ack_there(
        self, streaming: Process, acking: Process, subscription: Subscription
    ) -> None:
        member = await streaming.consumers.open(NAMESPACE, subscription.name, 1)
        while member.goodbye is None:
            for d in await member.next(10):
                self.given(subscription, member, [d])
                receipt = Receipt(subscription.id, d.message.id, d.lease, member.holder)
                await acking.consumers.ack(NAMESPACE, subscription.name, [receipt])

    async def _rest(self) -> None:
        """Nothing is left to do: see that it is so, and that little is done about it."""
        self.check()
        before = {p.name: p.claims for p in self.processes}
        await asyncio.sleep(IDLE_S)
        for process in self.processes:
            groups = len(process.consumers._active)
            claims = process.claims - before[process.name]
            if claims > IDLE_CLAIMS * IDLE_S * groups:
                raise BrokenPromiseError(f"{process.name} made {claims} claims for {groups} idle groups")

    async def _stop_all(self) -> None:
        """Who stops as it should, though much is going on, leaves nothing leased."""
        for process in self.processes:
            publishing = asyncio.create_task(self.publish(process, self.chance.choice("ab"), 3))
            await asyncio.sleep(self.chance.random() * (self.faults.hold_s + 2 * self.faults.slow_s))
            await process.stop()
            await publishing
        leased = [queue.leased() for queue in self.queues.queues.values()]
        if any(leased):
            raise BrokenPromiseError(f"left behind: {leased}")

    def check(self) -> None:
        """Each message was acked once or is one dead letter."""
        for subscription in (*self.busy, self.solo):
            queue = self.queues.queues[subscription.id]
            wanted = {m.id for r, m in self.log.by_id.values() if queue.follows(r.name)}
            letters = [e.message.id for e in self.queues.letters if e.subscription == subscription.name]
            settled = Counter(queue.acked) + Counter(letters)
            if set(settled) != wanted or set(settled.values()) > {1}:
                raise BrokenPromiseError(f"{subscription.name} settled {settled} of {wanted}")


async def _tolerant(session: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A client takes a refusal, and comes again another time."""
    with suppress(GaplessError):
        await session()


def play(seed: int) -> str:
    """Tail one seed: its fingerprint. Raises BrokenPromiseError, or what the engine tripped over."""
    loop = SeededLoop(seed)
    world: list[World] = []

    async def program() -> None:
        world.append(World(loop, seed))
        await world[0].live()

    run(program(), loop=loop)
    acked = [queue.acked for queue in world[0].queues.queues.values()]
    return f"{loop.steps} {loop.trace:x} {loop.time():.6f} {acked}"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(play(int(argument)))
