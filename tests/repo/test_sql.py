"""The rules of the house for SQL: each function once, small, in the file of its noun, after its promise."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from subscriptions.domain.principal import Action
from tests.repo.test_tree import ROOT

DB = ROOT / "db"
HEAD = re.compile(r"^ *create (?:or replace )?(?:function|procedure) (?P<name>[\w.]+)\s*\(", re.MULTILINE)
BODY_ENDS = re.compile(r"(?P<quote>\$\w*\$).*?(?P=quote)", re.DOTALL)
MOST_LINES = 70
MOST_LINES_IN_A_FILE = 500


@dataclass(frozen=True)
class Function:
    """One definition: `lines` from `create` to the end of its body."""

    file: str
    name: str
    lines: int
    comment: str
    text: str


def functions() -> list[Function]:
    found = []
    for path in sorted((DB / "functions").glob("*.sql")):
        text = path.read_text()
        for head in HEAD.finditer(text):
            body = BODY_ENDS.search(text, head.end())
            assert body, f"{path.name}: {head['name']} has no body"
            whole = text[head.start() : body.end()]
            before = text[: head.start()].rstrip(" ")
            comment = re.search(r"(?:^ *--[^\n]*\n)+\Z", before, re.MULTILINE)
            found.append(
                Function(
                    path.name,
                    head["name"],
                    whole.count("\n") + 1,
                    comment.group() if comment else "",
                    whole,
                )
            )
    return found


def statements() -> list[Path]:
    return sorted(DB.rglob("*.sql"))


def test_a_reader_of_functions_finds_them() -> None:
    """What holds of none would hold of nothing."""
    names = {function.name for function in functions()}
    assert len(names) > 150
    assert {"gapless.publish", "gapless.claim", "gapless_internal.scan"} <= names


def test_functions_of_sql_are_small() -> None:
    assert {f.name: f.lines for f in functions() if f.lines > MOST_LINES} == {}


def test_files_of_sql_are_small() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in statements()}
    assert {name: count for name, count in lengths.items() if count > MOST_LINES_IN_A_FILE} == {}


OVERLOADED = {"gapless.publish": 2}
"""Objects of users may depend on the one without a target, so it cannot be dropped for one with more
arguments. The other has no defaults where the two differ."""


def test_each_function_of_sql_is_defined_once_and_in_its_folder() -> None:
    """By its name alone: an overload is a second function, and whoever calls it has to guess."""
    counts = Counter(function.name for function in functions())
    assert {name: count for name, count in counts.items() if count > 1} == OVERLOADED
    elsewhere = [path for path in statements() if path.parent.name != "functions"]
    assert [path.name for path in elsewhere if HEAD.search(path.read_text())] == []


def test_a_name_is_in_one_of_the_two_schemas_and_not_in_both() -> None:
    names = [function.name.split(".") for function in functions()]
    assert {schema for schema, _ in names} == {"gapless", "gapless_internal"}
    assert len({name for _, name in names}) == len(names) - len(OVERLOADED)


def test_each_function_of_sql_says_what_it_promises() -> None:
    assert [function.name for function in functions() if not function.comment] == []


def test_each_file_of_functions_says_what_it_is_about() -> None:
    files = sorted((DB / "functions").glob("*.sql"))
    assert [path.name for path in files if not path.read_text().startswith("-- ")] == []


NOUNS_TOO = {"append", "claim", "look", "stats"}
"""Files with the name of a function that is a noun as well."""


def test_files_of_functions_are_named_by_a_noun() -> None:
    """What a function does is in its own name: a file with that name has the verb."""
    names = [path.stem for path in (DB / "functions").glob("*.sql")]
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)?", name)] == []
    done = {function.name.split(".")[1] for function in functions()}
    assert done & set(names) == NOUNS_TOO


def test_what_runs_with_the_owners_rights_looks_nowhere_else() -> None:
    pinned = "set search_path = pg_catalog, pg_temp"
    owners = [f for f in functions() if re.search(r"security\s+definer", f.text)]
    assert len(owners) > 100
    assert [f.name for f in owners if pinned not in f.text] == []
    # What may be granted runs with them, or is planned as a part of its caller's statement, with its rights.
    others = [f.name for f in functions() if f.name.startswith("gapless.") and f not in owners]
    assert sorted(others) == ["gapless.admits", "gapless.hidden_by", "gapless.is_change"]


GRANTED = re.compile(r"grant execute on function (?P<names>[^;]*?)\s+to (?P<roles>[\w, %]+)[;']")
NEEDED = re.compile(r"^ *-- Needs: (?P<action>\w+) on [^\n]+\.$", re.MULTILINE)


def test_each_function_that_others_than_the_service_call_says_which_grant_it_needs() -> None:
    """Callers of SQL are asked for no credential: the grant of their role stands for it."""
    granted: set[str] = set()
    granting = (DB / "roles.sql").read_text() + (DB / "functions" / "granting.sql").read_text()
    for grant in GRANTED.finditer(granting):
        if grant["roles"] != "gapless_service":
            granted |= set(re.findall(r"gapless\.\w+", grant["names"]))
    assert {"gapless.publish", "gapless.spark_stage", "gapless.seq_at"} <= granted
    needed = {f.name: NEEDED.findall(f.comment) for f in functions() if f.name in granted}
    assert set(needed) == granted
    assert {action for actions in needed.values() for action in actions} <= set(Action)
    assert [name for name, actions in needed.items() if len(actions) != 1] == []
    publishing = [f for f in functions() if f.name in granted and needed[f.name] == [Action.PUBLISH]]
    looked_up = re.compile(r"gapless_internal\.(granted|granted_to_publish|spark_grant)\(")
    checking = {f.name for f in publishing if looked_up.search(f.text)}
    # The others are a call of one of these.
    rest = [f for f in publishing if f.name not in checking]
    assert [f.name for f in rest if not any(f"{name}(" in f.text for name in checking)] == []
