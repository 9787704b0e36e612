"""A machine as docs/howto/production.md makes it: its files and commands, in a folder in place of `/`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.embedded.binaries import find_postgres, find_redis
from load.children import Child, wait_for_port
from tests.conftest import TunedPostgres
from tests.docs.pages import fences
from tests.patience import PATIENCE_S
from tests.repo.test_tree import ROOT, tracked

PAGE = "docs/howto/production.md"
OPERATIONS = "docs/operations.md"
SERVER = "events.example.org"
SECRET = "0123456789abcdef"
_PATH = re.compile(r"(?<![\w/.*:])/(?=opt/gapless|etc/|var/lib/|var/backups/|usr/local/)")


def text_with(mark: str, page: str = PAGE) -> str:
    """The one block of the page that contains this."""
    [text] = [fence.text for fence in fences(page) if mark in fence.text]
    return text


def file_text(name: str) -> str:
    """The block of the page that is this file, by its full name."""
    return text_with(f"# {name}\n")


def settings_of(text: str) -> dict[str, str]:
    """The variables of an environment file."""
    words = shlex.split(text, comments=True)
    return dict(word.split("=", 1) for word in words)


def value_of(unit: str, name: str) -> str:
    """A setting of a unit that is given once."""
    [value] = re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)
    return str(value)


class PostgresOnPort(TunedPostgres):
    """Lets logins in by password over TCP, as Debian's does, and by its socket without one."""

    port = 0

    def over(self) -> dict[str, str]:
        """See the class."""
        access = self.home / "access.conf"
        access.write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        return {"listen_addresses": "127.0.0.1", "port": str(self.port), "hba_file": str(access)}

    @property
    def tools(self) -> dict[str, str]:
        """The environment in which Postgres' tools reach it as the superuser."""
        return {"PGHOST": str(self.sockets), "PGPORT": str(self.port), "PGUSER": "postgres"}


@dataclass(frozen=True, slots=True)
class Machine:
    """`root` stands for `/`, and the ports for 5432, 6379 and 8080."""

    root: Path
    postgres: PostgresOnPort
    redis_port: int
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def placed(self, text: str) -> str:
        """A text of the page for this machine."""
        ports = {5432: self.postgres.port, 6379: self.redis_port, 8080: self.port}
        for documented, own in ports.items():
            text = text.replace(f"127.0.0.1:{documented}", f"127.0.0.1:{own}")
        as_admin = "".join(f"{name}={value} " for name, value in self.postgres.tools.items())
        for found, instead in (
            ("apt-get install --yes python3 python3-venv\n", ""),  # the machine that runs this has them
            ("useradd ", f"useradd --prefix {self.root} "),
            (" -o gapless -g gapless ", " "),
            ("runuser -u gapless -- ", "env -- "),
            ("runuser -u postgres -- ", f"env {as_admin}"),
            ("PASSWORD", SECRET),
        ):
            text = text.replace(found, instead)
        return _PATH.sub(f"{self.root}/", text)

    def write(self, name: str) -> Path:
        """Write a file of the page."""
        path = self.root / name.removeprefix("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.placed(file_text(name)))
        path.chmod(0o755 if path.read_text().startswith("#!") else 0o640)
        return path

    def unpack(self, version: str) -> Path:
        """The program, as it is here, in a folder of its own."""
        folder = self.root / "opt" / f"gapless-{version}"
        for path in tracked():
            place = folder / path.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)
        return folder

    def run(self, script: str, **environment: str) -> str:
        """Run commands of the page; they find its own commands and Postgres' tools. Returns what they say."""
        path = f"{self.root}/usr/local/bin:{find_postgres().folder}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GAPLESS_")}
        done = subprocess.run(
            ["bash", "-ec", self.placed(script)],
            env={**kept, "PATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def redis(self) -> Iterator[Child]:
        """A Redis with the lines of the page at the end of its configuration, which it may write to."""
        config = self.root / "redis.conf"
        if not config.exists():
            own = f"port {self.redis_port}\ndir {self.root}\n"
            config.write_text(own + self.placed(text_with("maxmemory-policy")))
        child = Child([str(find_redis()), str(config)], self.root / "redis.log").start()
        try:
            wait_for_port(self.redis_port, child)
            yield child
        finally:
            child.stop()

    @contextmanager
    def service(self) -> Iterator[Child]:
        """What systemd would run, with the settings that it would give."""
        unit = self.placed(file_text("/etc/systemd/system/gapless.service"))
        settings = settings_of(Path(value_of(unit, "EnvironmentFile")).read_text())
        environment = {**settings, "GAPLESS_PORT": str(self.port)}
        command = shlex.split(value_of(unit, "ExecStart"))
        child = Child(command, self.root / "gapless.log", environment).start()
        try:
            yield child
        finally:
            child.stop(PATIENCE_S)
