"""Connections: who may read, and what is said when it does not work."""

from __future__ import annotations

import pickle
import re
from contextlib import closing

import pytest
from gapless_spark import ranges
from gapless_spark.columns import COLUMNS
from gapless_spark.database import READ_SCHEMA, connect, failure, literal, rows, with_defaults
from gapless_spark.errors import (
    AccessDenied,
    BadOption,
    DatabaseUnreachable,
    GaplessSparkError,
    QueryFailed,
    SchemaMissing,
    SchemaTooOld,
)
from gapless_spark.options import read_options
from gapless_spark.planning import plan_batch
from gapless_spark.ranges import Range
from gapless_spark.reading import read_range
from gapless_spark.selection import Selection
from gapless_spark.sink_store import SCHEMA
from gapless_spark.snapshots import snapshot

from db.migrate import migrations
from tests.pipeline.conftest import Log

AS_READER = "options=-c%20role%3Dgapless_reader"


@pytest.mark.parametrize(
    ("url", "begins"),
    [
        (
            "postgresql://u@h/db",
            "postgresql://u@h/db?fallback_application_name=gapless-spark&connect_timeout=10&",
        ),
        ("postgres://u@h/db?sslmode=require", "postgres://u@h/db?sslmode=require&fallback_application_name="),
        ("postgresql://h/db?", "postgresql://h/db?fallback_application_name="),
        ("host=h dbname=db", "host=h dbname=db fallback_application_name=gapless-spark connect_timeout=10 "),
    ],
)
def test_a_url_gets_our_name_and_a_limit(url: str, begins: str) -> None:
    assert with_defaults(url).startswith(begins)
    assert (
        with_defaults(url + ("&" if "?" in url else "?") + "connect_timeout=3").count("connect_timeout") == 1
    )


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("", BadOption),
        ("mysql://u:hunter2@h/db", BadOption),
        ("postgresql://u:hunter2@h:port/db", BadOption),
        ("postgresql://u:hunter2@127.0.0.1:1/db", DatabaseUnreachable),
        ("postgresql://u:hunter2@/db?host=/nowhere/at/all", DatabaseUnreachable),
        ("host=127.0.0.1 port=1 password=hunter2 dbname=db", DatabaseUnreachable),
    ],
)
def test_no_error_tells_a_password(url: str, kind: type[GaplessSparkError]) -> None:
    with pytest.raises(kind) as caught:
        connect(url)
    assert "hunter2" not in caught.value.message
    assert caught.value.__cause__ is None
    assert type(pickle.loads(pickle.dumps(caught.value))) is kind


def test_what_postgres_says_is_put_in_order() -> None:
    assert isinstance(failure(Exception("FATAL: password authentication failed for user")), AccessDenied)
    assert isinstance(failure(Exception("IO: terminating connection due to crash")), DatabaseUnreachable)
    no_connect = failure(
        Exception(
            'FATAL:  permission denied for database "g"\nDETAIL:  User does not have CONNECT privilege.'
        )
    )
    assert isinstance(no_connect, AccessDenied)
    assert 'lacks the privilege CONNECT on the database "g"' in str(no_connect)
    assert "grant_reader" not in str(no_connect)
    assert "Use the URL of the primary" in str(failure(Exception("ERROR: recovery is in progress")))
    made = failure(
        Exception("NOT_FOUND: [libpq] ERROR:  no such thing\nQuery was: select 1. SQLSTATE: 42P01")
    )
    assert isinstance(made, QueryFailed)
    assert str(made) == "Postgres could not answer: no such thing"


def test_literals_are_quoted(plain_log: Log) -> None:
    with closing(connect(plain_log.url)) as connection:
        for text in ("it's", "back\\slash", "\\'; drop table x; --", "é😀", ""):
            assert rows(connection, f"select {literal(text)}::text") == [(text,)]
    with pytest.raises(BadOption):
        literal("a\0b")


def test_the_schema_must_be_there_and_new_enough(plain_log: Log) -> None:
    with pytest.raises(SchemaMissing, match="no Gapless in that database"):
        connect(plain_log.url.replace(f"/{plain_log.database.name}", "/postgres"))
    with pytest.raises(SchemaMissing, match='the database "nosuch" does not exist'):
        connect(plain_log.url.replace(f"/{plain_log.database.name}", "/nosuch"))
    with pytest.raises(SchemaTooOld, match="and gapless-spark needs 999"):
        connect(plain_log.url, schema=999)
    with closing(connect(plain_log.url)) as connection:
        assert rows(
            connection, "select application_name::text from pg_stat_activity where pid = pg_backend_pid()"
        ) == [("gapless-spark",)]
        with pytest.raises(QueryFailed, match="does not exist"):
            rows(connection, "select 1 from nowhere")


def test_a_reader_may_read_and_nothing_else(plain_log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "EXACT_MESSAGES", 0)
    ids = plain_log.owner.append("a", ["1"] * 50, headers='{"a": "b"}')
    admin = plain_log.database.admin_url
    url = admin + ("&" if "?" in admin else "?") + AS_READER
    with snapshot(url) as view:
        options = read_options({**view.options, "minPartitions": "2", "startingTimestamp": "0"})
        parts = plan_batch(options, 2)
        assert len(parts) == 2
    read = [
        id_
        for part in parts
        for batch in read_range(url, Selection(), COLUMNS, part.value, known=part.known, ordered=True)
        for id_ in batch.column(0).to_pylist()
    ]
    assert read == ids
    with closing(connect(url)) as connection:
        for secret in ("select hint_secret from gapless.log", "delete from gapless.messages returning id"):
            with pytest.raises(AccessDenied, match="permission denied"):
                rows(connection, secret)
            connection.rollback()


def test_a_connection_lost_in_the_middle(plain_log: Log) -> None:
    for _ in range(30):
        ids = plain_log.owner.append("a", ['"' + "x" * 2000 + '"'] * 1000)
    batches = read_range(plain_log.url, Selection(), COLUMNS, Range(0, ids[-1]))
    assert next(batches).num_rows > 0
    plain_log.owner.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and application_name = 'gapless-spark'"
    )
    with pytest.raises(DatabaseUnreachable):
        list(batches)


def test_no_schema_is_asked_for_that_there_is_not() -> None:
    assert max(READ_SCHEMA, SCHEMA) <= len(migrations())


def test_a_login_that_may_not_connect_is_told_so(plain_log: Log) -> None:
    name = plain_log.database.name
    admin = plain_log.session(plain_log.database.admin_url)
    admin.execute(f"revoke connect on database {name} from public")
    admin.execute("drop role if exists spark_stranger")
    admin.execute("create role spark_stranger login password 'hush'")
    try:
        url = re.sub(r"//[^/@]*@", "//spark_stranger:hush@", plain_log.database.admin_url)
        with pytest.raises(AccessDenied) as caught:
            connect(url)
        assert f'grant connect on database "{name}"' in str(caught.value)
        assert "grant_reader" not in str(caught.value)
    finally:
        admin.execute("drop role spark_stranger")
