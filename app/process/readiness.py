"""Opens the readiness gate once the schema is there and all definitions are loaded."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from datetime import UTC, datetime
from pathlib import Path

from app.api.definitions import parse_definitions
from app.process import failpoints
from db.maintenance import Maintenance
from db.migrate import migrations
from db.namespaces import Namespaces
from db.policies import Policies
from subscriptions.domain.errors import GaplessError, unavailable
from subscriptions.engine.gate import Gate

log = logging.getLogger(__name__)

RETRY_S = 0.5
CHECK_S = 3.0


class Gatekeeper:
    """Loads the definitions, which must be there before any message may expire, and then opens the gate."""

    def __init__(
        self,
        gate: Gate,
        maintenance: Maintenance,
        namespaces: Namespaces,
        policies: Policies,
        *,
        namespace: str,
        file: Path | None,
        allow_private: bool,
        auto_create: bool,
    ) -> None:
        self._gate = gate
        self._maintenance = maintenance
        self._namespaces = namespaces
        self._policies = policies
        self._namespace = namespace
        self._file = file
        self._allow_private = allow_private
        self._auto_create = auto_create
        self._obstacle = "the definitions are not loaded yet"

    async def run(self) -> None:
        """Tries until the gate is open."""
        while not self._gate.is_open:
            try:
                await self._load()
                self._gate.open([self._namespace])
                log.info("definitions are loaded")
            except (GaplessError, OSError, UnicodeDecodeError) as error:
                # Any client may ask whether this is ready, so file paths go only into the log.
                why = error.strerror if isinstance(error, OSError) else str(error)
                self._obstacle = f"the definitions cannot be loaded: {why}"
                log.warning("the definitions cannot be loaded: %s", error)
                await asyncio.sleep(RETRY_S)

    async def check(self) -> None:
        """Raises GaplessError `unavailable` unless migrated, loaded, and the database reachable.

        It answers soon, because its caller then sends requests elsewhere. A silent database would block long.
        """
        try:
            async with asyncio.timeout(CHECK_S):
                await self._check_schema()
        except TimeoutError:
            raise unavailable(f"the database has not answered for {CHECK_S:.0f} s") from None
        if not self._gate.is_open:
            raise unavailable(self._obstacle)

    async def _check_schema(self) -> None:
        version = await self._maintenance.schema_version()
        if not await self._maintenance.takes_writes():
            raise unavailable("the database takes no writes: it is a standby, or read-only")
        if version != len(migrations()):
            raise unavailable(f"the schema is at version {version}, this program needs {len(migrations())}")

    async def _load(self) -> None:
        await self._check_schema()
        await self._namespaces.ensure(self._namespace)
        await self._namespaces.set_auto_create(self._auto_create)
        await failpoints.reach("definitions.load")
        if self._file is not None:
            text = await asyncio.to_thread(self._file.read_bytes)
            wanted = parse_definitions(text, datetime.now(UTC), allow_private=self._allow_private)
            digest = hashlib.sha256(text).digest()
            changes, same = await self._policies.apply(self._namespace, wanted, dry_run=False, digest=digest)
            log.info("%s: %d definitions changed, %d unchanged", self._file.name, len(changes), same)
        # Decisions read policies in their own transactions. This only shows that policies can be read.
        await self._policies.all(self._namespace)
