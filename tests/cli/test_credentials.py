"""Every command that asks the service × every credential that must not do."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from subscriptions.domain.principal import Action
from tests.cli.conftest import Run
from tests.cli.test_help import COMMANDS, INNER, JOBS
from tests.integration.asking import NOWHERE, Named
from tests.integration.tenants import Tenants
from tests.integration.test_credentials import ELSEWHERE, NOISE, here

__all__ = ["here"]  # a fixture

HERE_ONLY = {"serve", "doctor", "backup", "restore", "psql", "bench", "token", "migrate", "version"}
NOT_ALONE = {"definitions"}
"""A group that does nothing by itself."""
ON_DATABASE = {"keys", "namespaces", "secrets"}
"""Groups whose commands are the owner's of the database, and ask no service."""
KINDS = ("nothing", "no key", "another secret", "revoked", "expired", "expired token", "forged token")
REQUEST = re.compile(r" \(request [\w-]+\)|[\d.]+ s, \d+ msg/s")
ENDLESS = {"subscribe"}
"""It waits for messages where a channel has none."""


def asking(named: Named, folder: Path) -> dict[str, list[str]]:
    """The arguments of each command that asks the service, about these names. Its files go to the folder."""
    name, dead, later = named.name, str(named.dead_letter), str(named.scheduled)
    lines, document = folder / f"{name}.jsonl", folder / f"{name}.json"
    lines.write_text(json.dumps({"channel": name, "data": 1}) + "\n")
    document.write_text(json.dumps({"version": 1, "channels": [{"name": name, "message_ttl": 9}]}))
    return {
        "publish": [name, "1"],
        "subscribe": [name, "--from", "earliest", "--count", "1"],
        "history": [name],
        "channels": [],
        "channels show": [name],
        "channels set": [name, "--message-ttl", "9"],
        "channels delete": [name, "--yes"],
        "consume": [name, "--count", "1"],
        "subscriptions": [],
        "subscriptions list": [],
        "subscriptions show": [name],
        "subscriptions create": [name, name, "--max-deliver", "9"],
        "subscriptions update": [name, "--max-deliver", "9"],
        "subscriptions delete": [name, "--yes"],
        "subscriptions seek": [name, "earliest"],
        "subscriptions pause": [name],
        "subscriptions resume": [name],
        "dead-letters": [],
        "dead-letters list": [],
        "dead-letters show": [dead],
        "dead-letters replay": [dead],
        "dead-letters purge": ["--older-than", "0", "--yes"],
        "dead-letters delete": [dead, "--yes"],
        "scheduled": [],
        "scheduled list": [],
        "scheduled show": [later],
        "scheduled cancel": [later],
        "scheduled promote": [later],
        "policies": [],
        "policies list": [],
        "policies show": [name],
        "policies put": [name, '{"message_ttl": 9}', "--pattern", name, "--applies-to", "channels"],
        "policies delete": [name, "--yes"],
        "definitions export": [],
        "definitions import": [str(document)],
        "import": [str(lines), "--patience", "0"],
    }


LISTS = {
    "channels", "subscriptions", "subscriptions list", "dead-letters", "dead-letters list", "scheduled",
    "scheduled list", "policies", "policies list", "definitions export",
}  # fmt: skip
"""Without names of their own. They show what is granted."""


def blanked(text: str, named: Named) -> str:
    """What a command says, without the names that it was asked for, and what each run has of its own."""
    for number in (named.message, named.dead_letter, named.scheduled):
        text = re.sub(rf"not found: {number}\b", "not found: ~", text)
    return REQUEST.sub("", NOISE.sub("#", named.blank(text)))


def test_every_command_is_among_them(tmp_path: Path) -> None:
    inner = {f"{group} {one}" for group, names in INNER.items() for one in names if group not in ON_DATABASE}
    bare = set(COMMANDS) - HERE_ONLY - NOT_ALONE - ON_DATABASE - set(JOBS)
    assert set(asking(NOWHERE, tmp_path)) == bare | inner


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.drill)])
def test_no_command_does_anything_without_a_good_credential(
    here: Tenants, run: Run, tmp_path: Path, every: bool
) -> None:
    """In the short form, each command with one of the credentials in turn."""
    before = asyncio.run(here.stored())
    bad = {kind: "".join(here.bad[kind]).removeprefix("Bearer ") for kind in KINDS}
    for number, (command, arguments) in enumerate(asking(here.held[0], tmp_path).items()):
        for kind in KINDS if every else [KINDS[number % len(KINDS)]]:
            token = {"GAPLESS_TOKEN": bad[kind]} if bad[kind] else {}
            done = run(*command.split(), *arguments, code=1, url=here.url, **token)
            assert done.stdout == "", (command, kind)
            assert ": unauthenticated: " in done.stderr, (command, kind, done.stderr)
    assert asyncio.run(here.stored()) == before


@pytest.mark.drill
def test_a_command_is_refused_to_who_was_granted_other_names_or_other_actions(
    here: Tenants, run: Run, tmp_path: Path
) -> None:
    elsewhere = asyncio.run(here.key(*Action, on=ELSEWHERE))
    moderate = asyncio.run(here.key(Action.MODERATE, Action.ADMIN))
    before = asyncio.run(here.stored())
    for command, arguments in asking(here.held[0], tmp_path).items():
        for key in (moderate,) if command in LISTS else (elsewhere, moderate):
            done = run(*command.split(), *arguments, code=1, url=here.url, GAPLESS_TOKEN=key)
            assert done.stdout == "", command
            assert "the credential does not grant" in done.stderr, (command, done.stderr)
    assert asyncio.run(here.stored()) == before


@pytest.mark.drill
def test_a_command_says_nothing_of_another_namespace(here: Tenants, run: Run, tmp_path: Path) -> None:
    """What is there is as what is nowhere."""
    before = asyncio.run(here.objects())
    held, nowhere = (asking(named, tmp_path) for named in (here.held[0], NOWHERE))
    for command in held:
        if command in ENDLESS:
            continue
        told = []
        for named, arguments in ((here.held[0], held[command]), (NOWHERE, nowhere[command])):
            done = run(*command.split(), *arguments, code=None, url=here.url, GAPLESS_TOKEN=here.theirs)
            told.append((done.returncode, blanked(done.stdout, named), blanked(done.stderr, named)))
        assert told[0] == told[1], command
    assert asyncio.run(here.objects()) == before
