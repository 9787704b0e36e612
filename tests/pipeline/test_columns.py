"""Columns as they come out of Postgres."""

from __future__ import annotations

from gapless_spark.columns import BINARY, arrow_schema, ddl
from gapless_spark.ranges import Range
from gapless_spark.reading import read_range
from gapless_spark.selection import Selection

from tests.pipeline.conftest import Log


def test_headers_become_maps_and_nulls_stay_nulls(plain_log: Log) -> None:
    headers = [None, '{"a": "b", "é": "😀", "empty": ""}', "{}", None, '{"z": "1", "a": "\\"quoted\\""}']
    for value in headers:
        ids = plain_log.owner.append("a", ["1"], headers=value)
    columns = ("headers", "id")
    (batch,) = read_range(plain_log.url, Selection(), columns, Range(0, ids[-1]), ordered=True)
    assert batch.schema == arrow_schema(columns)
    batch.validate(full=True)
    assert batch.column(0).to_pylist() == [
        None,
        [("a", "b"), ("é", "😀"), ("empty", "")],
        [],
        None,
        [("z", "1"), ("a", '"quoted"')],
    ]


def test_bytes_and_text_exclude_one_another(plain_log: Log) -> None:
    ids = plain_log.owner.append("a", ['{"a":1.00,  "b":"\\u0000"}', b"", b"\x00\xff"])
    (batch,) = read_range(plain_log.url, Selection(), ("data", BINARY), Range(0, ids[-1]), ordered=True)
    assert batch.column(0).to_pylist() == ['{"a":1.00,  "b":"\\u0000"}', None, None]
    assert batch.column(1).to_pylist() == [None, b"", b"\x00\xff"]


def test_the_schema_in_words() -> None:
    assert ddl(("id", "headers")) == "`id` bigint, `headers` map<string,string>"


def ids_of(log: Log, selection: Selection, lower: int = 0) -> list[tuple[int, str]]:
    """(id, channel) of everything above `lower`."""
    top = log.owner.value("select coalesce(max(id), 0) from gapless.messages")
    batches = read_range(log.url, selection, ("id", "channel"), Range(lower, top), ordered=True)
    return [(row["id"], row["channel"]) for batch in batches for row in batch.to_pylist()]


def test_channels_are_looked_up_here_or_there(plain_log: Log) -> None:
    """Where all rows of a range are selected the names are put in by the reader, else by the database."""

    def here(lower: int = 0) -> bool:
        return bool(plain_log.owner.value(f"select {Selection().whole_clause(lower)}"))

    expected: list[tuple[int, str]] = []
    for channel in ("a", "b.c", "a"):
        ids = plain_log.owner.append(channel, ["1", "2"])
        expected += [(id_, channel) for id_ in ids]
    assert here()
    assert ids_of(plain_log, Selection()) == ids_of(plain_log, Selection(patterns=(">",))) == expected
    assert ids_of(plain_log, Selection(patterns=("b.>",))) == expected[2:4]
    assert ids_of(plain_log, Selection("nobody")) == []

    plain_log.owner.execute(
        "update gapless.channels set first_seq = 2, trimmed_id = $1, first_id = $2 where name = 'b.c'",
        expected[2][0],
        expected[3][0],
    )
    assert (here(), here(expected[2][0])) == (False, True)
    assert ids_of(plain_log, Selection()) == expected[:2] + expected[3:]
    assert ids_of(plain_log, Selection(), expected[2][0]) == expected[3:]

    plain_log.owner.execute("select gapless.delete_channel(1, 'b.c')")
    assert not here()
    assert ids_of(plain_log, Selection()) == expected[:2] + expected[4:]


def test_another_namespace_is_not_read(plain_log: Log) -> None:
    plain_log.owner.execute("insert into gapless.namespaces (name) values ('other')")
    (mine,) = plain_log.owner.append("a", ["1"])
    (theirs,) = plain_log.owner.append("a", ["1"], namespace="other")
    assert not plain_log.owner.value(f"select {Selection().whole_clause(0)}")
    assert ids_of(plain_log, Selection()) == [(mine, "a")]
    assert ids_of(plain_log, Selection("other")) == [(theirs, "a")]
    assert ids_of(plain_log, Selection("nobody")) == []
