"""`gapless subscribe`: what comes, when it ends, and where it resumes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess

import httpx
import pytest

from tests.cli.conftest import Run, Start, environment, free_port
from tests.conftest import Serve
from tests.patience import PATIENCE_S, eventually, next_line
from tests.support import ROOT


def publish(url: str, channel: str, *data: object) -> list[int]:
    """Ids of what was published."""
    body = [{"data": one} for one in data]
    answer = httpx.post(f"{url}/v1/channels/{channel}/messages", json=body, timeout=PATIENCE_S)
    return [message["id"] for message in answer.raise_for_status().json()["messages"]]


def resume_point(err: str) -> int:
    found = re.search(r"resume with --after (\d+)", err)
    assert found is not None, err
    return int(found[1])


def first_line(process: subprocess.Popen[str]) -> str:
    return next_line(process, process.stdout)


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.drill)])
def test_it_ends_cleanly_and_resumes_where_it_stood(
    start: Start, server_url: str, how: signal.Signals
) -> None:
    channel = f"sub.resume{how.value}"
    ids = publish(server_url, channel, 1, 2)
    with start("subscribe", channel, "--from", "earliest") as process:
        seen = [json.loads(first_line(process))["id"] for _ in ids]
        process.send_signal(how)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
    assert (seen, out) == (ids, "")
    assert resume_point(err) == ids[-1]
    later = publish(server_url, channel, 3, 4)
    with start("subscribe", channel, "--after", str(ids[-1]), "--count", "2") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert [json.loads(line)["id"] for line in out.splitlines()] == later
    assert resume_point(err) == later[-1]


def test_starts_and_filters(run: Run, server_url: str) -> None:
    publish(server_url, "sub.start.a", 1, 2, 3)
    publish(server_url, "sub.start.b", 4)

    def data(*options: str) -> list[object]:
        return [json.loads(line) for line in run("subscribe", *options, "--data-only").stdout.splitlines()]

    assert data("sub.start.*", "--from", "earliest", "--count", "4") == [1, 2, 3, 4]
    assert data("sub.start.a", "--last", "2", "--count", "2") == [2, 3]
    assert data("sub.start.b", "sub.start.a", "--since", "1h", "--count", "4") == [1, 2, 3, 4]


def test_a_refused_subscription_is_told(run: Run) -> None:
    assert "invalid_request" in run("subscribe", "bad name", code=1).stderr
    future = run("subscribe", "sub.future", "--after", "9000000000000000", code=1).stderr
    assert future.count("\n") == 1
    assert "Last-Event-ID" not in future
    for command in ("subscribe", "history"):
        assert "'--after'" in run(command, "sub.future", "--after", "9" * 17, code=2).stderr


def test_ephemeral_messages_are_told_beside(start: Start, run: Run, server_url: str) -> None:
    publish(server_url, "sub.ephemeral", 1)
    with start("subscribe", "sub.ephemeral", "--from", "earliest", "--count", "2") as process:
        first_line(process)
        assert run("publish", "sub.ephemeral", '"typing"', "--ephemeral").stdout.strip().endswith("true}")
        publish(server_url, "sub.ephemeral", 2)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert json.loads(out)["data"] == 2
    assert 'gapless: ephemeral {"channel":"sub.ephemeral","type":"message","data":"typing"}' in err


def test_head_ends_it_although_nothing_more_comes(start: Start, server_url: str) -> None:
    publish(server_url, "sub.pipe", 1)
    with start("subscribe", "sub.pipe", "--from", "earliest") as process:
        assert json.loads(first_line(process))["data"] == 1
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == f"gapless: connected to {server_url}\n"


def test_a_quiet_channel_is_known_to_be_followed(start: Start, server_url: str) -> None:
    with start("subscribe", "sub.quiet") as process:
        assert next_line(process, process.stderr) == f"gapless: connected to {server_url}\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_a_long_history_cut_off_by_head_is_no_error(start: Start, server_url: str) -> None:
    publish(server_url, "sub.long", *["x" * 5000 for _ in range(200)])
    with start("history", "sub.long") as process:
        first_line(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_gap_is_told(run: Run, serve: Serve) -> None:
    service = serve()
    run("channels", "set", "sub.gap", "--max-messages", "2", url=service.url)
    publish(service.url, "sub.gap", 1, 2, 3, 4, 5)
    kept = f"{service.url}/v1/channels/sub.gap"
    asyncio.run(eventually(lambda: httpx.get(kept, timeout=PATIENCE_S).json()["first_seq"] == 4))
    ended = run("subscribe", "sub.gap", "--after", "0", "--count", "2", "--data-only", url=service.url)
    assert ended.stdout == "4\n5\n"
    assert "gapless: gap: 3 messages of sub.gap were removed by retention" in ended.stderr
    assert "it goes on at seq 4" in ended.stderr


def test_a_restarted_server_is_followed_on(start: Start, serve: Serve) -> None:
    service = serve("--port", (port := free_port()))
    with start("subscribe", "sub.restart", "--from", "earliest", "--count", "2", url=service.url) as process:
        first = publish(service.url, "sub.restart", 1)
        assert json.loads(first_line(process))["id"] == first[0]
        service.kill()
        serve("--port", port)
        second = publish(service.url, "sub.restart", 2)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert json.loads(out)["id"] == second[0]
    assert "gapless: subscription lost" in err
    assert f"resuming from {first[0]}" in err
    assert resume_point(err) == second[0]


def test_the_launcher_starts_it(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    publish(server_url, "sub.launcher", 7)
    command = [str(ROOT / "gapless"), "history", "sub.launcher"]
    changed = environment(tmp_path_factory.mktemp("launcher"), server_url, {})
    out = subprocess.run(command, env=changed, capture_output=True, text=True, check=True).stdout
    assert json.loads(out)["data"] == 7
