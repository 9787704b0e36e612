"""What happened to durable subscriptions in a run, as plain facts; the checker draws the conclusions.

Times are monotonic nanoseconds of one machine, so those of different processes compare. What the service
says in wall-clock time (deadlines, creation, expiry) is converted where it is recorded.
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
    """A subscription as it was defined. `max_deliver` 0: no end. `dead_letter`: its dead-letter channel."""

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
        """Attempts that end without a word beside others do not count, and there are only so many before one
        is alone."""
        return self.max_deliver * (3 + self.max_in_flight.bit_length())


@dataclass(frozen=True, slots=True)
class Message:
    """A message as the log holds it after the run. `number` is what its publisher called it."""

    id: int
    channel: str
    seq: int
    key: str | None
    created_ns: int
    number: int
    expires_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Publish:
    """What a publisher knows of one try. `id` is 0 when it was never told."""

    number: int
    channel: str
    outcome: Outcome
    id: int = 0


@dataclass(slots=True)
class Session:
    """One stream, or one pull. At most `limit` of its deliveries may be unsettled at a time.

    A session ends when its member saw it end, or no later than its member was killed (`killed`). `told` says
    that a pull was answered; what an unanswered one was given nobody knows.
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
    """One delivery as the member noted it, which is at `at_ns`: the lease had begun by then."""

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
    """One receipt sent to `group` with an ack, nack or extend. Noted before it was sent.

    A `transact` is an ack that publishes a product in the same transaction, and keeps its idempotency key
    when it is asked again. `outcome` is INFO as long as no answer came, FAIL when the whole request was
    refused with a 4xx.
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
        """Whether the service said so."""
        return self.outcome is Outcome.OK and self.status == status


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry of the list. `copy_id` is the id of its copy in the dead-letter channel, where it has one."""

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
    """A member did nothing from one time to another: stopped, or kept from running."""

    member: str
    from_ns: int
    to_ns: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Something was killed and came back. `hides`: leases may have been taken that nobody was told of."""

    name: str
    from_ns: int
    to_ns: int
    hides: bool = True


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a subscription's books. At least `at_least` of its messages had been published when it was
    asked for, and at most `at_most` when it came. `source` FINAL: the last one, after the run."""

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
        """Every message the books know of."""
        return self.ready + self.in_flight + self.acked + self.dead_lettered + self.removed

    def __str__(self) -> str:
        return (
            f"{self.group}: {self.ready} ready + {self.in_flight} in flight + {self.acked} acked + "
            f"{self.dead_lettered} dead + {self.removed} removed = {self.total} ({self.source})"
        )


@dataclass(slots=True)
class Groups:
    """One run. `stuck` names the subscriptions that had something unsettled when it ended. `copies` are the
    ids of the messages in the dead-letter channels, `products` what transactions published: for which
    subscription, from which message."""

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
