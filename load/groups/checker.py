"""Checks a history of durable subscriptions for breaches of the guarantees, in linear time apart from
sorting.

Only certain facts count. A lease is live until it may have ended. A request without an answer may have
succeeded or not. A missing attempt is allowed only where a member may not have seen it.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from load.groups import fates, order
from load.groups.history import Groups, Message, Request
from load.groups.leases import Book, Lease, Slack
from load.history import Outcome
from load.patterns import matches_any
from load.verdict import Breach, Verdict

SLACK = Slack()

TOLD = (Breach.LOST, Breach.REDELIVERED, Breach.DOUBLE_LEASE, Breach.OUT_OF_ORDER)

GRANTED = ("acked", "nacked", "released", "extended")
"""The answers that accept a receipt."""


def check(history: Groups, slack: Slack = SLACK) -> Verdict:
    """Check a whole run."""
    verdict = Verdict(TOLD)
    book = Book.of(history, slack)
    messages = {message.id: message for message in history.messages}
    _check_published(history, messages, verdict)
    for lease in book.every():
        _check_delivery(lease, book, messages, verdict)
        _check_receipt(lease, slack, verdict)
    for leases in book.leases.values():
        _check_acks(leases, verdict)
    _check_strays(book, verdict)
    _check_sessions(book, verdict)
    _check_products(book, verdict)
    order.check(book, messages, verdict)
    fates.check(book, messages, verdict)
    _check_readings(history, verdict)
    verdict.checked = (
        f"{len(messages):,} messages, {len(history.groups)} subscriptions, {len(history.deliveries):,} "
        f"deliveries in {len(history.sessions):,} sessions, {len(history.requests):,} receipts sent, "
        f"{len(history.dead_letters):,} dead letters, {len(history.readings):,} readings of the books, "
        f"seed {history.seed}"
    )
    return verdict


def _check_published(history: Groups, messages: dict[int, Message], verdict: Verdict) -> None:
    """Confirmed messages must be in the log, and refused ones must not."""
    stored = {message.number: message for message in messages.values()}
    for publish in history.publishes:
        message = stored.get(publish.number)
        if publish.outcome is Outcome.OK and (message is None or message.id != publish.id):
            verdict.add(Breach.LOST, f"message {publish.number} of {publish.channel} is not in the log")
        elif publish.outcome is Outcome.FAIL and message is not None:
            verdict.add(Breach.PHANTOM, f"message {publish.number} was refused and is stored")


def _check_delivery(lease: Lease, book: Book, messages: dict[int, Message], verdict: Verdict) -> None:
    """A delivered message must be published, match the subscription, and not have expired."""
    given = lease.delivery
    group = book.history.groups[given.group]
    message = messages.get(given.message_id)
    if message is None or (message.channel, message.seq, message.key) != (
        given.channel,
        given.seq,
        given.key,
    ):
        verdict.add(
            Breach.PHANTOM, f"{given.group}: {given.message_id} as seq {given.seq} of {given.channel}"
        )
        return
    if not matches_any(group.channels, message.channel):
        verdict.add(Breach.PHANTOM, f"{given.group}: {message.id} of {message.channel}, never asked for")
    expiry = fates.expiry(group, message)
    if expiry is not None and lease.earliest_ns > expiry + book.slack.clock_ns:
        late = (lease.earliest_ns - expiry) / 1e9
        verdict.add(Breach.LATE, f"{given.group}: {message.id}, {late:.2f} s after its end, {lease}")


def _check_receipt(lease: Lease, slack: Slack, verdict: Verdict) -> None:
    """A receipt must be accepted while its lease is live, and refused once it was settled or has ended."""
    what = f"{lease.delivery.group}: {lease.delivery.message_id}"
    settled: Request | None = None
    for request in lease.requests:
        if request.kind == "transact" and lease.acked not in (None, request):
            continue  # this is the answer to an earlier request with the same key
        if request.status in GRANTED:
            if request.asked_ns > lease.over_ns + slack.clock_ns:
                late = (request.asked_ns - lease.over_ns) / 1e9
                verdict.add(
                    Breach.BELIEVED, f"{what}: {request.kind} {late:.2f} s after the deadline, {lease}"
                )
            if settled and settled.answered_ns and request.asked_ns > settled.answered_ns:
                verdict.add(Breach.BELIEVED, f"{what}: settled already, {lease}")
        elif request.outcome is Outcome.OK and _was_live(request, lease):
            verdict.add(Breach.REFUSED, f"{what}: {request.kind} in time, {lease}")
        if request.status in ("acked", "nacked", "released"):
            settled = request


def _was_live(request: Request, lease: Lease) -> bool:
    """Whether the lease was certainly live and unsettled from the request to its answer."""
    if request.answered_ns is None or request.answered_ns >= lease.alive_until_ns:
        return False
    return not any(
        earlier.kind != "extend"
        and earlier.outcome is not Outcome.FAIL
        and earlier.asked_ns < request.asked_ns
        for earlier in lease.requests
    )


def _check_acks(leases: list[Lease], verdict: Verdict) -> None:
    """After an accepted ack there must be no later attempt and no other ack."""
    acked: Lease | None = None
    for lease in leases:
        if acked is not None and acked.acked is not None:
            what = f"{lease.delivery.group}: {lease.delivery.message_id}"
            if lease.delivery.at_ns < acked.acked.asked_ns:
                verdict.add(Breach.BELIEVED, f"{what}: {acked} accepted after {lease} was delivered")
            else:
                verdict.add(Breach.REDELIVERED, f"{what}: {lease} after {acked}")
        if lease.acked is not None:
            acked = lease


def _check_strays(book: Book, verdict: Verdict) -> None:
    """A receipt of another subscription, or a forged one, must not be accepted."""
    for request in book.strays:
        if request.status in GRANTED:
            verdict.add(Breach.BELIEVED, f"{request.group}: a foreign receipt was {request.status}")


def _check_products(book: Book, verdict: Verdict) -> None:
    """A confirmed transaction must have published once, and a refused one not at all."""
    made = Counter(book.history.products)
    for key, leases in book.leases.items():
        tried = [request for lease in leases for request in lease.requests if request.kind == "transact"]
        sure, maybe = (any(r.did("acked") for r in tried), any(r.outcome is Outcome.INFO for r in tried))
        count = made.pop(key, 0)
        if count > 1 or count < sure or (count and not sure and not maybe):
            verdict.add(
                Breach.PRODUCT, f"{key[0]}: {key[1]} gave {count} products, {'; '.join(map(str, leases))}"
            )
    for (group, message_id), count in made.items():
        verdict.add(Breach.PRODUCT, f"{group}: {count} of {message_id}, which was not delivered")


def _check_sessions(book: Book, verdict: Verdict) -> None:
    """No stream and no pull may hold more than its limit. This is checked at each delivery, in order."""
    by_session: dict[int, list[Lease]] = defaultdict(list)
    for lease in book.every():
        by_session[lease.session.number].append(lease)
    for leases in by_session.values():
        leases.sort(key=lambda lease: lease.delivery.at_ns)
        session = leases[0].session
        live: list[Lease] = []
        for lease in leases:
            now = lease.delivery.at_ns
            live.append(lease)
            live = [one for one in live if one.sure_until_ns > now] if session.stream else live
            if len(live) > session.limit:
                what = f"{session.group}: {len(live)} unsettled in session {session.number}"
                verdict.add(Breach.PREFETCH, f"{what}, which may have {session.limit}")


def _check_readings(history: Groups, verdict: Verdict) -> None:
    """Each reading must count each published message exactly once."""
    for reading in history.readings:
        if not reading.at_least <= reading.total <= reading.at_most:
            published = f"{reading.at_least} to {reading.at_most} published"
            verdict.add(Breach.LEDGER, f"{reading}, {published}")
