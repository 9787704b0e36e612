"""The fold of the log in Spark is the view that the service gives, and the fold of the client."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import gapless_spark
import pytest
from gapless import AsyncClient, Fold, Message, Original
from gapless_spark.columns import CHANGE_COLUMNS, COLUMNS
from gapless_spark.errors import BadOption
from gapless_spark.folding import disjoint
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody writes it)

from tests.integration.company import Company
from tests.integration.company import company as company
from tests.integration.company import people as people
from tests.integration.test_folds import say, view
from tests.pipeline.conftest import Log

pytestmark = pytest.mark.spark


def shown(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows, oldest first, in the form of `told`."""
    rows = frame.withColumn("annotations", F.to_json("annotations")).orderBy("id").collect()
    return [
        {
            "id": row.id,
            "seq": row.seq,
            "type": row.type,
            "key": row.key,
            "sender": row.sender,
            "data": None if row.data is None else json.loads(row.data),
            "target": row.target,
            "action": row.action,
            "version": row.version,
            "deleted": row.deleted,
            "annotations": json.loads(row.annotations or "{}"),
            "replies": row.replies,
        }
        for row in rows
    ]


def told(messages: list[Message] | list[Original]) -> list[dict[str, Any]]:
    """What the service or the client's fold says."""
    names = [
        *("id", "seq", "type", "key", "sender", "data", "target", "action"),
        *("version", "deleted", "annotations", "replies"),
    ]
    return [{name: getattr(message, name) for name in names} for message in messages]


@pytest.mark.parametrize("seed", [0, *[pytest.param(n, marks=pytest.mark.drill) for n in (1, 2, 3)]])
async def test_the_fold_in_spark_is_the_view(
    people: list[AsyncClient], company: Company, spark: SparkSession, seed: int
) -> None:
    ids: list[int] = []

    async def talk(client: AsyncClient, number: int) -> None:
        chance = random.Random(seed * 10 + number)
        for _ in range(40):
            await say(chance, client, ids)

    await asyncio.gather(*[talk(client, number) for number, client in enumerate(people)])
    other = [(await people[0].publish("elsewhere", n)).id for n in range(3)]
    await people[0].publish("elsewhere", None, target=other[0], action="delete", through=other[1] + 100)
    expected = told(await view(people[0]))
    fold = Fold()
    async for message in people[0].iter_history("room"):
        fold.apply(message)
    assert told(fold.messages) == expected

    options = {"url": company.database.owner_url, "changes": "true"}
    messages = spark.read.format("gapless").options(**options).load()
    found = gapless_spark.latest(messages)
    assert shown(found.where("channel = 'room'")) == expected
    assert [row["deleted"] for row in shown(found.where("channel = 'elsewhere'"))] == [True, True, True]
    assert found.columns == [*COLUMNS, "target", "action", "version", "deleted", "annotations", "replies"]
    await people[0].channels.delete("elsewhere")


def test_changes_are_columns_when_asked_for(log: Log) -> None:
    log.owner.append("a", ["1"])
    change = (
        "select gapless.publish('a', '2', target => 1::bigint, action => 'annotate', annotation => 'n\"', "
    )
    log.owner.execute(change + "mode => 'flag', remove => true)")
    log.owner.execute(
        "select gapless.publish('a', '2', target => 1::bigint, action => 'delete', through => 7)"
    )
    assert log.read().columns == list(COLUMNS)
    frame = log.read(changes="true", binary="true")
    assert frame.columns == [*COLUMNS, "binary", *CHANGE_COLUMNS]
    assert [tuple(row) for row in frame.orderBy("id").select(*CHANGE_COLUMNS).collect()] == [
        (None,) * 6,
        (1, "annotate", None, 'n"', "flag", True),
        (1, "delete", 7, None, None, None),
    ]


def test_binary_data_and_forms_of_data(log: Log) -> None:
    """An update replaces JSON by bytes, and bytes by JSON."""
    ids = log.owner.append("a", [b"\x01", "1", '{"n": 1}'])
    for id_ in (ids[0], ids[2]):
        log.owner.execute(
            """select gapless.publish('a', '{"n": 2}', target => $1::bigint, action => 'update')""", id_
        )
    found = gapless_spark.latest(log.read(changes="true", binary="true")).orderBy("id")
    assert [(row.data, row.binary) for row in found.collect()] == [
        ('{"n": 2}', None),
        ("1", None),
        ('{"n": 2}', None),
    ]
    for payload in ("variant", "n int"):
        found = gapless_spark.latest(log.read(changes="true", payload=payload)).orderBy("id")
        text = found.select(F.to_json("data").alias("data"), "version").collect()
        assert [(row.data and row.data.replace(" ", ""), row.version) for row in text] == [
            ('{"n":2}', 4),
            ("1" if payload == "variant" else None, 2),
            ('{"n":2}', 5),
        ]


def test_what_cannot_be_folded(log: Log) -> None:
    with pytest.raises(
        BadOption, match=r"latest: the columns target, .* are missing; .* option changes true"
    ):
        gapless_spark.latest(log.read())
    with pytest.raises(BadOption, match="latest: is for batch reads"):
        gapless_spark.latest(log.stream(changes="true"))


@pytest.mark.parametrize("seed", range(50))
def test_stretches_are_cut_where_newer_ones_lie(seed: int) -> None:
    chance = random.Random(seed)
    stretches = [
        (first, first + chance.randrange(8), by) for by in range(9) for first in [chance.randrange(20)]
    ]
    expected: dict[int, int] = {}
    for first, last, by in stretches:
        expected |= dict.fromkeys(range(first, last + 1), by)
    chance.shuffle(stretches)
    found: dict[int, int] = {}
    for first, last, by in disjoint(stretches):
        covered = dict.fromkeys(range(first, last + 1), by)
        assert not found.keys() & covered.keys()
        found |= covered
    assert found == expected
