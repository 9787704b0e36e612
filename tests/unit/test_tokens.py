"""JWTs: which are good, and which are refused, whatever they say of themselves."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from app.http import tokens as module
from app.http.principals import Principals
from app.http.token_keys import TokenKey, TokenKeyError, TokenKeys, load_keys, read_keys
from app.http.tokens import TokenRules, Tokens
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.key import written
from subscriptions.domain.principal import Action, Grant, Principal
from tests.support import ROOT
from tests.unit.test_principals import SECRET as KEY
from tests.unit.test_principals import Stored, StoredTickets, bearer, key, sent

NOW = 1_700_000_000
SECRET = bytes(range(32))
GRANTS = [{"actions": ["publish", "subscribe"], "channels": ["chat.>"]}]


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


OCT = {"kty": "oct", "kid": "h", "k": text(SECRET)}
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def jwk(private: Any, kid: str, *, secret: bool = False) -> dict[str, Any]:
    algorithm = {"r": jwt.algorithms.RSAAlgorithm, "e": jwt.algorithms.ECAlgorithm}.get(
        kid[0], jwt.algorithms.OKPAlgorithm
    )
    found: dict[str, Any] = algorithm.to_jwk(  # type: ignore[attr-defined]
        private if secret else private.public_key(), as_dict=True
    )
    return {**found, "kid": kid}


SET = [OCT, jwk(RSA, "r"), jwk(EC, "e"), jwk(ED, "d")]
SIGNING = {"h": (SECRET, "HS256"), "r": (RSA, "RS256"), "e": (EC, "ES256"), "d": (ED, "EdDSA")}


def keys(*jwks: dict[str, Any]) -> tuple[TokenKey, ...]:
    return read_keys(json.dumps({"keys": list(jwks)}), published=False)


def claims(**changes: Any) -> dict[str, Any]:
    found = {"sub": "ann", "ns": "acme", "iat": NOW, "exp": NOW + 600, "grants": GRANTS, **changes}
    return {name: value for name, value in found.items() if value is not None}


def token(kid: str = "h", header: dict[str, Any] | None = None, **changes: Any) -> str:
    key_, algorithm = SIGNING[kid]
    return jwt.encode(claims(**changes), key_, algorithm, headers={"kid": kid, **(header or {})})  # type: ignore[arg-type]


def by_hand(header: dict[str, Any], body: str | dict[str, Any], secret: bytes | None) -> str:
    """A token as no library makes it."""
    payload = body if isinstance(body, str) else json.dumps(body)
    signed = f"{text(json.dumps(header).encode())}.{text(payload.encode())}"
    mac = b"" if secret is None else hmac.digest(secret, signed.encode(), hashlib.sha256)
    return f"{signed}.{text(mac)}"


def checking(rules: TokenRules | None = None, *, now_s: float = NOW) -> Tokens:
    return Tokens(TokenKeys(keys(*SET)), rules or TokenRules(), lambda: int(now_s * 1e6))


def refusal(found: Tokens, sent_: str) -> str:
    with pytest.raises(GaplessError) as error:
        found.read(sent_)
    assert error.value.code is Code.UNAUTHENTICATED
    return error.value.detail


@pytest.mark.parametrize("kid", SIGNING)
def test_a_token_is_who_it_names(kid: str) -> None:
    found = checking().read(token(kid))
    grants = (Grant(frozenset({Action.PUBLISH, Action.SUBSCRIBE}), ("chat.>",)),)
    assert found == Principal("acme", "ann", grants, expires_at_us=(NOW + 600) * 1_000_000)
    assert found.key_id is None
    assert not found.operator


def test_what_is_left_out_grants_nothing() -> None:
    found = checking(TokenRules("here")).read(token(ns=None, grants=None, iat=None))
    assert found is not None
    assert (found.namespace, found.grants) == ("here", ())


HEADER = {"alg": "HS256", "typ": "JWT", "kid": "h"}
PUBLIC = RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
ATTACKS: dict[str, tuple[str, str]] = {
    "no algorithm": (by_hand({**HEADER, "alg": "none"}, claims(), None), "alg must be one of"),
    "None": (by_hand({**HEADER, "alg": "None"}, claims(), None), "alg must be one of"),
    "nOnE": (by_hand({**HEADER, "alg": "nOnE"}, claims(), None), "alg must be one of"),
    "empty": (by_hand({**HEADER, "alg": ""}, claims(), None), "alg must be one of"),
    "missing": (by_hand({"kid": "h"}, claims(), None), "alg must be one of"),
    "null": (by_hand({**HEADER, "alg": None}, claims(), None), "alg must be one of"),
    "a list": (by_hand({**HEADER, "alg": ["HS256"]}, claims(), SECRET), "alg must be one of"),
    "another hash": (by_hand({**HEADER, "alg": "HS512"}, claims(), SECRET), "alg must be one of"),
    "no signature": (by_hand(HEADER, claims(), None), "signature does not fit"),
    "another secret": (by_hand(HEADER, claims(), b"x" * 32), "signature does not fit"),
    "the public key as a secret": (
        by_hand({**HEADER, "kid": "r"}, claims(), PUBLIC),
        "alg is not that of its key",
    ),
    "another family": (by_hand({**HEADER, "alg": "RS256"}, claims(), SECRET), "alg is not that of its key"),
    "crit": (by_hand({**HEADER, "crit": ["exp"]}, claims(), SECRET), "is no JWT"),
    "another typ": (by_hand({**HEADER, "typ": "logout+jwt"}, claims(), SECRET), "typ or crit"),
    "no exp": (token(exp=None), "has no exp"),
    "exp as a fraction": (token(exp=NOW + 600.5), "exp must be an integer"),
    "exp as text": (token(exp=str(NOW + 600)), "exp must be an integer"),
    "exp without an end": (by_hand(HEADER, json.dumps(claims(exp=1e30)), SECRET), "exp must be an integer"),
    "exp as infinity": (
        by_hand(HEADER, json.dumps(claims(exp=float("inf"))), SECRET),
        "exp must be an integer",
    ),
    "exp true": (by_hand(HEADER, claims(exp=True), SECRET), "exp must be an integer"),
    "exp far away": (by_hand(HEADER, claims(exp=10**40), SECRET), "lasts longer than"),
    "expired": (token(exp=NOW), "has expired"),
    "longer than allowed": (token(exp=NOW + 86_401), "lasts longer than 86400 s"),
    "issued long ago": (token(iat=NOW - 86_000, exp=NOW + 600), "lasts longer than"),
    "issued later": (token(iat=NOW + 61), "not good yet"),
    "iat as text": (token(iat="now"), "iat must be an integer"),
    "not before later": (token(nbf=NOW + 61), "not good yet"),
    "nbf as a fraction": (token(nbf=NOW + 0.5), "nbf must be an integer"),
    "no sub": (token(sub=None), "has no sub"),
    "sub empty": (token(sub=""), "1 to 255"),
    "sub of two lines": (token(sub="a\nb"), "control characters"),
    "sub too long": (token(sub="x" * 256), "1 to 255"),
    "sub a number": (by_hand(HEADER, claims(sub=7), SECRET), "cannot be read"),
    "an audience that nobody asked for": (token(aud="other"), "another audience"),
    "ns a pattern": (token(ns="*"), "name of a namespace"),
    "ns a number": (token(ns=7), "name of a namespace"),
    "grants a text": (token(grants="all"), "grants do not fit"),
    "an unknown action": (token(grants=[{"actions": ["fly"], "channels": [">"]}]), "grants do not fit"),
    "an unknown member": (token(grants=[{**GRANTS[0], "operator": True}]), "grants do not fit"),
    "no pattern": (token(grants=[{**GRANTS[0], "channels": ["a..b"]}]), "grants do not fit"),
    "an admin": (token(grants=[{"actions": ["admin"], "channels": [">"]}]), "no token makes an admin"),
    "too long": (token(name="x" * 9000), "longer than 8192"),
    "no JSON": (by_hand(HEADER, "what", SECRET), "cannot be read"),
    "no object": (by_hand(HEADER, "[]", SECRET), "cannot be read"),
    "no base64": ("a.b.c", "is no JWT"),
    "empty parts": ("..", "is no JWT"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_not_good_is_refused(attack: str) -> None:
    sent_, says = ATTACKS[attack]
    assert says in refusal(checking(), sent_)


@pytest.mark.parametrize(
    "header",
    [
        {"kid": "../../../dev/null"},
        {"kid": "h' or '1'='1"},
        {"kid": "H"},
        {"kid": ""},
        {"jku": "https://evil.example/keys", "kid": "evil"},
        {"jwk": OCT, "kid": "evil"},
        {"x5u": "https://evil.example/cert", "kid": "evil"},
    ],
)
def test_only_keys_of_the_settings_are_looked_up(header: dict[str, Any]) -> None:
    """An unknown key is nobody's: `find` refuses it after a look for new ones."""
    assert checking().read(by_hand({**HEADER, **header}, claims(), SECRET)) is None


