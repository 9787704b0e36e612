"""`gapless token`: a JWT that the service takes."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

from app.http.token_keys import TokenKeys, load_keys
from app.http.tokens import TokenRules, Tokens
from subscriptions.domain.principal import Action
from tests.cli.conftest import Run


def test_a_token_of_a_new_key(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    assert "set GAPLESS_JWT_KEYS to it" in run("token", "--new-key", str(file)).stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    settings = {"GAPLESS_JWT_KEYS": str(file), "GAPLESS_JWT_ISSUER": "us", "GAPLESS_JWT_AUDIENCE": "here"}
    made = run("token", "ann", "--grant", "publish,subscribe:chat.>", "--namespace", "acme", **settings)
    rules = TokenRules(issuer="us", audience="here")
    found = Tokens(TokenKeys(load_keys(file)), rules, lambda: time.time_ns() // 1000).read(
        made.stdout.strip()
    )
    assert found is not None
    assert (found.namespace, found.subject) == ("acme", "ann")
    assert found.grants is not None
    assert found.grants[0].actions == {Action.PUBLISH, Action.SUBSCRIBE}
    assert "cannot make" in run("token", "--new-key", str(file), code=1).stderr
    assert (
        "of kid other"
        in run("token", "ann", "--grant", "publish:a", "--key", "other", code=1, **settings).stderr
    )
    assert json.loads(file.read_text())["keys"][0]["k"] not in made.stderr


def test_a_token_that_every_service_would_refuse_is_not_made(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    run("token", "--new-key", str(file))

    def refused(*arguments: str, **settings: str) -> str:
        done = run("token", "ann", *arguments, code=2, GAPLESS_JWT_KEYS=str(file), **settings)
        assert done.stdout == ""
        return done.stderr

    assert "no token makes an admin" in refused("--grant", "admin:>")
    assert "no token makes an admin" in refused("--grant", "publish:a", "--grant", "publish,admin:a")
    reads = ("--grant", "subscribe:a")
    assert "GAPLESS_JWT_MAX_LIFETIME" in refused(*reads, "--expires", "25h")
    assert "60 seconds" in refused(*reads, GAPLESS_JWT_MAX_LIFETIME="60")
    assert "at least one" in refused(*reads, "--expires", "0d")
    made = run("token", "ann", *reads, "--expires", "24h", GAPLESS_JWT_KEYS=str(file)).stdout.strip()
    tokens = Tokens(TokenKeys(load_keys(file)), TokenRules(), lambda: time.time_ns() // 1000)
    assert tokens.read(made) is not None


def test_what_is_missing_is_said(run: Run, tmp_path: Path) -> None:
    assert "say who will use it" in run("token", code=2).stderr
    assert "say what it may do" in run("token", "ann", code=2).stderr
    assert "--new-key FILE makes one" in run("token", "ann", "--grant", "publish:a", code=2).stderr
    assert (
        "the actions before the colon"
        in run("token", "ann", "--grant", "fly:a", code=2, GAPLESS_JWT_KEYS="x").stderr
    )
    weak = tmp_path / "weak.json"
    weak.write_text('{"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}')
    refused = run("serve", code=2, GAPLESS_JWT_KEYS=str(weak)).stderr
    assert "GAPLESS_JWT_KEYS" in refused
    assert "fewer than 32 bytes" in refused
