"""The delivery side against the database's own functions, and as the role that Spark reads with."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from gapless_spark.analyze import page
from gapless_spark.analyze.delivery import read_delivery
from gapless_spark.analyze.findings import Findings, Read
from gapless_spark.analyze.question import Question

from tests.pipeline.analyzing import START
from tests.pipeline.conftest import Log

EMPTY = Read({"messages": 0}, 0, "hour")


def subscribe(log: Log, name: str, pattern_regex: str | None, names: list[str], own: str = "{}") -> int:
    """A subscription from the first message on; gives its id."""
    made: int = log.owner.value(
        "select subscription_id from gapless.create_subscription("
        "(select id from gapless.namespaces where name = 'default'), $1, array['x'], $2::text[], $3,"
        " 'earliest', $4::jsonb)",
        name,
        names,
        pattern_regex,
        own,
    )
    return made


def fill(log: Log) -> None:
    """Eight messages; of `all` one is in flight again, one waits, one is settled ahead, and three died."""
    ids = log.owner.append("chat.a", ['{"n": 1}'] * 5)
    ids += log.owner.append("chat.b", ['{"n": 1}'] * 3, type="ping")
    everything = subscribe(log, "all", "^chat\\.[^.]+$", [])
    subscribe(log, "pings", "^chat\\.[^.]+$", [], '{"filter": {"types": ["ping"]}}')
    subscribe(log, "plain", None, ["chat.a"])
    log.owner.execute(
        "update gapless.progress set frontier = $2, acked = 7, redelivered = 1, dead_lettered = 2"
        " where subscription_id = $1",
        everything,
        ids[2],
    )
    for position, state, attempts in ((1, 0, 2), (2, 1, 1)):
        log.owner.execute(
            "insert into gapless.deliveries (subscription_id, message_id, channel_id, lease, at, entered_at,"
            " attempts, state)"
            " select $1, m.id, m.channel_id, 1, now(), now(), $3, $4 from gapless.messages m where m.id = $2",
            everything,
            ids[position],
            attempts,
            state,
        )
    log.owner.execute(
        "insert into gapless.settled_ahead (subscription_id, message_id, channel_id)"
        " select $1, m.id, m.channel_id from gapless.messages m where m.id = $2",
        everything,
        ids[4],
    )
    for reason, age in (("rejected", "10 minutes"), ("rejected", "3 days"), ("expired", "90 days")):
        log.owner.execute(
            "insert into gapless.dead_letters (namespace_id, subscription_id, kept_id, attempts, created_at,"
            " subscription, channel, reason, journey)"
            " select id, $1, 1, 3, now() - $3::text::interval, 'all', 'chat.a', $2, '[]'"
            " from gapless.namespaces where name = 'default'",
            everything,
            reason,
            age,
        )


def test_lag_attempts_and_dead_letters(plain_log: Log) -> None:
    fill(plain_log)
    found = read_delivery(plain_log.url, "default")
    by_name = {row["subscription"]: row for row in found.subscriptions}
    # Five lie ahead of `all`, one of them settled; one more waits in a row.
    assert {name: row["lag"] for name, row in by_name.items()} == {"all": 5, "pings": 3, "plain": 5}
    own = plain_log.owner.fetch(
        "select s.name, gapless_internal.backlog(s, p.frontier, 1000000) from gapless.subscriptions s"
        " join gapless.progress p on p.subscription_id = s.id"
    )
    assert {name: row["lag"] for name, row in by_name.items()} == dict(own)
    assert (by_name["all"]["in_flight"], by_name["all"]["acked"], by_name["all"]["dead_letters"]) == (1, 7, 3)
    assert by_name["pings"]["oldest_seconds"] >= 0
    assert [(r["state"], r["attempts"], r["messages"]) for r in found.attempts] == [
        ("dead letter", 3, 3),
        ("in flight", 2, 1),
        ("queued", 1, 1),
    ]
    assert [(r["reason"], r["age"], r["dead_letters"]) for r in found.dead_letters] == [
        ("expired", 4, 1),
        ("rejected", 0, 1),
        ("rejected", 2, 1),
    ]


def test_another_namespace_sees_nothing(plain_log: Log) -> None:
    fill(plain_log)
    found = read_delivery(plain_log.url, "other")
    assert (found.subscriptions, found.attempts, found.dead_letters) == ([], [], [])


def test_the_role_of_readers_is_enough(plain_log: Log) -> None:
    fill(plain_log)
    parts = urlsplit(plain_log.database.admin_url)._replace(path=f"/{plain_log.database.name}")
    query = "&".join(filter(None, [parts.query, "options=-c%20role%3Dgapless_reader"]))
    found = read_delivery(urlunsplit(parts._replace(query=query)), "default")
    assert {row["subscription"] for row in found.subscriptions} == {"all", "pings", "plain"}


def test_queues_of_an_empty_log_are_shown(plain_log: Log) -> None:
    fill(plain_log)
    found = read_delivery(plain_log.url, "default")
    html = page.render(Findings(Question(), "the live log", START, EMPTY, delivery=found), "Queues")
    assert "There are no messages" in html
    for plot in ("lag", "attempts", "dead-letters"):
        assert f'data-figure="{plot}"' in html
