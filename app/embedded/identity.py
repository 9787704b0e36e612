"""Chooses the user that Postgres runs as. Postgres refuses root, but containers often have only root."""

import os
import pwd
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from app.embedded import folders
from app.embedded.errors import EmbeddedError

_EXEC_SERVER = str(Path(__file__).with_name("exec_server.py"))


class Kind(StrEnum):
    SELF = "self"
    NAMESPACE = "namespace"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Identity:
    """The user that a server runs as. `uid` and `gid` are those that the server itself sees."""

    kind: Kind
    uid: int
    gid: int

    def command(self, program: list[str], *, death_signal: int, needed: str = "") -> list[str]:
        """The command that runs `program` as this identity and ends it when the calling thread ends.

        `needed` is the access that it must have, such as `x:/folder` or `rwx:/folder`; else it exits with
        126.
        """
        facts = [str(int(death_signal)), str(os.getpid()), self.kind, str(self.uid), str(self.gid), needed]
        return [sys.executable, "-I", "-S", _EXEC_SERVER, *facts, "--", *program]

    def own(self, folder: Path) -> None:
        """Give a folder and its contents to the identity if that is another user of the machine."""
        if self.kind is Kind.USER:
            folders.give(folder, self.uid, self.gid)

    def owner(self) -> tuple[int, int] | None:
        """The (uid, gid) that must own the server's folders; None if that is this user."""
        return (self.uid, self.gid) if self.kind is Kind.USER else None

    def admit(self, home: Path) -> None:
        """Let another user of the machine enter root's home, but not list it, to reach its own folders
        there."""
        if self.kind is Kind.USER and home.stat().st_uid == 0:
            home.chmod(0o711)


def own_identity() -> Identity:
    return Identity(Kind.SELF, os.geteuid(), os.getegid())


def choose(data: Path, program: Path) -> Identity:
    """The identity for a server on `data`. It is this user, or for root the first of these that works here:

    the owner of existing data; a user namespace, which needs no change of ownership; the user `nobody`.
    Raises `EmbeddedError` if none works.
    """
    if os.geteuid() != 0:
        return own_identity()
    refusals = []
    for identity in _candidates(data):
        identity.admit(data.parent)
        version = [str(program), "--version"]
        probe = identity.command(version, death_signal=9, needed=_needed(data, identity))
        result = subprocess.run(probe, capture_output=True, text=True, cwd="/", check=False)
        if result.returncode == 0:
            return identity
        refusals.append(result.stderr.strip().removeprefix("gapless: "))
    raise EmbeddedError(
        f"Postgres refuses to run as root, and no other user works here: {'; '.join(refusals)}."
        " Run Gapless as an ordinary user, or set GAPLESS_DATABASE_URL."
    )


def _candidates(data: Path) -> list[Identity]:
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return [Identity(Kind.USER, owner.st_uid, owner.st_gid)]
    nobody = pwd.getpwnam("nobody")
    # Inside the namespace the user must have a name, because initdb looks it up. It must not be `nobody`:
    # the namespace shows the files of every unknown user as files of `nobody`.
    known = next((entry for entry in pwd.getpwall() if entry.pw_uid not in (0, nobody.pw_uid)), nobody)
    inside = Identity(Kind.NAMESPACE, known.pw_uid, known.pw_gid)
    return [inside, Identity(Kind.USER, nobody.pw_uid, nobody.pw_gid)]


def _needed(data: Path, identity: Identity) -> str:
    """The access that the identity must have: to enter the home, or to write where no owner is changed."""
    if identity.kind is Kind.USER:
        return f"x:{data.parent}"
    return f"rwx:{data if data.exists() else data.parent}"