@pytest.mark.parametrize("kid", [None, 7, ["h"], {"h": 1}])
def test_a_kid_that_is_no_text_is_refused(kid: Any) -> None:
    assert "is no JWT" in refusal(checking(), by_hand({**HEADER, "kid": kid}, claims(), SECRET))


def test_one_key_needs_no_kid() -> None:
    one = Tokens(TokenKeys(keys(OCT)), TokenRules(), lambda: NOW * 1_000_000)
    assert one.read(by_hand({"alg": "HS256"}, claims(), SECRET)) is not None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"iss": "us", "aud": "gapless"}, None),
        ({"iss": "us", "aud": ["other", "gapless"]}, None),
        ({"iss": "us"}, "has no aud"),
        ({"aud": "gapless"}, "has no iss"),
        ({"iss": "them", "aud": "gapless"}, "another issuer"),
        ({"iss": ["us"], "aud": "gapless"}, "another issuer"),
        ({"iss": "us", "aud": "other"}, "another audience"),
        ({"iss": "us", "aud": 7}, "another audience"),
    ],
)
def test_issuer_and_audience_are_those_of_the_settings(changes: dict[str, Any], says: str | None) -> None:
    found = checking(TokenRules(issuer="us", audience="gapless"))
    sent_ = by_hand(HEADER, claims(**changes), SECRET)
    if says is None:
        assert found.read(sent_) is not None
    else:
        assert says in refusal(found, sent_)


