"""The service as a member of the pushed subscriptions in its own namespaces.

Every process runs it. Claims share the messages among the processes, as among all members.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Final

from app.faces.webhooks.limiter import MAX_CONNECTIONS_A_HOST
from app.faces.webhooks.push import PushDependencies, Pusher
from app.faces.webhooks.secrets import UnavailableSecretError
from subscriptions.domain.delivery import Subscription
from subscriptions.domain.errors import GaplessError
from subscriptions.engine.gate import Gate

log = logging.getLogger(__name__)

REFRESH_EVERY_S: Final = 1.0
STOP_S: Final = 9.0
"""How long requests under way may wait for their answer when the process is asked to stop."""


class Webhooks:
    """Keeps a `Pusher` for each pushed subscription that is not paused."""

    def __init__(self, gate: Gate, deps: PushDependencies, changed: asyncio.Event) -> None:
        """Whoever sets `changed` makes it read the subscriptions again soon, because one may have changed."""
        self._gate = gate
        self._deps = deps
        self._pushers: dict[int, tuple[Pusher, asyncio.Task[None]]] = {}
        self._changed = changed
        self._stop_at: float | None = None

    def __repr__(self) -> str:
        return f"Webhooks({[pusher for pusher, _ in self._pushers.values()]})"

    async def run(self) -> None:
        """Follows the defined subscriptions, once the gate is open, until cancelled or dismissed."""
        await self._gate.passed()
        while self._stop_at is None:
            self._changed.clear()
            try:
                await self._refresh()
            except GaplessError as error:
                log.warning("webhooks could not be updated: %s", error.detail)
            try:
                async with asyncio.timeout(REFRESH_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def dismiss(self) -> None:
        """Stops sending. Requests of which something was sent get their answer."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + STOP_S
        for pusher, _ in self._pushers.values():
            pusher.leave()

    async def stop(self) -> None:
        """Dismisses and waits, at most until `STOP_S` seconds after the dismissal. Then it closes everything.
        It must run before the consumers close, because answered deliveries have to be settled."""
        self.dismiss()
        assert self._stop_at is not None
        running = [task for _, task in self._pushers.values()]
        if running:
            left_s = self._stop_at - time.monotonic()
            _, late = await asyncio.wait(running, timeout=max(0.0, left_s))
            for task in late:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        await self._deps.sender.close()

    async def _refresh(self) -> None:
        pushed = await self._deps.lookup.pushed(self._gate.namespaces)
        for each in pushed:
            await self._encrypt(each)
        wanted = [each for each in pushed if self._deps.can_push(each)]
        present = {subscription.id: subscription for subscription in wanted}
        for subscription_id, (pusher, _) in self._pushers.items():
            if (subscription := present.get(subscription_id)) is None:
                pusher.leave()
            else:
                pusher.follow(subscription)
        for subscription in wanted:
            if subscription.id not in self._pushers:
                await self._begin(subscription)

    async def _encrypt(self, subscription: Subscription) -> None:
        """Have its secret stored as one that is given now."""
        push, secrets = subscription.settings["push"], self._deps.secrets
        stored = push.get("secret", "")
        if secrets.is_current(stored):
            return
        try:
            wanted = {"push": {**push, "secret": secrets.encrypt(secrets.decrypt(stored))}}
            await self._deps.subscriptions.patch(
                subscription.namespace, subscription.name, None, wanted, if_match=(subscription.tag,)
            )
        except UnavailableSecretError:
            pass  # `can_push` tells of it.
        except GaplessError as error:
            # Another process does it too, or somebody changed the definition.
            log.info("secret of webhook %s is not encrypted yet: %s", subscription.name, error.detail)

    async def _begin(self, subscription: Subscription) -> None:
        consumers = self._deps.consumers
        try:
            member = await consumers.open(subscription.namespace, subscription.name, MAX_CONNECTIONS_A_HOST)
        except GaplessError as error:
            log.warning("webhook of subscription %s cannot start: %s", subscription.name, error.detail)
            return
        if member.group.subscription.id != subscription.id or self._stop_at is not None:
            # Either a new subscription has this name and the next look finds it, or the service stops.
            consumers.close(member)
            return
        pusher = Pusher(member, self._deps)
        task = asyncio.create_task(pusher.run())
        self._pushers[subscription.id] = pusher, task
        task.add_done_callback(partial(self._ended, subscription))

    def _ended(self, subscription: Subscription, task: asyncio.Task[None]) -> None:
        """A pusher ended. If the subscription is still to be pushed, a new one starts: at once, or after an
        error at the next look."""
        del self._pushers[subscription.id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("webhook of subscription %s ended", subscription.name, exc_info=error)
        else:
            self._changed.set()
