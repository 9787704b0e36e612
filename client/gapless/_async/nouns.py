"""What a client manages, on asyncio: one object a noun."""

from __future__ import annotations

from gapless._async.calls import AsyncCalls
from gapless._async.channels import AsyncChannels
from gapless._async.dead_letters import AsyncDeadLetters
from gapless._async.definitions import AsyncDefinitions
from gapless._async.markers import AsyncMarkers
from gapless._async.policies import AsyncPolicies
from gapless._async.scheduled import AsyncScheduledMessages
from gapless._async.subscriptions import AsyncSubscriptions


class AsyncNouns(AsyncCalls):
    """The nouns of the service, each with its verbs."""

    @property
    def channels(self) -> AsyncChannels:
        """Channels and their settings: `list`, `get`, `put`, `update`, `delete`."""
        return AsyncChannels(self)

    @property
    def subscriptions(self) -> AsyncSubscriptions:
        """Durable subscriptions: `create`, `get`, `update`, `pause`, `seek` and others."""
        return AsyncSubscriptions(self)

    @property
    def dead_letters(self) -> AsyncDeadLetters:
        """What subscriptions gave up on: `list`, `get`, `replay`, `purge` and others."""
        return AsyncDeadLetters(self)

    @property
    def markers(self) -> AsyncMarkers:
        """How far users have come in channels: `move`, `move_all`, `unread`, `of`."""
        return AsyncMarkers(self)

    @property
    def policies(self) -> AsyncPolicies:
        """Settings for all that matches: `put`, `get`, `list`, `delete`."""
        return AsyncPolicies(self)

    @property
    def definitions(self) -> AsyncDefinitions:
        """All definitions as one document: `export` and `import_`."""
        return AsyncDefinitions(self)

    @property
    def scheduled(self) -> AsyncScheduledMessages:
        """Messages still to be published: `list`, `get`, `promote`, `cancel`."""
        return AsyncScheduledMessages(self)