def test_what_a_token_opened_ends_when_it_expires() -> None:
    now_us = NOW * 1_000_000
    found = Tokens(TokenKeys(keys(OCT)), TokenRules(), lambda: now_us)
    first, second = token(), token(exp=NOW + 700)
    one, two = found.read(first), found.read(second)
    assert one is found.read(first)
    assert one is not None
    assert two is not None
    now_us += 600 * 1_000_000
    assert "has expired" in refusal(found, first)
    found.end_expired()
    assert (one.lifetime.over, two.lifetime.over) == (True, False)
    assert "has expired" in refusal(found, first)
    assert repr(found) == "Tokens(TokenKeys(1 keys), 1 kept)"


def test_only_tokens_that_something_depends_on_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    found = checking()
    watched = found.read(token(sub="watched"))
    assert watched is not None
    watched.lifetime.watch(lambda: None)
    for number in range(20):
        assert found.read(token(sub=f"n{number}")) is not None
    assert found.read(token(sub="watched")) is watched


@pytest.mark.parametrize(
    ("jwks", "says"),
    [
        ([{**OCT, "k": text(b"short")}], "fewer than 32 bytes"),
        ([{**OCT, "alg": "HS512"}], "alg that is not HS256"),
        ([{**OCT, "use": "enc"}], "not for signatures"),
        ([{**OCT, "key_ops": ["encrypt"]}], "not for signatures"),
        ([{**OCT, "kid": 7}], "kid that is no text"),
        ([{**OCT, "kid": ""}], "kid that is no text"),
        ([OCT, OCT], "kid of another one"),
        ([{"kty": "oct", "k": text(SECRET)}, OCT], "each needs a kid"),
        ([{"kty": "EC", "crv": "P-521", "x": "", "y": ""}], "no kind that is known"),
        ([{"kty": "RSA", "kid": "r"}], "cannot be read"),
        ([{"kty": ["oct"]}], "no kind that is known"),
        ([jwk(rsa.generate_private_key(65537, 1024), "r")], "fewer than 2048 bits"),
        ([OCT] * 101, "more than 100 keys"),
    ],
)
def test_keys_that_are_no_good_are_named_and_not_shown(jwks: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(TokenKeyError, match=says) as error:
        keys(*jwks)
    assert text(SECRET) not in str(error.value)


@pytest.mark.parametrize("document", ["", "{}", "[]", '{"keys": 7}', '{"keys": [7]}'])
def test_a_file_that_is_no_set_of_keys_is_refused(tmp_path: Path, document: str) -> None:
    (tmp_path / "keys.json").write_text(document)
    with pytest.raises(TokenKeyError, match="must be a JWK set"):
        load_keys(tmp_path / "keys.json")


def test_a_file_that_is_empty_or_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"keys": []}')
    with pytest.raises(TokenKeyError, match="has no keys"):
        load_keys(tmp_path / "keys.json")
    with pytest.raises(TokenKeyError, match="cannot be read: No such file"):
        load_keys(tmp_path / "nothing.json")


