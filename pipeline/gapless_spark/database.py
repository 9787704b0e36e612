"""Connections to Postgres through ADBC, which answers with Arrow tables.

ADBC runs every statement that returns rows as a COPY. That is fast, but works only for SELECT (not SHOW), and
types that Arrow lacks must be cast to text.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from gapless_spark.errors import (
    AccessDenied,
    BadOption,
    DatabaseUnreachable,
    GaplessSparkError,
    QueryFailed,
    SchemaMissing,
    SchemaTooOld,
)

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

PATIENCE_S = 60.0
"""How long a running query waits for a database that is down, or for locks."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0

READ_SCHEMA = 18
"""The oldest migration that reading can use."""

T = TypeVar("T")
_DEFAULTS = {
    "fallback_application_name": "gapless-spark",
    "connect_timeout": "10",
    "client_encoding": "UTF8",
    # These detect a vanished server within a minute, without a limit on the time of an answer.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_AWAY = re.compile(
    r"Connection refused|could not translate host name|server closed the connection|No such file or directory"
    r"|timeout expired|connection to server .* failed|no connection to the server|the database system is"
    r"|terminating connection|timed out|No route to host|connection has been closed|SSL error|EOF detected"
)
_NO_CONNECT = re.compile(r'permission denied for database "?(.*?)"?(?: DETAIL|$)')
_NO_LOGIN = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|role .* does not exist"
    r"|is not permitted to log in|authentication failed"
)
_NO_RIGHT = re.compile(r"permission denied|was not granted to|in its own namespace only|writes this query")
_NO_DATABASE = re.compile(r'database "(.*)" does not exist')


def connect(url: str, schema: int = READ_SCHEMA) -> Connection:
    """A connection to the database of a Gapless at `url` (libpq's URI or `key=value` form), without
    autocommit, with the application name `gapless-spark`.

    `schema` is the number of the migration that must have run there. Raises `DatabaseUnreachable`,
    `AccessDenied`, `SchemaMissing`, `SchemaTooOld` and `BadOption` (the URL cannot be parsed). Their texts
    contain neither the URL nor its password.
    """
    connection = _open(url)
    try:
        _check_schema(connection, schema)
        commit(connection)
    except BaseException:
        close(connection)
        raise
    return connection


