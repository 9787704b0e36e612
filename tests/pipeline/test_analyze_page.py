"""The page without Spark: what it shows, that hostile names stay text, and how it looks to a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from gapless_spark.analyze import bins, figures, page, text
from gapless_spark.analyze.body import left_out
from gapless_spark.analyze.delivery import Delivery
from gapless_spark.analyze.findings import Findings, Read, Senders, Spread, Volume
from gapless_spark.analyze.question import Fields, Question, json_path, parse_zone
from gapless_spark.errors import BadOption
from gapless_spark.moments import parse_span, parse_time

from tests.patience import PATIENCE_S

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOSTILE = (
    "</script><script>document.title='owned'</script>",
    '"><img src=x onerror=document.title="owned">',
    "<a href='javascript:document.title=1'>here</a>",
    "%{x}<b>&amp;\u202e\u0000\n",
    "long" * 100,
)


def _delivery(names: tuple[str, ...]) -> Delivery:
    return Delivery(
        [
            {
                "subscription": name,
                "paused": n == 1,
                "lag": n,
                "in_flight": 1,
                "oldest_seconds": None,
                "acked": 1,
            }
            | {"redelivered": 0, "dead_lettered": 1, "dead_letters": 1}
            for n, name in enumerate(names)
        ],
        [{"subscription": names[0], "state": "queued", "attempts": 2, "messages": 4}],
        [{"subscription": names[0], "reason": "expired", "age": 4, "dead_letters": 4, "oldest_at": NOW}],
    )


def findings(names: tuple[str, ...] = HOSTILE) -> Findings:
    """Something of everything, with these names for channels, senders and subscriptions."""
    hours = [NOW + timedelta(hours=n) for n in range(3)]
    channels = [
        {
            "channel": name,
            "messages": 1000 * n,
            "senders": n,
            "bytes": 10**n,
            "words_per_message": 1.5,
            "answered": n,
        }
        | {"reply_p50_s": 61.0, "first_at": NOW, "last_at": hours[-1]}
        for n, name in enumerate(names, 1)
    ]
    figure = {
        "messages": 20,
        "answered": 10,
        "sessions": 5,
        "seconds_p50": 1.0,
        "seconds_p95": 9.0,
        "single": 1,
    }
    figure |= {"seconds_p90": 8.0, "seconds_p99": 9.9, "messages_mean": 4.0}
    figure |= {"words": 100, "mean": 5.0, "words_p50": 4, "words_p95": 9, "longest": 40}
    rate = {"units": 10, "active": 2, "mean": 0.4, "max": 3, "max_at": NOW}
    rate |= {f"{kind}p{rank}": 1.5 for kind in ("", "active_") for rank in (50, 95, 99)}
    totals = {
        "messages": 15000,
        "channels": 5,
        "senders": 5,
        "bytes": 12345678,
        "first_at": NOW,
        "last_at": hours[-1],
    }
    return Findings(
        Question(fields=Fields(time="sent")),
        HOSTILE[0],
        NOW,
        Read(totals | {"without_sender": 3, "without_text": 1}, 2, "hour"),
        volume=Volume(
            list(names[:2]),
            [{"period": h, "channel": c, "messages": 5} for h in hours for c in (*names[:2], None)],
            [{"channel": name, "hour": n, "messages": 5} for n, name in enumerate(names)],
            [{"weekday": 4, "hour": 12, "messages": 15000}],
            channels,
        ),
        senders=Senders(
            "hour",
            None,
            [{"period": h, "senders": 5} for h in hours],
            [row | {"sender": row["channel"], "channels": 1} for row in channels],
        ),
        session_lengths=Spread(figure, bins.DURATION_EDGES_S, [1] * len(bins.DURATION_EDGES_S)),
        session_sizes=Spread(figure, bins.COUNT_EDGES, [1] * len(bins.COUNT_EDGES)),
        replies=Spread(figure, (0, 1, 60), [3, 3, 4]),
        words=Spread(figure, bins.WORD_EDGES, [1] * len(bins.WORD_EDGES)),
        rates=[rate | {"unit": unit} for unit in ("second", "minute", "hour")],
        peaks=[{"period": h, "messages": 3} for h in hours],
        delivery=_delivery(names),
    )


def plots(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    drawn: dict[str, Any] = json.loads(found[1])
    return drawn


def test_every_plot_is_one_that_the_library_knows() -> None:
    graphs = pytest.importorskip("plotly.graph_objects")
    drawings = plots(page.render(findings(), "Report"))
    assert len(drawings) == 12
    for figure in drawings.values():
        drawn = graphs.Figure(
            [{k: v for k, v in t.items() if k != "tone"} for t in figure["traces"]], figure["layout"]
        )
        axes = [drawn.layout.xaxis.title.text, drawn.layout.yaxis.title.text]
        assert any(axes)


def test_hostile_names_are_text() -> None:
    html = page.render(findings(), HOSTILE[1])
    assert len(re.findall("<script", html)) == 3
    assert not re.search(r"<(img|a href=')|}<b>", html)
    assert "%{x}&lt;b" not in html.split('id="plotly"')[0].split('id="figures"')[1]
    for figure in plots(html).values():
        assert not re.search("[<>]", json.dumps([t.get("name") for t in figure["traces"]]))
        assert "&quot;" not in json.dumps(figure)
        for axis in ("x", "y"):
            assert not any("<" in str(label) for t in figure["traces"] for label in t[axis])
    assert "\u202e" not in html
    assert "\0" not in html


def test_names_that_are_shortened_to_one_stay_two() -> None:
    alike = ("long" * 50 + "1", "long" * 50 + "2")
    labels = plots(page.render(findings(alike), "Report"))["day"]["traces"][0]["y"]
    assert len(set(labels)) == 2


def test_numbers_have_separators_and_what_was_left_out_is_said() -> None:
    html = page.render(findings(), "Report")
    for said in ("15,000", "12.3 MB", "2 messages left out", "3 messages without a sender", "1 min 1 s"):
        assert said in html


def test_the_policy_names_the_scripts() -> None:
    html = page.render(findings(), "Report")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy[1].split("style-src")[0]
    assert not re.search(r"""(src|href)=["'](?!#)""", html.split('id="plotly"')[0])


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.html"
    assert page.write(target, "é") == 2
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]
    (tmp_path / "file").write_text("")
    with pytest.raises(BadOption, match="cannot be written"):
        page.write(tmp_path / "file" / "report.html", "x")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (0, "0 s"),
        (0.314, "0.31 s"),
        (59.4, "59 s"),
        (90, "1 min 30 s"),
        (3600, "1 h"),
        (93600, "1 d 2 h"),
    ],
)
def test_spans(seconds: float | None, shown: str) -> None:
    assert text.span(seconds) == shown


