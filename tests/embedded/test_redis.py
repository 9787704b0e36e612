"""The embedded Redis keeps nothing, is bounded, and comes back."""

from pathlib import Path

import redis as client

from app.embedded import EmbeddedRedis
from tests.embedded.support import kill
from tests.patience import wait_until


def connect(server: EmbeddedRedis) -> "client.Redis":
    return client.Redis.from_url(server.url)


def test_it_answers_on_a_private_socket_only(redis: EmbeddedRedis) -> None:
    with connect(redis) as connection:
        assert connection.ping()
        assert connection.info("server")["tcp_port"] == 0
    assert redis.socket.stat().st_mode & 0o777 == 0o700


def test_its_memory_is_bounded_and_what_is_new_finds_room(home: Path) -> None:
    server = EmbeddedRedis(home, memory_mb=8)
    server.start()
    try:
        with connect(server) as connection:
            for number in range(64):
                connection.set(f"key-{number}", b"x" * 262_144)
            kept = [number for number in range(64) if connection.exists(f"key-{number}")]
            assert len(kept) <= 32
            assert kept[-1] == 63
    finally:
        server.stop()


def test_a_killed_one_comes_back_empty(redis: EmbeddedRedis) -> None:
    with connect(redis) as connection:
        connection.set("key", "value")
    kill(redis.pid)
    wait_until(lambda: not redis.alive())
    redis.start()
    with connect(redis) as connection:
        assert connection.get("key") is None
    assert not any(redis.folder.iterdir())


def test_one_that_outlived_its_parent_is_ended_first(redis: EmbeddedRedis) -> None:
    later = EmbeddedRedis(redis.home)
    later.start()
    try:
        wait_until(lambda: not redis.alive())
        with connect(later) as connection:
            assert connection.ping()
    finally:
        later.stop()
