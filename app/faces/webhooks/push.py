"""Posts the deliveries of one subscription, and settles each by its outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, assert_never

from app.faces.webhooks.outcome import Crowded, Delivered, Failed, Gone, Outcome
from app.faces.webhooks.secrets import UnavailableSecretError, WebhookSecrets
from app.faces.webhooks.sender import Sender, Sending, Target
from app.metrics.registry import DELIVERED, SETTLED
from subscriptions.domain.delivery import (
    Delivery,
    Nack,
    Receipt,
    Settings,
    Settled,
    Settlement,
    Subscription,
    Tags,
)
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.goodbye import Goodbye
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.durable.member import Member
from subscriptions.engine.entry import Encode

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 15.0
"""The longest time that a receiver has for its answer."""
PAUSE_S: Final = 60.0
RETRY_S: Final = 0.5


class Lookup(Protocol):
    """Finds subscriptions. Both methods raise GaplessError `unavailable`."""

    async def pushed(self, namespaces: Collection[str]) -> list[Subscription]: ...

    async def by_id(self, ids: Sequence[int]) -> list[Subscription]: ...


class Change(Protocol):
    """Changes subscriptions. Both methods raise GaplessError `unavailable`."""

    async def pause_pushed(self, namespace: str, name: str, url: str) -> bool:
        """Pause a subscription that is still pushed to this URL; whether it did."""
        ...

    async def patch(
        self,
        namespace: str,
        name: str,
        channels: tuple[str, ...] | None,
        settings: Settings,
        *,
        if_match: Tags | None = None,
    ) -> Subscription:
        """Change these settings if the definition still has one of the tags, else `precondition_failed`."""
        ...


@dataclass(frozen=True, slots=True)
class PushDependencies:
    """The parts of its process that pushing needs."""

    consumers: Consumers
    subscriptions: Change
    lookup: Lookup
    sender: Sender
    encode: Encode
    secrets: WebhookSecrets
    is_good: Callable[[str | None, int | None], bool]
    """Whether a credential, of which an API key's id and an end are stored, is still good."""

    def can_push(self, subscription: Subscription) -> bool:
        """Whether it is to be pushed now, and may be: its secret can be read here, and the credential of
        whoever defined it is good."""
        push = subscription.settings.get("push")
        if push is None or subscription.paused:
            return False
        why = None
        try:
            self.secrets.decrypt(push.get("secret", ""))
        except UnavailableSecretError as error:
            why = str(error)
        by = push.get("by")
        if by is not None and not self.is_good(by["key"], by["until_us"]):
            why = f"the credential of {by['subject']}, who defined it, has expired or was revoked"
        if why is not None:
            log.error("webhook of subscription %s waits: %s", subscription.name, why)
        return why is None


def answer_within(ack_wait_s: float) -> float:
    """The seconds that a receiver has for its answer: always less than a lease."""
    return min(TIMEOUT_S, ack_wait_s * 0.75)


def delay_after(failed: Failed, attempt: int, backoff: Sequence[float]) -> float | None:
    """The seconds until the next attempt; None: the subscription's backoff. A receiver may ask for a longer
    wait, not for a shorter one, because it would use up its attempts at once."""
    if failed.retry_after_s is None:
        return None
    return max(failed.retry_after_s, backoff[min(attempt, len(backoff)) - 1] if backoff else 0.0)


@dataclass(frozen=True, slots=True)
class _Request:
    """A delivery that is being posted, or waits for its place, as the subscription was when it began."""

    subscription: Subscription
    delivery: Delivery
    sending: Sending


