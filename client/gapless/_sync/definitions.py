# Written by client/unasync.py from _async/definitions.py: change that file, and run the script.
"""All definitions as one document, on the calling thread."""

from __future__ import annotations

from gapless._calls import definitions as calls
from gapless._calls.definitions import Document, Exported, Imported
from gapless._sync.calls import Noun


class Definitions(Noun):
    """All channels, subscriptions and policies as one document: `client.definitions`."""

    def export(self) -> Exported:
        """All definitions as the document that `import_` takes; secrets are left out.

        The document is a dict; its `etag` is for `if_match`.
        """
        return self._call(calls.export())

    def import_(self, document: Document, *, dry_run: bool = False, if_match: str | None = None) -> Imported:
        """Adds and changes definitions until they match the document, all or nothing; it removes none.

        A `dry_run` only reports the changes. A retry after a lost answer finds them made already.
        """
        return self._call(calls.import_(document, dry_run, if_match))