def test_labels_of_bins() -> None:
    assert bins.span_labels((0, 1, 30, 60), 3600) == ["under 1 s", "1–30 s", "30 s – 1 min", "1 min – 1 h"]
    assert bins.count_labels((1, 2, 4)) == ["1", "2–3", "4 or more"]
    assert bins.period_for(NOW, NOW + timedelta(days=750)) == "week"
    assert bins.up_to((0, 1, 5), 0.5) == (0,)


def test_options_that_do_not_fit() -> None:
    assert parse_span("30m", "--session-gap") == 1800
    assert parse_time("2d", "--since", NOW) == NOW - timedelta(days=2)
    assert parse_time("2026-11-20T13:00:00+01:00", "--since", NOW) == NOW
    assert json_path("fromUser.user name", "--sender-field") == "$['fromUser']['user name']"
    for call in (
        lambda: parse_span("soon", "--session-gap"),
        lambda: parse_span("0s", "--session-gap"),
        lambda: parse_time("yesterday", "--since", NOW),
        lambda: parse_zone("Mars/Olympus"),
        lambda: json_path("a['b']", "--sender-field"),
        lambda: json_path("a..b", "--sender-field"),
    ):
        with pytest.raises(BadOption):
            call()


def browse(path: Path, *options: str) -> tuple[str, str]:
    """The page as Chromium has drawn it, and what it told about the page on its console."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no Chromium")
    arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--dump-dom"]
    arguments += ["--enable-logging=stderr", "--virtual-time-budget=20000", *options]
    profile = path.parent / "profile"
    done = subprocess.run(
        [program, *arguments, f"--user-data-dir={profile}", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        check=True,
    )
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def asked_by_page(log: Path) -> set[str]:
    """What the page asked the network for. Requests of the browser itself have no origin."""
    parameters = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    return {
        found["url"]
        for found in parameters
        if str(found.get("url", "")).startswith(("http", "ws"))
        and "not an" not in found.get("initiator", "not an")
    }


@pytest.mark.drill
@pytest.mark.browser
def test_a_browser_draws_every_plot_and_fetches_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    page.write(report, page.render(replace(findings(), read_from="a folder"), "Report"))
    requests = tmp_path / "requests.json"
    dom, console = browse(report, f"--log-net-log={requests}", "--window-size=1280,900")
    assert 'data-drawn="yes"' in dom
    assert dom.count('class="main-svg"') >= 12
    assert "owned" not in re.findall("<title>(.*?)</title>", dom)[0]
    assert console == ""
    assert asked_by_page(requests) == set()


@pytest.mark.drill
@pytest.mark.browser
def test_a_page_that_fetches_would_be_noticed(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text('<img src="http://127.0.0.1:9/x.png">')
    requests = tmp_path / "requests.json"
    browse(report, f"--log-net-log={requests}")
    assert asked_by_page(requests) == {"http://127.0.0.1:9/x.png"}


def test_a_single_moment_has_no_scale_and_few_messages_no_fractions() -> None:
    once = [{"period": NOW, "messages": 1}]
    for figure in (figures.peaks(once, "hour"), figures.volume(_volume(once), "hour")):
        assert figure["layout"]["xaxis"]["type"] == "category"
        assert figure["layout"]["yaxis"]["dtick"] == 1
    more = [{"period": NOW + timedelta(hours=n), "messages": 20_000} for n in range(2)]
    for figure in (figures.peaks(more, "hour"), figures.volume(_volume(more), "hour")):
        assert figure["layout"]["xaxis"]["type"] == "date"
        assert "dtick" not in figure["layout"]["yaxis"]
        assert figure["layout"]["yaxis"]["tickformat"] == "~s"


def _volume(rows: list[dict[str, Any]]) -> Volume:
    return Volume(["a"], [row | {"channel": "a"} for row in rows], [], [], [])


def test_that_no_message_has_a_time_is_said() -> None:
    full = findings()
    none = {"messages": 0, "first_at": None, "last_at": None}
    empty = replace(full, read=Read(full.read.totals | none, 10, "hour"), volume=None)
    said = left_out(empty)[0]
    assert said == "Nothing can be counted: 10 messages left out: no time can be read at sent in data."
    assert said in page.render(replace(empty, senders=None, session_lengths=None), "Nothing")
