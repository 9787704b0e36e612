"""One word for one thing: names in the code use the words of docs/glossary.md, and none that it refuses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.repo.glossary import Glossary, read, stem, words_of
from tests.repo.test_sql import functions
from tests.repo.test_tree import ROOT

NAMED_BY_TERMS = ("subscriptions", "app/faces", "db")
"""Here each word of a module, a public class and a method of a port is in the glossary, or plain."""
NOTHING_UNWANTED = ("subscriptions", "app", "cache", "db")
"""Here no name has an unwanted word."""
OF_ITS_OWN = {
    "client": {"format", "record", "renew", "retry policy"},
    "pipeline": {"cache", "format", "metadata", "partition"},
    "load": {"api", "connector", "format", "partition", "record", "reject"},
}
"""Here neither, but for words that mean something else there: those of Spark, of tables, of HTTP clients."""

PLAIN_WORDS = """
above all alone at due from gone much new once reported to too
apply begin cancel change connect count crowded delete drop end failed overdue remove run try unused
app buffer clock code codec commit complete config dependency depth error fact field gapless handle job length
limit listener lock lookup model name page pending pool port queue room row signature split state stats
system target task time unavailable unreachable waker
address availability backup cloud database dump endpoint fetch get patch ping poll put query rotate
first nothing part request spark subscribe topic unacked unconsume url
"""
"""They mean in names what they mean everywhere: words of English, of programming, of the systems around."""
PLAIN = frozenset(PLAIN_WORDS.split())


def modules(folders: tuple[str, ...]) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "results" not in path.parts:
                yield path, ast.parse(path.read_text())


def named(path: Path, tree: ast.Module) -> Iterator[str]:
    """What a module shows to others: its name, its public classes, and the methods of ports."""
    if path.stem != "__init__":
        yield path.stem
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
            if "ports" in path.parts:
                methods = (m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef))
                yield from (method.name for method in methods if not method.name.startswith("_"))


def bound(tree: ast.Module) -> Iterator[str]:
    """All names that a module makes; those it only uses may be a library's."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case (
                ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield name


@cache
def glossary() -> Glossary:
    return read((ROOT / "docs/glossary.md").read_text())


@cache
def names_of_things() -> frozenset[str]:
    files = {path.stem for path in (ROOT / "db/functions").glob("*.sql")}
    return frozenset(files.union(*(named(path, tree) for path, tree in modules(NAMED_BY_TERMS))))


@cache
def all_names() -> frozenset[str]:
    names = {function.name.partition(".")[2] for function in functions()}
    names |= {path.stem for path, _ in modules(NOTHING_UNWANTED)}
    return frozenset(names.union(*(bound(tree) for _, tree in modules(NOTHING_UNWANTED))))


def test_things_are_named_by_terms_of_the_glossary() -> None:
    assert len(names_of_things()) > 250, "what holds of none would hold of nothing"
    unknown = {name: words for name in names_of_things() if (words := glossary().unknown(name, PLAIN))}
    assert unknown == {}, "add the term to docs/glossary.md, or use the word that is there"


def test_no_name_has_a_word_that_the_glossary_says_is_not_used() -> None:
    assert len(all_names()) > 3_000
    refused = {name: words for name in all_names() if (words := glossary().refused(name, PLAIN))}
    assert refused == {}, "use the word of docs/glossary.md"


@pytest.mark.parametrize("folder", OF_ITS_OWN)
def test_other_programs_have_few_words_of_their_own(folder: str) -> None:
    names = {path.stem for path, _ in modules((folder,))}
    names |= {name for _, tree in modules((folder,)) for name in bound(tree)}
    assert len(names) > 800
    refused = {word for name in names for word in glossary().refused(name, PLAIN)}
    assert refused == OF_ITS_OWN[folder], "use the word of docs/glossary.md"


def test_each_plain_word_is_needed() -> None:
    unknown = {stem(word) for name in names_of_things() for word in glossary().unknown(name, ())}
    refused = {word for name in all_names() for word in glossary().refused(name, ())}
    assert [word for word in sorted(PLAIN) if stem(word) not in unknown and word not in refused] == []


PAGE = """
| word | means | not |
|---|---|---|
| claim | what leases | fetch |
| to bury | to give up | |
| live subscription | a stream | consumer |
| goodbye | the last event | farewell, last word |
| tail | the newest entries | claim |
| journey | all deaths | |
| log | all messages | journal |

## You may know this as

| word elsewhere | here | beware |
|---|---|---|
| poke | claim | |
"""


@pytest.mark.parametrize(
    ("name", "unknown", "refused"),
    [
        ("Claim", [], []),
        ("claiming", [], []),
        ("ClaimedTails", [], []),
        ("burial", [], []),
        ("LiveSubscriptions", [], []),
        ("Farewell", ["farewell"], ["farewell"]),
        ("_FAREWELLS", ["farewells"], ["farewell"]),
        ("last_word_of_claim", ["last", "word"], ["last word"]),
        ("last_claim", ["last"], []),
        ("TailFetcher", ["fetcher"], []),
        ("fetch", ["fetch"], ["fetch"]),
        ("journal", [], ["journal"]),
        ("poke", ["poke"], []),
        ("of", [], []),
    ],
)
def test_names_are_judged_by_the_page(name: str, unknown: list[str], refused: list[str]) -> None:
    page = read(PAGE)
    assert page.unknown(name, {"of"}) == unknown
    assert list(page.refused(name, {"of"})) == refused


def test_a_plain_word_may_be_used() -> None:
    assert read(PAGE).refused("fetch_farewell", {"fetch"}) == {"farewell": "goodbye"}


@pytest.mark.parametrize(
    "forms",
    [
        "claim claims claimed claiming claimer",
        "policy policies",
        "delivery deliveries delivered delivering",
        "purge purges purged purging purger",
        "trim trims trimmed trimming",
        "definition definitions defining defined",
        "settle settled settlement settler",
        "compact compaction compacted",
    ],
)
def test_forms_of_a_word_have_one_stem(forms: str) -> None:
    assert len({stem(word) for word in forms.split()}) == 1


def test_words_of_a_name() -> None:
    assert words_of("LiveSubscription") == words_of("_live_SUBSCRIPTION") == ["live", "subscription"]
    assert words_of("SSEStream2") == ["sse", "stream2"]
