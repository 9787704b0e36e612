"""All definitions as one document, on asyncio."""

from __future__ import annotations

from gapless._async.calls import AsyncNoun
from gapless._calls import definitions as calls
from gapless._calls.definitions import Document, Exported, Imported


class AsyncDefinitions(AsyncNoun):
    """All channels, subscriptions and policies as one document: `client.definitions`."""

    async def export(self) -> Exported:
        """All definitions as the document that `import_` takes; secrets are left out.

        The document is a dict; its `etag` is for `if_match`.
        """
        return await self._call(calls.export())

    async def import_(
        self, document: Document, *, dry_run: bool = False, if_match: str | None = None
    ) -> Imported:
        """Adds and changes definitions until they match the document, all or nothing; it removes none.

        A `dry_run` only reports the changes. A retry after a lost answer finds them made already.
        """
        return await self._call(calls.import_(document, dry_run, if_match))