class Pusher:
    """A member of one subscription. `run` goes on until `leave`, a deletion, or the end of the process."""

    def __init__(self, member: Member, deps: PushDependencies) -> None:
        self._member = member
        self._deps = deps
        self._requests: dict[asyncio.Task[None], _Request] = {}

    def __repr__(self) -> str:
        return f"Pusher({self._member.group.subscription.name}: {len(self._requests)} under way)"

    def leave(self) -> None:
        """Stops sending. Requests of which something was sent get their answer; the others give way."""
        self._member.leave(Goodbye.SHUTDOWN)
        self._give_way(lambda request: True)

    def follow(self, subscription: Subscription) -> None:
        """The subscription as it is now: what waits to be posted as it was before gives way, and comes again
        at once."""
        push = subscription.settings.get("push")
        self._give_way(lambda request: request.subscription.settings.get("push") != push)

    def _give_way(self, which: Callable[[_Request], bool]) -> None:
        for task, request in self._requests.items():
            if not request.sending.begun and which(request):
                task.cancel()

    async def run(self) -> None:
        """Pushes until it ends. When it is cancelled, requests under way are cancelled, and their leases end.

        A delivery of which nothing was sent goes back whatever ends it, and that counts as no attempt: else
        a last attempt would make a dead letter that was never posted."""
        try:
            while self._member.goodbye is None:
                await self._begin(await self._member.next(PAUSE_S))
                self._note_losses()
            if self._requests:
                await asyncio.wait(self._requests)
        finally:
            await self._break_off()
            self._deps.consumers.close(self._member)

    def _note_losses(self) -> None:
        """Logs the messages that retention removed, because no request could report them."""
        losses = list(self._member.losses)
        for loss in losses:
            what = (loss.missed, loss.channel, self._member.group.subscription.name)
            log.error("retention took %d messages of %s before they were posted for %s", *what)
        self._member.reported(losses)

    async def _break_off(self) -> None:
        broken = list(self._requests)
        for request in broken:
            request.cancel()
        await asyncio.gather(*broken, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        request = self._requests.pop(task)
        if task.cancelled() and not request.sending.begun:
            self._deps.consumers.give_back(self._member, [request.delivery])

    async def _begin(self, deliveries: list[Delivery]) -> None:
        """Sends them to the subscription's present URL: a change holds for all requests after it."""
        if not deliveries:
            return
        try:
            found = await self._found()
        except BaseException:
            self._deps.consumers.give_back(self._member, deliveries)
            raise
        if found is not None and not self._deps.can_push(found):
            self.leave()
        if found is None or self._member.goodbye:
            self._deps.consumers.give_back(self._member, deliveries)
            return
        DELIVERED.inc(len(deliveries))
        for delivery in deliveries:
            sending = Sending()
            request = asyncio.create_task(self._deliver(found, delivery, sending))
            self._requests[request] = _Request(found, delivery, sending)
            request.add_done_callback(self._ended)

    async def _found(self) -> Subscription | None:
        """The subscription as it is now; None if it is gone or the database cannot be asked."""
        try:
            found = await self._deps.lookup.by_id([self._member.group.subscription.id])
        except GaplessError as error:
            name = self._member.group.subscription.name
            log.warning("webhook of subscription %s releases its deliveries: %s", name, error.detail)
            return None
        return found[0] if found else None

    async def _deliver(self, subscription: Subscription, delivery: Delivery, sending: Sending) -> None:
        try:
            await self._settle(subscription, delivery, await self._post(subscription, delivery, sending))
        except Exception:
            log.exception("a webhook failed with an unexpected error")
            if not sending.begun:
                self._deps.consumers.give_back(self._member, [delivery])

    async def _post(self, subscription: Subscription, delivery: Delivery, sending: Sending) -> Outcome:
        message, settings = delivery.message, subscription.settings
        # Without a secret nothing is sent, and the outcome has the reason.
        secret = self._deps.secrets.decrypt(settings["push"].get("secret", ""))
        target = Target(settings["push"]["url"], secret)
        within_s = answer_within(settings["ack_wait"])
        keeping = asyncio.create_task(self._keep(subscription, delivery))
        try:
            return await self._deps.sender.send(
                target,
                message.id,
                subscription.name,
                delivery.attempt,
                self._deps.encode(message),
                within_s,
                sending,
            )
        finally:
            keeping.cancel()

    async def _keep(self, subscription: Subscription, delivery: Delivery) -> None:
        """Extends the lease until cancelled, because it must not end while its request is under way. If it
        has ended and nothing was sent, the request gives way: another member may have the message."""
        ack_wait_s = subscription.settings["ack_wait"]
        left_s = min(ack_wait_s, delivery.deadline_us / 1e6 - time.time())
        while True:
            await asyncio.sleep(max(0.0, left_s * 2 / 3))
            try:
                (extended,) = await self._deps.consumers.extend(
                    subscription.namespace, subscription.name, [_receipt(subscription, delivery)], None
                )
                if extended.status is not Settlement.EXTENDED:
                    self._give_way(lambda request: request.delivery is delivery)
                    return
                left_s = ack_wait_s
            except GaplessError:
                left_s = RETRY_S

    async def _settle(self, subscription: Subscription, delivery: Delivery, outcome: Outcome) -> None:
        match outcome:
            case Delivered():
                await self._until_done(self._deps.consumers.ack, subscription, delivery)
            case Crowded():
                self._deps.consumers.give_back(self._member, [delivery])
            case Failed(reason):
                delay_s = delay_after(outcome, delivery.attempt, subscription.settings["backoff"])
                await self._nack(subscription, delivery, Nack(delay_s, reason=reason))
            case Gone(reason):
                await self._nack(subscription, delivery, Nack(reason=reason))
                await self._pause(subscription)
            case _ as never:
                assert_never(never)

    async def _nack(self, subscription: Subscription, delivery: Delivery, nack: Nack) -> None:
        await self._until_done(self._deps.consumers.nack, subscription, delivery, nack)

    async def _until_done(
        self,
        settle: Callable[..., Awaitable[list[Settled]]],
        subscription: Subscription,
        delivery: Delivery,
        *how: Any,
    ) -> None:
        """Retries as long as the lease may last, so that a restart of the database does not lose the
        receiver's answer."""
        until = time.monotonic() + subscription.settings["ack_wait"]
        receipts = [_receipt(subscription, delivery)]
        while True:
            try:
                (settled,) = await settle(subscription.namespace, subscription.name, receipts, *how)
            except GaplessError as error:
                if error.code is Code.SUBSCRIPTION_NOT_FOUND:
                    return
                if time.monotonic() >= until:
                    log.warning("the outcome of a webhook could not be stored: %s", error.detail)
                    return
                await asyncio.sleep(RETRY_S)
            else:
                SETTLED.labels(settled.status.value).inc()
                return

    async def _pause(self, subscription: Subscription) -> None:
        """Pauses the subscription unless its URL has changed. The database checks that in the same statement,
        so no change can come in between. If this fails, the next attempt leads here again."""
        url = subscription.settings["push"]["url"]
        try:
            if await self._deps.subscriptions.pause_pushed(subscription.namespace, subscription.name, url):
                log.info("subscription %s is paused: its webhook answered 410 Gone", subscription.name)
        except GaplessError as error:
            log.warning("subscription %s could not be paused: %s", subscription.name, error.detail)


def _receipt(subscription: Subscription, delivery: Delivery) -> Receipt:
    return Receipt(subscription.id, delivery.message.id, delivery.lease)
