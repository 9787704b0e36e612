"""`gapless token`: makes a JWT, for trying and for scripts."""

from __future__ import annotations

import os
import secrets
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from gapless_cli.failures import Failure, say, usage
from gapless_cli.options import whole_seconds

if TYPE_CHECKING:
    from app.http.token_keys import TokenKey

EXAMPLES = """
Examples:

  gapless token --new-key keys.json                  makes a key for HS256 in a file; serve reads it too
  export GAPLESS_JWT_KEYS=keys.json
  gapless token ann --grant 'publish,subscribe:chat.>'
  gapless token ann --grant 'subscribe:chat.lobby' --expires 10m --namespace acme

The token goes to stdout. An application makes its own, with any JWT library and the same key: claims sub,
exp, ns and grants. GAPLESS_JWT_ISSUER and GAPLESS_JWT_AUDIENCE are put in.
"""
NEW_KEY_BYTES = 32


def token(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Who will use it: the sub.", show_default=False)
    ] = None,
    grant: Annotated[
        list[str] | None, typer.Option(metavar="ACTIONS:PATTERNS", help="May be given several times.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Where it is good: the ns.")] = "default",
    expires: Annotated[str, typer.Option(metavar="TIME", help="After so long: 10m.")] = "1h",
    key: Annotated[str | None, typer.Option(metavar="KID", help="Which key of the file signs.")] = None,
    new_key: Annotated[
        Path | None, typer.Option("--new-key", metavar="FILE", help="Make a file with a new key, and end.")
    ] = None,
) -> None:
    """Make a token (JWT) with a key of the file GAPLESS_JWT_KEYS, and print it."""
    if new_key is not None:
        _make_file(new_key)
        return
    if name is None:
        raise usage("say who will use it: gapless token ann --grant 'subscribe:chat.>'")
    if not grant:
        raise usage("say what it may do: --grant 'publish,subscribe:chat.>'")
    import jwt
    import msgspec

    from app.cli.keys import grants_of
    from app.cli.settings import settings_from
    from app.message.grants import grant_documents
    from subscriptions.domain.principal import Action

    settings, grants = settings_from(), grants_of(grant)
    if any(Action.ADMIN in one.actions for one in grants):
        raise usage("--grant: no token makes an admin; gapless keys create makes a key that does")
    lifetime_s = whole_seconds(expires, "--expires")
    if lifetime_s > settings.jwt_max_lifetime:
        longest = f"{settings.jwt_max_lifetime:g} seconds, GAPLESS_JWT_MAX_LIFETIME"
        raise usage(f"--expires {expires!r} is longer than the service accepts: {longest}")
    signing = _signing_key(settings.jwt_keys, key)
    now = int(time.time())
    claims = {
        "sub": name,
        "ns": namespace,
        "iat": now,
        "exp": now + lifetime_s,
        "grants": msgspec.to_builtins(grant_documents(grants)),
    }
    if settings.jwt_issuer is not None:
        claims["iss"] = settings.jwt_issuer
    if settings.jwt_audience is not None:
        claims["aud"] = settings.jwt_audience
    headers = None if signing.id is None else {"kid": signing.id}
    typer.echo(jwt.encode(claims, signing.key, algorithm=signing.algorithm, headers=headers))


def _signing_key(file: Path | None, key_id: str | None) -> TokenKey:
    from app.http.token_keys import TokenKeyError, load_keys

    if file is None:
        raise usage("set GAPLESS_JWT_KEYS to a file of keys; gapless token --new-key FILE makes one")
    try:
        keys = [one for one in load_keys(file) if one.signs and key_id in (None, one.id)]
    except TokenKeyError as error:
        raise Failure(f"GAPLESS_JWT_KEYS: {file} {error}") from None
    if not keys:
        raise Failure(f"{file} has no key that signs" + ("" if key_id is None else f", of kid {key_id}"))
    return keys[0]


def _make_file(path: Path) -> None:
    import json

    secret = urlsafe_b64encode(secrets.token_bytes(NEW_KEY_BYTES)).rstrip(b"=").decode()
    jwk = {"kty": "oct", "kid": secrets.token_hex(4), "alg": "HS256", "use": "sig", "k": secret}
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise Failure(f"cannot make {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as file:
        json.dump({"keys": [jwk]}, file, indent=2)
        file.write("\n")
    say(f"{path} has a new key for HS256; set GAPLESS_JWT_KEYS to it")
