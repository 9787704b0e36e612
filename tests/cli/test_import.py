"""`gapless import` against a real service: every line once, in the order of the file."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import httpx

from tests.cli.conftest import Run, Start
from tests.cli.holding import holding
from tests.conftest import Serve
from tests.patience import PATIENCE_S, eventually

CHANNELS = 7


def write(path: Path, count: int, name: str, seed: int = 1) -> list[dict[str, Any]]:
    """A file of messages for several channels, in an order of its own."""
    chance = random.Random(seed)
    messages = [
        {"channel": f"{name}.{chance.randrange(CHANNELS)}", "key": f"k{n % 3}", "type": "t", "data": {"n": n}}
        for n in range(count)
    ]
    text = "".join(json.dumps(message) + "\n" for message in messages).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return messages


def stored(url: str, name: str) -> list[dict[str, Any]]:
    """Everything in the channels of that prefix, by id."""
    found: list[dict[str, Any]] = []
    for n in range(CHANNELS):
        accept = {"Accept": "application/x-ndjson"}
        answer = httpx.get(f"{url}/v1/channels/{name}.{n}/messages", headers=accept, timeout=PATIENCE_S)
        found += [json.loads(line) for line in answer.text.splitlines()] if answer.is_success else []
    return sorted(found, key=lambda message: int(message["id"]))


def assert_same(url: str, name: str, messages: list[dict[str, Any]]) -> None:
    """The log holds the file: each message once, in its order, across channels too."""
    members = ("channel", "key", "type", "data")
    assert [{m: message[m] for m in members} for message in stored(url, name)] == messages


def size(messages: list[dict[str, Any]]) -> int:
    """About how many bytes of requests they are."""
    return sum(len(json.dumps(message, separators=(",", ":"))) for message in messages)


def state_of(folder: Path) -> Path:
    [state] = (folder / "home" / "imports").glob("*.json")
    return state


def imported(folder: Path) -> int:
    """Messages noted as stored so far."""
    states = list((folder / "home" / "imports").glob("*.json"))
    return json.loads(states[0].read_text())["messages"] if states else 0


def test_a_gzipped_file_once(run: Run, server_url: str, tmp_path: Path) -> None:
    messages = write(tmp_path / "a.jsonl.gz", 2500, "imp.once")
    assert "a.jsonl.gz: 2,500 messages imported" in run("import", "a.jsonl.gz").stdout
    again = run("import", "a.jsonl.gz").stdout
    assert "was imported already, 2,500 messages" in again
    assert "nothing was published" in again
    assert_same(server_url, "imp.once", messages)
    assert "2,500 messages imported" in run("import", "a.jsonl.gz", "--again").stdout
    assert_same(server_url, "imp.once", messages + messages)


def test_killed_between_the_answer_and_the_note(run: Run, server_url: str, tmp_path: Path) -> None:
    messages = write(tmp_path / "a.jsonl", 2500, "imp.note")
    run("import", "a.jsonl")
    state = json.loads(state_of(tmp_path).read_text())
    begun = {"place": {"offset": 0, "line": 0, "batch": 0}, "messages": 0, "last_channel": None, "last_id": 0}
    state_of(tmp_path).write_text(json.dumps({**state, **begun, "finished_at": None}))
    told = run("import", "a.jsonl").stdout
    assert "2,500 were stored already by a run before and not stored again" in told
    assert json.loads(state_of(tmp_path).read_text())["last_id"] == state["last_id"]
    assert_same(server_url, "imp.note", messages)


def test_an_old_half_done_import_says_what_it_cannot_know(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", 1500, "imp.old")
    run("import", "a.jsonl")
    state = json.loads(state_of(tmp_path).read_text())
    state_of(tmp_path).write_text(json.dumps({**state, "finished_at": None}))
    assert "may be stored twice" not in run("import", "a.jsonl").stderr
    state_of(tmp_path).write_text(json.dumps({**state, "finished_at": None}))
    os.utime(state_of(tmp_path), (0, 0))
    assert "up to 1,000 messages may be stored twice" in run("import", "a.jsonl").stderr


def test_a_lost_home_doubles_nothing(run: Run, server_url: str, tmp_path: Path) -> None:
    messages = write(tmp_path / "a.jsonl", 1500, "imp.home")
    run("import", "a.jsonl")
    assert "1,500 were stored already" in run("import", "a.jsonl", "--home", str(tmp_path / "new")).stdout
    assert_same(server_url, "imp.home", messages)


async def test_a_killed_importer_goes_on(run: Run, start: Start, server_url: str, tmp_path: Path) -> None:
    messages = write(tmp_path / "a.jsonl.gz", 30_000, "imp.kill")
    async with holding(server_url, size(messages) // 2) as relay:
        for share in (1, 8000):
            with start("import", "a.jsonl.gz", url=relay.url) as process:
                await eventually(lambda least=share: imported(tmp_path) >= least)  # type: ignore[misc]
                process.kill()
                process.communicate(timeout=PATIENCE_S)
        before = imported(tmp_path)
        assert 8000 <= before < 30_000, "it was to be killed on its way"
        await relay.let_go()
        ended = await asyncio.to_thread(run, "import", "a.jsonl.gz", url=relay.url)
    assert f"going on after {before:,} messages" in ended.stderr
    assert f"30,000 messages imported, {30_000 - before:,} of them in this run" in ended.stdout
    assert_same(server_url, "imp.kill", messages)


async def test_an_interrupted_importer_says_how_to_go_on(
    run: Run, start: Start, server_url: str, tmp_path: Path
) -> None:
    messages = write(tmp_path / "a.jsonl", 20_000, "imp.interrupt")
    async with holding(server_url, size(messages) // 2) as relay:
        with start("import", "a.jsonl", url=relay.url) as process:
            await eventually(lambda: imported(tmp_path) > 0)
            process.send_signal(signal.SIGINT)
            _, err = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
            assert process.returncode == 130
        assert err.splitlines()[-1].startswith("gapless: a.jsonl: interrupted; run the same command again")
        await relay.let_go()
        await asyncio.to_thread(run, "import", "a.jsonl", url=relay.url)
    assert_same(server_url, "imp.interrupt", messages)


async def test_one_in_the_background_of_a_shell_can_be_interrupted_too(
    start: Start, server_url: str, tmp_path: Path
) -> None:
    messages = write(tmp_path / "a.jsonl", 20_000, "imp.background")
    async with holding(server_url, size(messages) // 2) as relay:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process = start("import", "a.jsonl", url=relay.url)
        finally:
            signal.signal(signal.SIGINT, before)
        with process:
            await eventually(lambda: imported(tmp_path) > 0)
            process.send_signal(signal.SIGINT)
            await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
            assert process.returncode == 130


async def test_a_killed_server_is_waited_for(start: Start, serve: Serve, tmp_path: Path) -> None:
    messages = write(tmp_path / "a.jsonl", 20_000, "imp.server")
    service = serve()
    async with holding(service.url, size(messages) // 2) as relay:
        with start("import", "a.jsonl", url=relay.url) as process:
            await relay.held()
            assert imported(tmp_path) >= 2000
            service.kill()
            assert process.poll() is None, "it was to be interrupted on its way"
            service = await asyncio.to_thread(serve)
            relay.upstream = service.url
            await relay.let_go()
            out, err = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "trying again for 120 s" in err
    assert "the server is back after" in err
    assert "20,000 messages imported" in out
    assert_same(service.url, "imp.server", messages)


def test_patience_ends(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", 3, "imp.away")
    err = run("import", "a.jsonl", "--patience", "0.2", url="http://127.0.0.1:1", code=3).stderr
    assert "gave up on http://127.0.0.1:1 after 0.2 s" in err


def test_a_bad_line_stops_it_before_anything_is_stored(run: Run, server_url: str, tmp_path: Path) -> None:
    lines = [json.dumps({"channel": "imp.bad.0", "data": n}) for n in range(1500)]
    lines[1200] = '{"channel": "imp.bad.0"}'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    err = run("import", "a.jsonl", code=1).stderr
    assert "a.jsonl:1201: data: is required" in err
    assert "1 bad line (--skip-bad leaves them out). Nothing was published" in err
    assert stored(server_url, "imp.bad") == []
    ended = run("import", "a.jsonl", "--skip-bad")
    assert "a.jsonl:1201: data: is required (or data_base64, for binary data); skipped" in ended.stderr
    assert "1,499 messages imported, 1 bad lines skipped" in ended.stdout
    assert [m["data"] for m in stored(server_url, "imp.bad")] == [n for n in range(1500) if n != 1200]


def test_dry_run_names_every_kind_of_bad_line(run: Run, server_url: str, tmp_path: Path) -> None:
    bad = {
        "{": "not JSON at column",
        "[]": "a message must be a JSON object",
        '{"data": 1}': "names no channel (--channel",
        '{"channel": "a b", "data": 1}': "channel: must be tokens",
        '{"channel": "a", "data": 1, "x": 2}': "x: is not a known member",
        '{"channel": "a", "data": 1, "data": 2}': "the same key occurs twice",
        '{"channel": "a", "channel": "b", "data": 2}': "the same key occurs twice",
        '{"channel": "a", "data": 1, "key": 7}': "key: expected",
        '{"channel": "a", "data": 1},{"channel": "a", "data": 2}': "not JSON at column",
        '{"channel": "a", "data": 1, "delay": 5}': "delay",
        '{"channel": "a", "data": "%s"}' % ("x" * 2**20): "is longer than 1048576 bytes",
    }
    good = '{"channel": "imp.dry.0", "data": 1}'
    (tmp_path / "a.jsonl").write_text("\n".join([good, "", *bad, good + "\r"]))
    err = run("import", "a.jsonl", "--dry-run", code=1).stderr.replace("gapless: ", "").splitlines()
    for number, why in enumerate(bad.values(), 3):
        assert err[number - 3].startswith(f"a.jsonl:{number}: "), err[number - 3]
        assert why in err[number - 3]
    assert err[-1] == f"a.jsonl: {len(bad)} bad lines (--skip-bad leaves them out)"
    (tmp_path / "good.jsonl").write_text(f"\ufeff{good}\n\n{good}")
    assert "2 messages for 1 channels, all good" in run("import", "good.jsonl", "--dry-run").stdout
    assert stored(server_url, "imp.dry") == []


def test_an_export_can_be_imported(run: Run, server_url: str, tmp_path: Path) -> None:
    data = '{"n": 1.10, "m": [1e2, 12345678901234567890]}'
    run("publish", "imp.from.0", data, "--key", "k", "--header", "a=b", "--sender", "ann")
    exported = run("history", "imp.from.0").stdout.replace("imp.from", "imp.to")
    assert "1 messages imported" in run("import", "-", input=exported).stdout
    [was], [now] = stored(server_url, "imp.from"), stored(server_url, "imp.to")
    for name in ("id", "seq", "channel", "created_at"):
        assert was.pop(name) != now.pop(name) or name == "seq"
    assert was == now


def test_lines_without_a_channel_and_exact_numbers(run: Run, server_url: str) -> None:
    run(
        "import",
        "-",
        "--channel",
        "imp.plain.0",
        input='{"data": 1.10}\n{"channel": "imp.plain.1", "data": 2}',
    )
    raw = httpx.get(f"{server_url}/v1/channels/imp.plain.0/messages", timeout=PATIENCE_S).text
    assert '"data":1.10,' in raw, "the text of a number is kept"
    assert [m["channel"] for m in stored(server_url, "imp.plain")] == ["imp.plain.0", "imp.plain.1"]


def test_a_log_that_lost_what_was_imported_is_noticed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"channel": "imp.gone.0", "data": 1}')
    run("import", "a.jsonl")
    run("channels", "delete", "imp.gone.0", "--yes")
    assert "which this server does not have" in run("import", "a.jsonl", code=1).stderr
    assert "1 messages imported" in run("import", "a.jsonl", "--again").stdout


def test_files_that_are_none(run: Run, tmp_path: Path) -> None:
    whole = gzip.compress(b'{"channel": "imp.cut.0", "data": 1}\n' * 5000)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    assert "damaged or cut off" in run("import", "cut.jsonl.gz", code=1).stderr
    (tmp_path / "empty.jsonl").write_text("")
    assert "0 messages imported" in run("import", "empty.jsonl").stdout
    assert "is no file" in run("import", str(tmp_path), code=2).stderr


def test_several_files_stop_at_the_first_that_fails(run: Run, server_url: str, tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"channel": "imp.several.0", "data": 1}')
    (tmp_path / "2.jsonl").write_text("oops")
    (tmp_path / "3.jsonl").write_text('{"channel": "imp.several.0", "data": 3}')
    assert "2.jsonl:1: not JSON" in run("import", "1.jsonl", "2.jsonl", "3.jsonl", code=1).stderr
    assert [m["data"] for m in stored(server_url, "imp.several")] == [1]