def rows(connection: Connection, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """All rows of a SELECT as Python values, for small answers. The parameters are `$1`….

    Raises the errors of `failure`. The transaction stays open, unless it failed.
    """
    from adbc_driver_manager import Error

    try:
        with connection.cursor() as cursor:
            cursor.execute(sql, tuple(parameters) if parameters else None)
            columns = cursor.fetch_arrow_table().to_pydict()
    except Error as error:
        raise failure(error) from None
    return list(zip(*columns.values(), strict=True))


def run(connection: Connection, sql: str) -> None:
    """Run a statement that returns no rows. Raises the errors of `failure`."""
    from adbc_driver_manager import Error

    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
    except Error as error:
        raise failure(error) from None


def commit(connection: Connection) -> None:
    """Commit. Raises the errors of `failure`; a lost connection may be detected only here."""
    _ended(connection.commit)


def rollback(connection: Connection) -> None:
    """Roll back. Raises the errors of `failure`."""
    _ended(connection.rollback)


def _ended(call: Callable[[], None]) -> None:
    from adbc_driver_manager import Error

    try:
        call()
    except Error as error:
        raise failure(error) from None


def patiently(call: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """The result of `call`. While the database cannot be reached, it is called again for up to `patience_s`,
    with a warning in the log. Raises the errors of `call`, and `DatabaseUnreachable` after that time."""
    deadline, pause_s = time.monotonic() + patience_s, FIRST_PAUSE_S
    while True:
        try:
            return call()
        except DatabaseUnreachable as error:
            if time.monotonic() > deadline:
                raise
            logging.getLogger("gapless_spark").warning("%s; trying again for %g s", error, patience_s)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


def close(connection: Connection) -> None:
    """Close a connection in any state, without an error. An open transaction is rolled back."""
    with suppress(Exception):
        connection.close()


def literal(value: str) -> str:
    """`value` as an SQL literal. Raises `BadOption` for a zero character."""
    if "\0" in value:
        raise BadOption("a value holds a zero character, which Postgres cannot store")
    quoted = value.replace("'", "''")
    return f"E'{quoted.replace(chr(92), chr(92) * 2)}'" if "\\" in quoted else f"'{quoted}'"


def failure(error: Exception) -> GaplessSparkError:
    """Our error for an error of ADBC: `DatabaseUnreachable`, `AccessDenied`, `SchemaMissing` or
    `QueryFailed`."""
    text = _plain(str(error))
    if match := _NO_DATABASE.search(text):
        return SchemaMissing(
            f'the database "{match[1]}" does not exist on that server. Check the end of the URL'
        )
    if "recovery is in progress" in text:
        return DatabaseUnreachable(
            "that Postgres is a standby: it does not know which publishes are still under way. Use "
            "the URL of the primary"
        )
    if match := _NO_CONNECT.search(text):
        return AccessDenied(
            f'Postgres refused: the login lacks the privilege CONNECT on the database "{match[1]}".'
            f' The database\'s owner gives it: grant connect on database "{match[1]}" to the login'
        )
    if _NO_LOGIN.search(text):
        return AccessDenied(
            f"Postgres refused the login: {text}. Check the user and password of the URL, and the server's"
            " pg_hba.conf"
        )
    if _NO_RIGHT.search(text):
        return AccessDenied(
            f"Postgres refused: {text}. The owner of the schema allows it: select"
            " gapless.grant_reader('<login>')"
        )
    if _AWAY.search(text):
        return DatabaseUnreachable(
            f"Postgres cannot be reached: {text}. Check that it runs, and that host and port of the URL can"
            " be reached from the driver and from every executor"
        )
    return QueryFailed(f"Postgres could not answer: {text}")


def _open(url: str) -> Connection:
    import adbc_driver_postgresql.dbapi as driver
    from adbc_driver_manager import Error

    if not url.strip():
        raise BadOption("url: is empty; give postgresql://user@host:5432/database")
    try:
        connection: Connection = driver.connect(with_defaults(url))
    except Error as error:
        text = str(error)
        if "connection info string" in text or "in URI" in text or "connection option" in text:
            raise BadOption("url: is not a Postgres URL; give postgresql://user@host:5432/database") from None
        raise failure(error) from None
    return connection


def with_defaults(url: str) -> str:
    """`url` with our application name, timeouts and encoding, unless it sets them itself."""
    missing = {name: value for name, value in _DEFAULTS.items() if not re.search(rf"\b{name}\s*=", url)}
    if re.match(r"\s*postgres(ql)?://", url):
        extra = "&".join(f"{name}={value}" for name, value in missing.items())
        separator = "" if url.endswith(("?", "&")) else "&" if "?" in url else "?"
        return f"{url}{separator}{extra}"
    return " ".join([url, *(f"{name}={value}" for name, value in missing.items())])


def _check_schema(connection: Connection, wanted: int) -> None:
    ((there,),) = rows(connection, "select to_regclass('gapless.migrations') is not null")
    if not there:
        raise SchemaMissing(
            "there is no Gapless in that database (no table gapless.migrations). Check the database's name "
            "in the URL, or start Gapless once: it migrates its database"
        )
    ((version,),) = rows(connection, "select coalesce(max(version), 0)::bigint from gapless.migrations")
    if version < wanted:
        raise SchemaTooOld(
            f"the database has schema version {version}, and gapless-spark needs {wanted}. Start Gapless in "
            "its newest version, which migrates its database"
        )


def _plain(text: str) -> str:
    """ADBC's text on one line, without its prefixes, our statement, and passwords of URLs."""
    text = re.sub(r"\s*Query was:.*?(?=SQLSTATE|$)", "", text, flags=re.DOTALL)
    text = re.sub(r"^[A-Z_]+: ", "", text.strip())
    text = re.sub(r"\[libpq\] |\.? ?SQLSTATE: \w+$|ERROR:\s+", "", text)
    text = re.sub(r"//([^:/@\s]*):[^@\s]*@", r"//\1:***@", text)
    text = re.sub(r"(password\s*=\s*)('[^']*'|\S+)", r"\1***", text)
    return " ".join(text.split()).strip(" .")
