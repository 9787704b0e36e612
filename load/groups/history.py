"""The recorded facts about durable subscriptions in a run, which the checker judges.

Times are monotonic nanoseconds of one machine, so those of different processes can be compared. Wall-clock
times of the service (deadlines, creation, expiry) are converted when they are recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from load.history import Outcome

SECOND = 1_000_000_000
NEVER = 1 << 62
"""Later than any time of a run."""
FINAL = "final"


@dataclass(frozen=True, slots=True)
class Group:
    """The definition of a subscription. `max_deliver` 0: no limit. `dead_letter`: its dead-letter channel."""

    name: str
    channels: tuple[str, ...]
    ordering: str = "key"
    ack_wait_ns: int = 2 * SECOND
    max_deliver: int = 4
    max_in_flight: int = 1000
    ttl_ns: int | None = None
    dead_letter: str | None = None

    @property
    def most_attempts(self) -> int:
        """The most attempts. An attempt that ends without a word does not count if its member held other
        messages too, and after about log2 of these the message is leased alone."""
        return self.max_deliver * (3 + self.max_in_flight.bit_length())


@dataclass(frozen=True, slots=True)
class Message:
    """A message in the log after the run. `number` is its publisher's number for it."""

    id: int
    channel: str
    seq: int
    key: str | None
    created_ns: int
    number: int
    expires_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Publish:
    """What a publisher knows of one attempt. `id` is 0 if there was no answer."""

    number: int
    channel: str
    outcome: Outcome
    id: int = 0


@dataclass(slots=True)
class Session:
    """One stream, or one pull. At most `limit` of its deliveries may be unsettled at a time.

    A session ends when its member saw it end, or when its member was killed (`killed`) at the latest. `told`:
    a pull was answered. The deliveries of an unanswered pull are unknown.
    """

    number: int
    group: str
    member: str
    stream: bool
    limit: int
    began_ns: int
    ended_ns: int | None = None
    killed: bool = False
    told: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery as its member noted it, at `at_ns`. The lease had begun by then."""

    group: str
    session: int
    message_id: int
    channel: str
    seq: int
    key: str | None
    attempt: int
    receipt: str
    deadline_ns: int
    at_ns: int


@dataclass(slots=True)
class Request:
    """One receipt sent to `group` with an ack, nack, release or extend. It is noted before it is sent.

    A `transact` is an ack that publishes a product in the same transaction, and is repeated with the same
    idempotency key. `outcome` is INFO without an answer, and FAIL if the whole request was refused with a
    4xx.
    """

    kind: str
    group: str
    receipt: str
    asked_ns: int
    answered_ns: int | None = None
    outcome: Outcome = Outcome.INFO
    status: str = ""
    dead_letter: bool = False
    entry: int | None = None
    deadline_ns: int | None = None

    def did(self, status: str) -> bool:
        """Whether the service answered with this status."""
        return self.outcome is Outcome.OK and self.status == status


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry in the list of dead letters. `copy_id` is the id of its copy in the dead-letter channel, if
    any."""

    id: int
    group: str
    message_id: int
    reason: str
    attempts: int
    created_ns: int
    copy_id: int | None = None
    unroutable: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which a member did not run, because it was stopped or got no processor."""

    member: str
    from_ns: int
    to_ns: int


@dataclass(frozen=True, slots=True)
class Fault:
    """The time from the kill of a part to its return. `hides`: leases may have begun in it without an answer
    to a member."""

    name: str
    from_ns: int
    to_ns: int
    hides: bool = True


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a subscription's counts. At least `at_least` of its messages had been published at the
    time of the request, and at most `at_most` at the time of the answer. `source` FINAL: the last one, after
    the run."""

    group: str
    at_ns: int
    at_least: int
    at_most: int
    ready: int
    in_flight: int
    acked: int
    dead_lettered: int
    removed: int = 0
    source: str = "stats"

    @property
    def total(self) -> int:
        """The number of all messages in the reading."""
        return self.ready + self.in_flight + self.acked + self.dead_lettered + self.removed

    def __str__(self) -> str:
        return (
            f"{self.group}: {self.ready} ready + {self.in_flight} in flight + {self.acked} acked + "
            f"{self.dead_lettered} dead + {self.removed} removed = {self.total} ({self.source})"
        )


@dataclass(slots=True)
class Groups:
    """One run. `stuck`: the subscriptions with unsettled messages at the end. `copies`: the ids of the
    messages in the dead-letter channels. `products`: for each message that a transaction published, the
    subscription and the id of the message it was made of."""

    seed: int = 0
    stuck: list[str] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    publishes: list[Publish] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    sessions: dict[int, Session] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    products: list[tuple[str, int]] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
