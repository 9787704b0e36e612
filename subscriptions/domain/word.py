"""Words of the protocol that are looked up often."""

from __future__ import annotations

from enum import StrEnum


class Word(StrEnum):
    """An enumeration whose members are hashed as texts. As members of an enumeration, they would be hashed by
    a call of Python at each look into a dict or a set."""

    __hash__ = str.__hash__
