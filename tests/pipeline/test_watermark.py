"""The settled id."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from adbc_driver_manager.dbapi import Connection
from gapless_spark.database import close, connect
from gapless_spark.errors import Unsettled
from gapless_spark.watermark import Tick, Wait, settled

from tests.patience import PATIENCE_S
from tests.pipeline.conftest import Log


def tick(last_id: int, *holders: str, lsn: int = 1, flushed: int = 9, life: str = "one") -> Tick:
    return Tick(last_id, lsn, flushed, frozenset(holders), life)


def test_only_the_first_holders_are_waited_for() -> None:
    wait = Wait()
    assert wait.observe(tick(5, "3/1", "4/1")) is None
    assert wait.observe(tick(9, "4/1", "5/1")) is None
    assert wait.observe(tick(12, "3/2", "5/1")) == 5


def test_the_journal_must_be_on_disk() -> None:
    wait = Wait()
    assert wait.observe(tick(5, lsn=10, flushed=9)) is None
    assert wait.observe(tick(5, lsn=20, flushed=10)) == 5


def test_a_crash_begins_anew() -> None:
    wait = Wait()
    assert wait.observe(tick(5, "3/1")) is None
    assert wait.observe(tick(4, "3/7", life="two")) is None
    assert wait.observe(tick(6, life="two")) == 4


def test_a_prepared_transaction_may_be_any_of_them() -> None:
    wait = Wait()
    assert wait.observe(tick(5, "3/1")) is None
    assert wait.observe(tick(5, "-1/77")) is None
    assert wait.observe(tick(5)) == 5


@pytest.fixture
def connection(plain_log: Log) -> Iterator[Connection]:
    made = connect(plain_log.url)
    yield made
    close(made)


def test_nothing_was_ever_published(connection: Connection) -> None:
    assert settled(connection) == 0


def test_an_idle_write_transaction_delays_nothing(plain_log: Log, connection: Connection) -> None:
    idle = plain_log.session()
    plain_log.owner.execute("create table notes (text text)")
    idle.execute("begin")
    idle.execute("insert into notes values ('open')")
    idle.publish("later")  # waits for the commit and holds no id
    ids = plain_log.owner.append("a", ["1", "2"])
    assert settled(connection, patience_s=PATIENCE_S) == ids[-1]


def test_an_open_publish_is_waited_for(plain_log: Log, connection: Connection) -> None:
    slow = plain_log.session()
    slow.execute("begin")
    (early,) = slow.append("slow", ["1"])
    (late,) = plain_log.owner.append("a", ["2"])
    with pytest.raises(Unsettled, match="1 publishing transactions are still open"):
        settled(connection, patience_s=0.05)
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(settled(connection, patience_s=PATIENCE_S)))
    waiting.start()
    slow.execute("commit")
    waiting.join(PATIENCE_S)
    assert answers == [late]
    assert early < late


def test_ids_that_were_rolled_back_are_settled(plain_log: Log, connection: Connection) -> None:
    plain_log.owner.execute("begin")
    ids = plain_log.owner.append("a", ["1"] * 5)
    plain_log.owner.execute("rollback")
    assert settled(connection, patience_s=PATIENCE_S) == ids[-1]
