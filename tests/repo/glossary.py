"""The words of docs/glossary.md, and those of names in the code."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

OF_OTHER_SYSTEMS = "## You may know this as"
_SUFFIXES = (
    *("ition", "anc", "ment", "abl", "ial", "ing", "ion", "ity", "ur"),
    *("al", "ed", "er", "or", "y"),
)


@dataclass(frozen=True)
class Glossary:
    """`stems`: those of all words in terms. `unwanted`: words, or groups of words, that are used for none of
    the terms, each with the term to use. A word that is a term as well is not among them."""

    stems: frozenset[str]
    unwanted: dict[str, str]

    def unknown(self, name: str, plain: Collection[str]) -> list[str]:
        """The words of a name that are neither in a term, in whatever form, nor plain."""
        known = self.stems.union(map(stem, plain))
        return [word for word in words_of(name) if stem(word) not in known]

    def refused(self, name: str, plain: Collection[str]) -> dict[str, str]:
        """The unwanted words in a name, singular or plural, that are not plain, each with the term to use."""
        text = f" {' '.join(words_of(name))} "
        return {
            word: term
            for word, term in self.unwanted.items()
            if word not in plain and (f" {word} " in text or f" {word}s " in text)
        }


def read(page: str) -> Glossary:
    """The glossary of a page: the first and third columns of its tables. Its last table holds the words of
    other systems, and is left out."""
    terms: set[tuple[str, ...]] = set()
    unwanted: dict[tuple[str, ...], str] = {}
    for line in page.partition(OF_OTHER_SYSTEMS)[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or cells[0] == "word":
            continue
        terms.update(_listed(cells[0]))
        unwanted.update(dict.fromkeys(_listed(cells[2]), cells[0]))
    spoken = {word + plural for (word, *more) in terms if not more for plural in ("", "s")}
    spoken |= {word.removesuffix("s") for word in spoken}
    return Glossary(
        frozenset(stem(word) for term in terms for word in term),
        {word: term for group, term in unwanted.items() if (word := " ".join(group)) not in spoken},
    )


def _listed(cell: str) -> list[tuple[str, ...]]:
    """The terms of a cell, which commas part; a verb has `to` before it."""
    parts = [words_of(part.strip().removeprefix("to ")) for part in cell.split(",")]
    return [tuple(words) for words in parts if words]


def words_of(name: str) -> list[str]:
    """`LiveSubscription`, `live_subscription` and `live subscription` have the same two words."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return [word.lower() for word in re.split(r"[\W_]+", parted) if word]


def stem(word: str) -> str:
    """What the forms of a word have in common: claim, claims, claimed and claiming have one stem."""
    word = re.sub(r"(?<=...)ies$", "y", word)
    word = re.sub(r"(?<=...)s$", "", word).removesuffix("e")
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word.removesuffix(suffix)
            break
    word = word.removesuffix("e")
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word
