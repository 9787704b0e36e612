# Written by client/unasync.py from _async/nouns.py: change that file, and run the script.
"""What a client manages, on the calling thread: one object a noun."""

from __future__ import annotations

from gapless._sync.calls import Calls
from gapless._sync.channels import Channels
from gapless._sync.dead_letters import DeadLetters
from gapless._sync.definitions import Definitions
from gapless._sync.markers import Markers
from gapless._sync.policies import Policies
from gapless._sync.scheduled import ScheduledMessages
from gapless._sync.subscriptions import Subscriptions


class Nouns(Calls):
    """The nouns of the service, each with its verbs."""

    @property
    def channels(self) -> Channels:
        """Channels and their settings: `list`, `get`, `put`, `update`, `delete`."""
        return Channels(self)

    @property
    def subscriptions(self) -> Subscriptions:
        """Durable subscriptions: `create`, `get`, `update`, `pause`, `seek` and others."""
        return Subscriptions(self)

    @property
    def dead_letters(self) -> DeadLetters:
        """What subscriptions gave up on: `list`, `get`, `replay`, `purge` and others."""
        return DeadLetters(self)

    @property
    def markers(self) -> Markers:
        """How far users have come in channels: `move`, `move_all`, `unread`, `of`."""
        return Markers(self)

    @property
    def policies(self) -> Policies:
        """Settings for all that matches: `put`, `get`, `list`, `delete`."""
        return Policies(self)

    @property
    def definitions(self) -> Definitions:
        """All definitions as one document: `export` and `import_`."""
        return Definitions(self)

    @property
    def scheduled(self) -> ScheduledMessages:
        """Messages still to be published: `list`, `get`, `promote`, `cancel`."""
        return ScheduledMessages(self)
