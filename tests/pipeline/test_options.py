"""What the options of a read may hold, and what is said about one that does not fit."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest
from gapless_spark.errors import BadOption
from gapless_spark.options import EARLIEST, LATEST, ReadOptions, read_options

URL = {"url": "postgresql://reader@db/gapless"}


def read(streaming: bool = False, **options: str) -> ReadOptions:
    return read_options(URL | options, streaming=streaming)


def test_a_batch_reads_everything_and_a_stream_what_comes() -> None:
    batch, stream = read(), read(streaming=True)
    assert (batch.start, batch.end, batch.fail_on_data_loss, batch.payload) == (
        EARLIEST,
        LATEST,
        True,
        "string",
    )
    assert (stream.start, stream.max_messages, stream.min_partitions) == (LATEST, None, None)
    assert batch.selection.namespace == "default"


def test_names_are_compared_without_case() -> None:
    made = read(STARTINGOFFSETS="7", failondataloss="FALSE", minpartitions="3", Binary="true")
    assert (made.start, made.fail_on_data_loss, made.min_partitions) == (7, False, 3)
    assert made.columns[-1] == "binary"


@pytest.mark.parametrize(
    "text", ["2026-11-20T12:00:00.5Z", "2026-11-20T13:00:00.500+01:00", "1795176000500", " 1795176000500 "]
)
def test_a_time_is_iso_or_milliseconds(text: str) -> None:
    assert read(startingTimestamp=text).selection.since == datetime(2026, 11, 20, 12, 0, 0, 500_000, UTC)


def test_a_stream_from_a_time_begins_there() -> None:
    assert read(streaming=True, startingTimestamp="0").start == EARLIEST


def test_the_url_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAPLESS_DATABASE_URL", "postgresql://there")
    assert read_options({}).url == "postgresql://there"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("channels", "a..b"),
        ("channels", "a,,b"),
        ("channels", "a.>.b"),
        ("channels", "über"),
        ("channels", "a" * 256),
        ("channels", ",".join(f"c{n}" for n in range(129))),
        ("startingOffsets", "newest"),
        ("startingOffsets", "-1"),
        ("startingOffsets", str(2**53)),
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"topic": {"0": 5}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", "1.5"),
        ("startingTimestamp", "2026-11-20T12:00:00"),
        ("startingTimestamp", "yesterday"),
        ("endingTimestamp", "9" * 18),
        ("maxOffsetsPerTrigger", "0"),
        ("minPartitions", "many"),
        ("minPartitions", "1000000"),
        ("failOnDataLoss", "yes"),
        ("binary", "1"),
        ("namespace", "a b"),
        ("snapshot", "00000005-00000004-1"),
        ("topic", "a"),
        ("path", "/somewhere"),
    ],
)
def test_a_bad_value_is_named(name: str, value: str) -> None:
    with pytest.raises(BadOption) as caught:
        read(False, **{name: value})
    # A snapshot alone lacks its end.
    assert str(caught.value).startswith(f"{'endingOffsets' if name == 'snapshot' else name}: ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "snapshot"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(BadOption, match=f"^{name}: "):
        read(streaming=True, **{name: "5"})


def test_bounds_that_contradict_one_another() -> None:
    with pytest.raises(BadOption, match=r"^startingTimestamp: .* not both"):
        read(startingTimestamp="0", startingOffsets="5")
    with pytest.raises(BadOption, match=r"^endingTimestamp: .* not both"):
        read(endingTimestamp="0", endingOffsets="5")
    with pytest.raises(BadOption, match=r"^endingOffsets: 4 lies before"):
        read(startingOffsets="5", endingOffsets="4")


def test_without_a_url_it_says_what_one_looks_like(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAPLESS_DATABASE_URL", raising=False)
    with pytest.raises(BadOption, match=r"^url: is missing; give .*postgresql://"):
        read_options({})
