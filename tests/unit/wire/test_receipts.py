"""Receipts: what was written is read back, and nothing else is."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.message.receipts import RECEIPT_CHARACTERS, ReceiptCodec
from subscriptions.domain.delivery import Receipt
from subscriptions.domain.errors import Code, GaplessError

CODEC = ReceiptCodec(b"a secret of the installation")
RECEIPT = Receipt(7, 1042, 99, 3)
ALPHABET = string.ascii_letters + string.digits + "-_"
numbers = st.integers(0, 2**63 - 1)


@given(st.builds(Receipt, numbers, numbers, numbers, numbers))
def test_what_is_written_is_read_back(receipt: Receipt) -> None:
    text = CODEC.encode(receipt)
    assert len(text) == RECEIPT_CHARACTERS
    assert set(text) <= set(ALPHABET)
    assert CODEC.decode(text) == receipt


@given(st.integers(0, RECEIPT_CHARACTERS - 1), st.sampled_from(ALPHABET))
def test_no_character_can_be_changed(place: int, character: str) -> None:
    text = CODEC.encode(RECEIPT)
    forged = text[:place] + character + text[place + 1 :]
    assert CODEC.decode(forged) == (RECEIPT if forged == text else None)


@given(st.text(max_size=80) | st.text(ALPHABET, min_size=RECEIPT_CHARACTERS, max_size=RECEIPT_CHARACTERS))
def test_no_other_text_is_a_receipt(text: str) -> None:
    assert CODEC.decode(text) is None


def written() -> str:
    """A receipt that holds both characters in which the alphabets of base64 differ."""
    return next(text for n in range(1000) if {"-", "_"} <= set(text := CODEC.encode(Receipt(1, n, 1))))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text + "=",
        lambda text: text + "\n",
        lambda text: " " + text,
        lambda text: text[:-1],
        lambda text: text[:-4],
        lambda text: text[:-2] + "==",
        lambda text: text + "AAAA",
        lambda text: text.lower(),
        lambda text: text.replace("-", "+"),
        lambda text: text.replace("_", "/"),
        lambda text: text.replace("A", "А"),
        lambda text: text * 1000,
        lambda text: "",
        lambda text: "\x00" * RECEIPT_CHARACTERS,
        lambda text: "=" * RECEIPT_CHARACTERS,
    ],
)
def test_one_spelling_only(spoil: object) -> None:
    assert callable(spoil)
    assert CODEC.decode(written()) is not None
    assert CODEC.decode(spoil(written())) is None


def test_another_installation_wrote_it() -> None:
    assert ReceiptCodec(b"another secret").decode(CODEC.encode(RECEIPT)) is None
    assert ReceiptCodec(b"a secret of the installation").decode(CODEC.encode(RECEIPT)) == RECEIPT


def test_the_first_secret_signs_and_each_is_accepted() -> None:
    before, between, after = (ReceiptCodec(*secrets) for secrets in ((b"1",), (b"1", b"2"), (b"2", b"1")))
    for codec in (before, between):
        assert after.decode(codec.encode(RECEIPT)) == before.decode(codec.encode(RECEIPT)) == RECEIPT
    assert between.decode(after.encode(RECEIPT)) == RECEIPT
    assert before.decode(after.encode(RECEIPT)) is None
    after.learn([b"2"])
    assert after.decode(before.encode(RECEIPT)) is None


def test_what_may_be_signed_with_a_newer_secret_is_not_judged() -> None:
    """A process that was paused, or could not read the database, may not know the secret that signs now."""
    now = 100.0
    codec = ReceiptCodec(clock=lambda: now)
    codec.learn([b"1"], good_until=105.0)
    newer = ReceiptCodec(b"2", b"1").encode(RECEIPT)
    assert codec.decode(newer) is None
    now = 106.0
    with pytest.raises(GaplessError) as refused:
        codec.decode(newer)
    assert refused.value.code is Code.UNAVAILABLE
    assert codec.decode(ReceiptCodec(b"1").encode(RECEIPT)) == RECEIPT
    codec.learn([b"2", b"1"], good_until=111.0)
    assert codec.decode(newer) == RECEIPT


@pytest.mark.parametrize("secret", [b"", b"x", b"x" * 1000])
def test_a_secret_of_any_length(secret: bytes) -> None:
    codec = ReceiptCodec(secret)
    assert codec.decode(codec.encode(RECEIPT)) == RECEIPT
