"""Follows a how-to page from its first block to its last: SQL of an administrator, files, commands, servers.

Its ports and passwords become those of a `Place`. All else is run as it is written.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from app.embedded.binaries import find_postgres
from load.children import Child, wait_for_port
from tests.docs.pages import Fence, fences
from tests.docs.production import SECRET, PostgresOnPort
from tests.docs.test_examples import normal, until_ready
from tests.patience import PATIENCE_S, wait_until
from tests.support import ROOT

SERVERS = ("./gapless serve", "venv/bin/python manage.py runserver", "venv/bin/uvicorn")
"""What a command that does not end begins with. It is the last of its block."""
FILE = re.compile(r"# ([\w./]+\.py)(, at its end)?\n")
"""The first line of a block that is a file."""
_PASSWORD = re.compile(r"""(?<=[':])PASSWORD(?=['@])|(?<=: ")PASSWORD(?=")""")
_SHELL = 'curl() { command curl -sS "$@"; }\n'


@dataclass(slots=True)
class Place:
    """An administrator's Postgres, a folder for the application, a port of the service and one of the
    application. Unless it is `installing`, the application uses the packages that are here."""

    folder: Path
    postgres: PostgresOnPort
    port: int
    app_port: int
    installing: bool
    servers: list[Child] = field(default_factory=list)

    @property
    def app_url(self) -> str:
        return f"http://127.0.0.1:{self.app_port}"

    def follow(self, page: str) -> None:
        """Do what the page says, and compare what it shows."""
        for fence in fences(page):
            output = self._do(fence)
            if fence.answer is not None:
                assert normal(output) == normal(fence.answer), fence

    def _do(self, fence: Fence) -> str:
        if fence.language == "sql":
            return self.as_admin(self._placed(fence.text))
        if fence.language == "python":
            self._write(fence)
        elif fence.language == "sh" and fence.text.splitlines()[-1].startswith(SERVERS):
            self._serve(self._commands(fence.text))
        elif fence.language == "sh" and "curl -N" in fence.text:
            return self._streamed(self._placed(fence.text))
        elif fence.language == "sh":
            return self._ended(["bash", "-ec", _SHELL + self._commands(fence.text)])
        return ""

    def as_admin(self, text: str, database: str = "postgres") -> str:
        """Run SQL as the administrator. Returns the values."""
        return self._ended(self._psql(database), text, self.postgres.tools)

    def refusal(self, role: str, text: str, database: str = "shop") -> str:
        """What Postgres says to a login with the password of the page when it refuses this."""
        url = f"postgresql://{role}:{SECRET}@127.0.0.1:{self.postgres.port}/{database}"
        done = subprocess.run([*self._psql(url), "-c", text], capture_output=True, text=True)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def end(self) -> None:
        """End the servers, the last one first."""
        while self.servers:
            self.servers.pop().stop(PATIENCE_S)

    def _placed(self, text: str) -> str:
        for documented, own in ((5432, self.postgres.port), (8080, self.port), (8000, self.app_port)):
            text = re.sub(rf"\b{documented}\b", str(own), text)
        return _PASSWORD.sub(SECRET, text)

    def _commands(self, text: str) -> str:
        """Commands for this place. Those that need the network are tried three times."""
        if self.installing:
            text = text.replace("python3 -m venv", f"{sys.executable} -m venv")
            return self._placed(text.replace("venv/bin/pip ", f"{ROOT}/.ci/thrice venv/bin/pip "))
        installs = ("python3 -m venv", "venv/bin/pip ")
        kept = "\n".join(line for line in text.splitlines() if not line.startswith(installs))
        return self._placed(kept.replace("venv/bin/", f"{Path(sys.executable).parent}/"))

    def _write(self, fence: Fence) -> None:
        named = FILE.match(fence.text)
        assert named is not None, f"{fence} names no file"
        path = self.folder / named[1]
        assert not named[2] or path.exists(), f"{fence} goes to the end of a file that is not there"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if named[2] else "w") as file:
            file.write(self._placed(fence.text))

    def _serve(self, script: str) -> None:
        """Start what does not end, and wait until it can be used."""
        *lines, last = script.splitlines()
        text = "\n".join([f"cd {self._folder_of(script)}", *lines, f"exec {last}"])
        log = self.folder.parent / f"server-{len(self.servers)}.log"
        server = Child(["bash", "-ec", text], log, self._environment()).start()
        self.servers.append(server)
        if "./gapless" not in script:
            wait_for_port(self.app_port, server)
            return
        wait_for_port(self.port, server)
        ready = f"http://127.0.0.1:{self.port}/readyz"
        wait_until(lambda: self._is_ready(httpx.get(ready, timeout=PATIENCE_S)))

    @staticmethod
    def _is_ready(answer: httpx.Response) -> bool:
        return bool(answer.json().get("redis"))

    def _streamed(self, command: str) -> str:
        """What a stream says until it has sent all history."""
        words = ["bash", "-ec", f"exec {command.replace('curl', 'curl -sS', 1)}"]
        environment = {**os.environ, **self._environment()}
        with subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as stream:
            said = until_ready(stream)
            os.killpg(stream.pid, signal.SIGKILL)
        return said

    def _ended(self, command: Sequence[str], text: str = "", more: Mapping[str, str] | None = None) -> str:
        """The output of what has to succeed."""
        done = subprocess.run(
            command,
            input=text,
            env={**os.environ, **self._environment(), **(more or {})},
            cwd=self._folder_of(command[-1]),
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE_S,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _folder_of(self, script: str) -> Path:
        return ROOT if "./gapless" in script else self.folder

    def _environment(self) -> dict[str, str]:
        home = self.folder.parent / "gapless-home"
        return {"PYTHONPATH": "", "GAPLESS_HOME": str(home), "GAPLESS_PORT": str(self.port)}

    @staticmethod
    def _psql(database: str) -> list[str]:
        program = str(find_postgres().program("psql"))
        return [program, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database]