def test_of_published_keys_only_public_ones_are_taken() -> None:
    document = json.dumps({"keys": [OCT, jwk(RSA, "r", secret=True), jwk(EC, "e"), {"kty": "new"}]})
    assert [one.id for one in read_keys(document, published=True)] == ["e"]


class Publisher:
    """An issuer that publishes keys, on a clock that the test moves."""

    def __init__(self, *jwks: dict[str, Any]) -> None:
        self.jwks = list(jwks)
        self.asked = 0
        self.away = False
        self.now_s = 0.0

    async def fetch(self, url: str) -> bytes:
        self.asked += 1
        if self.away:
            raise httpx.ConnectError("away")
        return json.dumps({"keys": self.jwks}).encode()

    def keys(self, *own: dict[str, Any]) -> TokenKeys:
        return TokenKeys(keys(*own), "https://issuer", fetch=self.fetch, clock=lambda: self.now_s)


async def test_a_new_key_is_found_and_looked_for_once_a_minute() -> None:
    issuer = Publisher(jwk(RSA, "r"))
    found = issuer.keys()
    principals = Principals("default", lambda: 0, tokens=Tokens(found, TokenRules(), lambda: NOW * 1_000_000))
    principals.bind(Stored(), StoredTickets())
    await principals.look()
    assert (await principals.find(bearer(token("r")))).subject == "ann"
    assert issuer.asked == 1
    issuer.jwks.append(jwk(EC, "e"))
    for _ in range(5):
        with pytest.raises(GaplessError, match="is unknown"):
            await principals.find(bearer(token("e")))
    assert issuer.asked == 1, "a flood of unknown keys asks nobody"
    issuer.now_s += 60
    assert (await principals.find(bearer(token("e")))).subject == "ann"
    assert issuer.asked == 2


async def test_old_keys_are_good_while_the_issuer_is_away_and_end_when_it_says_so() -> None:
    issuer = Publisher(jwk(RSA, "r"))
    found = issuer.keys(OCT)
    checked = Tokens(found, TokenRules(), lambda: NOW * 1_000_000)
    await found.refresh()
    published, own = checked.read(token("r")), checked.read(token("h"))
    assert published is not None
    assert own is not None
    issuer.away = True
    issuer.now_s += 60
    await found.refresh()
    checked.end_expired()
    assert checked.read(token("r")) is published
    assert not published.lifetime.over
    issuer.away = False
    issuer.jwks = [jwk(EC, "e")]
    issuer.now_s += 60
    await found.refresh()
    checked.end_expired()
    assert (published.lifetime.over, own.lifetime.over) == (True, False)
    assert checked.read(token("r")) is None


async def test_while_the_keys_were_never_read_nothing_is_done() -> None:
    issuer = Publisher()
    issuer.away = True
    checked = Tokens(issuer.keys(), TokenRules(), lambda: NOW * 1_000_000)
    principals = Principals("default", lambda: 0, tokens=checked)
    stored = Stored(key())
    principals.bind(stored, StoredTickets())
    await principals.look()
    with pytest.raises(GaplessError) as error:
        await principals.find(bearer(token("r")))
    assert error.value.code is Code.UNAVAILABLE
    stored.set(key(), key("b" * 12))
    assert (await principals.find(bearer(written("b" * 12, KEY)))).namespace == "acme", "keys need no issuer"


async def test_with_tokens_every_request_needs_a_credential_for_good() -> None:
    stored = Stored()
    principals = Principals("default", lambda: 0, tokens=checking())
    principals.bind(stored, StoredTickets())
    await principals.look()
    with pytest.raises(GaplessError) as error:
        principals.of(sent())
    assert error.value.code is Code.UNAUTHENTICATED
    assert stored.now.required


def test_a_service_without_tokens_does_not_load_what_checks_them() -> None:
    """Each of its processes would start a tenth later."""
    code = "import sys, app.process.application; print({'jwt', 'httpx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "set()\n"
