"""Receipts: what was written is read back, and nothing else is."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.message.receipts import RECEIPT_CHARACTERS, ReceiptCodec
from subscriptions.domain.delivery import Receipt

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


@pytest.mark.parametrize("secret", [b"", b"x", b"x" * 1000])
def test_a_secret_of_any_length(secret: bytes) -> None:
    codec = ReceiptCodec(secret)
    assert codec.decode(codec.encode(RECEIPT)) == RECEIPT
