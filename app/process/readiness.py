"""Opens the readiness gate once the schema is there and the definitions of a namespace are loaded."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from app.api.definitions import parse_definitions
from app.api.settings import PushRules
from app.process import failpoints
from db.maintenance import Maintenance
from db.migrate import migrations
from db.namespaces import Namespaces
from db.policies import Policies
from subscriptions.domain.errors import GaplessError, unavailable
from subscriptions.domain.names import is_channel
from subscriptions.engine.gate import Gate

log = logging.getLogger(__name__)

RETRY_S = 0.5
FOLLOW_S = 1.0
"""How soon a process serves a namespace that was made."""
CHECK_S = 3.0


@dataclass(frozen=True, slots=True)
class Served:
    """Which definitions a process loads: `path` is a file for its own namespace, or a folder with a file
    `<namespace>.json` for each."""

    own: str
    path: Path | None

    def file_of(self, namespace: str) -> Path | None:
        """The definitions of a namespace; None: it has no file."""
        if self.path is None or not self.path.is_dir():
            return self.path if namespace == self.own else None
        file = self.path / f"{namespace}.json"
        return file if file.exists() else None

    def named(self) -> set[str]:
        """The other namespaces for which the folder has a file. Raises OSError."""
        if self.path is None or not self.path.is_dir():
            return set()
        return {name.stem for name in self.path.glob("*.json") if is_channel(name.stem)} - {self.own}


class Gatekeeper:
    """Opens the gate for each namespace once its definitions are loaded: they must be there before any
    message may expire. It closes it for a namespace that was removed."""

    def __init__(
        self,
        gate: Gate,
        maintenance: Maintenance,
        namespaces: Namespaces,
        policies: Policies,
        *,
        served: Served,
        push_rules: PushRules,
        auto_create: bool,
        credentials: Callable[[], Awaitable[None]],
    ) -> None:
        """`credentials` reads who may do what, which must be known as well."""
        self._gate = gate
        self._maintenance = maintenance
        self._namespaces = namespaces
        self._policies = policies
        self._served = served
        self._push_rules = push_rules
        self._auto_create = auto_create
        self._credentials = credentials
        self._obstacle = "the definitions are not loaded yet"
        self._told: dict[str, str] = {}
        """Why the definitions of another namespace cannot be loaded, as it was last logged."""

    async def run(self) -> None:
        """Opens the gate for the process's own namespace, then follows the others until cancelled."""
        while self._served.own not in self._gate.namespaces:
            try:
                await self._load_own()
                log.info("definitions are loaded")
            except (GaplessError, OSError, UnicodeDecodeError) as error:
                # Any client may ask whether this is ready, so file paths go only into the log.
                why = error.strerror if isinstance(error, OSError) else str(error)
                self._obstacle = f"the definitions cannot be loaded: {why}"
                log.warning("the definitions cannot be loaded: %s", error)
                await asyncio.sleep(RETRY_S)
        while True:
            try:
                await self._follow()
            except (GaplessError, OSError) as error:
                log.debug("the namespaces cannot be read: %s", error)
            await asyncio.sleep(FOLLOW_S)

    async def _follow(self) -> None:
        """One look at the other namespaces. One whose definitions cannot be loaded stays closed by itself."""
        named = await asyncio.to_thread(self._served.named)
        # One that is made, and opened, during the look is not among those that the look finds.
        opened = self._gate.namespaces
        shared = await self._namespaces.shared() | named
        self._gate.close(opened - shared - {self._served.own})
        self._told = {name: why for name, why in self._told.items() if name in shared}
        for name in sorted(shared - self._gate.namespaces):
            await self._serve(name, make=name in named)

    async def serve(self, namespace: str) -> None:
        """Load the definitions of another namespace that was just made, and open the gate for it; later, if
        this process is not ready itself, or they cannot be loaded. The gate may be open for a namespace of
        that name that was removed a moment ago."""
        if self._served.own in self._gate.namespaces:
            await self._serve(namespace, make=False)

    async def _serve(self, name: str, *, make: bool) -> None:
        try:
            if make:
                await self._namespaces.put(name, None)
            await self._load(name)
            self._gate.open([name])
        except (GaplessError, OSError, UnicodeDecodeError) as error:
            if self._told.get(name) != str(error):
                self._told[name] = str(error)
                log.warning("the definitions of namespace %s cannot be loaded: %s", name, error)

    async def check(self) -> None:
        """Raises GaplessError `unavailable` unless migrated, loaded, and the database reachable.

        It answers soon, because its caller then sends requests elsewhere. A silent database would block long.
        """
        try:
            async with asyncio.timeout(CHECK_S):
                await self._check_schema()
        except TimeoutError:
            raise unavailable(f"the database has not answered for {CHECK_S:.0f} s") from None
        if self._served.own not in self._gate.namespaces:
            raise unavailable(self._obstacle)

    async def _check_schema(self) -> None:
        version = await self._maintenance.schema_version()
        if not await self._maintenance.takes_writes():
            raise unavailable("the database takes no writes: it is a standby, or read-only")
        if version != len(migrations()):
            raise unavailable(f"the schema is at version {version}, this program needs {len(migrations())}")

    async def _load_own(self) -> None:
        await self._check_schema()
        await self._credentials()
        await self._namespaces.ensure(self._served.own)
        await self._namespaces.set_auto_create(self._auto_create)
        await failpoints.reach("definitions.load")
        await self._load(self._served.own)
        self._gate.open([self._served.own])

    async def _load(self, namespace: str) -> None:
        """Import the definitions of a namespace, if it has a file."""
        file = self._served.file_of(namespace)
        if file is not None:
            text = await asyncio.to_thread(file.read_bytes)
            wanted = parse_definitions(text, datetime.now(UTC), self._push_rules)
            digest = hashlib.sha256(text).digest()
            changes, same = await self._policies.apply(namespace, wanted, dry_run=False, digest=digest)
            log.info("%s: %d definitions changed, %d unchanged", file.name, len(changes), same)
        # Decisions read policies in their own transactions. This only shows that policies can be read.
        await self._policies.all(namespace)
