"""docs/howto/outbox-django.md and outbox-fastapi.md: each page from its first step to its last, and what it
promises of the application that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import httpx
import pytest
from fastapi import Depends, FastAPI

from load.children import free_port
from tests.docs.follow import Place
from tests.docs.pages import fences, section
from tests.docs.production import PostgresOnPort
from tests.patience import PATIENCE_S, http_client

DJANGO = "docs/howto/outbox-django.md"
FASTAPI = "docs/howto/outbox-fastapi.md"
PUBLISH = "select gapless.publish('orders.placed', '{}'::jsonb)"
STORED = """
select string_agg(m.data ->> 'item', ' ' order by m.id)
from gapless.messages m join gapless.channels c on c.id = m.channel_id where c.name = 'orders.placed'
"""
FAILING_COMMIT = """
create function refuse() returns trigger language plpgsql as
$$ begin if new.item = 'anvil' then raise exception 'not at the commit'; end if; return null; end $$;
create constraint trigger refuse after insert on {table} deferrable initially deferred
    for each row execute function refuse();
"""

Places = Callable[[bool], Place]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    """Makes a place with a Postgres that knows nothing of Gapless yet."""
    made = []

    def make(installing: bool) -> Place:
        postgres = PostgresOnPort(tmp_path / "postgres")
        postgres.port = free_port()
        postgres.start()
        (tmp_path / "shop").mkdir()
        place = Place(tmp_path / "shop", postgres, free_port(), free_port(), installing)
        made.append(place)
        place.as_admin("drop database gapless")
        place.as_admin("drop role gapless_owner, gapless_service, gapless_publisher, gapless_reader")
        return place

    yield make
    for place in made:
        place.end()
        place.postgres.stop()


def order(place: Place, item: str) -> int:
    """The status of an order."""
    wanted = {"item": item, "cents": 1}
    return httpx.post(f"{place.app_url}/orders", json=wanted, timeout=PATIENCE_S).status_code


def both(place: Place, table: str) -> tuple[str, str]:
    """The items in the application's table, and those in the channel."""
    rows = place.as_admin(f"select string_agg(item, ' ' order by id) from {table}", "shop")
    return rows.strip(), place.as_admin(STORED, "shop").strip()


def keeps_its_promises(place: Place, table: str) -> None:
    """Nobody has more rights than the page says, and row and message stay one."""
    place.as_admin("create role stranger login password '0123456789abcdef'")
    assert "permission denied for schema gapless" in place.refusal("stranger", PUBLISH)
    assert 'schema "gapless" does not exist' in place.refusal("shop", PUBLISH, "postgres")
    assert "permission denied for table messages" in place.refusal("shop", "delete from gapless.messages")
    assert "must be owner of schema gapless" in place.refusal("shop", "drop schema gapless cascade")
    for role in ("gapless_app", "gapless_owner"):
        assert f"permission denied for table {table}" in place.refusal(role, f"select * from {table}")
    before, _ = both(place, table)
    assert order(place, "bowl") == 201
    assert both(place, table) == (f"{before} bowl", f"{before} bowl")
    place.as_admin(FAILING_COMMIT.format(table=table), "shop")
    assert order(place, "anvil") == 500
    assert both(place, table) == (f"{before} bowl", f"{before} bowl")
    place.as_admin("select gapless.revoke('shop')", "shop")
    assert order(place, "plate") == 500
    assert "permission denied for schema gapless" in place.refusal("shop", "select * from gapless.messages")
    place.as_admin("select gapless.grant_publisher('shop')", "shop")
    assert order(place, "fork") == 201
    assert "permission denied for table messages" in place.refusal("shop", "select * from gapless.messages")
    assert both(place, table) == (f"{before} bowl fork", f"{before} bowl fork")


@pytest.mark.drill
@pytest.mark.parametrize("installing", [False, True], ids=["packages-here", "own-packages"])
def test_the_page_of_fastapi_leads_from_an_empty_database_to_an_outbox(
    places: Places, installing: bool
) -> None:
    place = places(installing)
    place.follow(FASTAPI)
    assert both(place, "orders") == ("kettle cup spoon", "kettle cup spoon")
    keeps_its_promises(place, "orders")


@pytest.mark.drill
def test_the_page_of_django_leads_from_an_empty_database_to_an_outbox(places: Places) -> None:
    place = places(True)
    place.follow(DJANGO)
    assert both(place, "orders_order") == ("kettle cup", "kettle cup")
    keeps_its_promises(place, "orders_order")


def test_the_two_pages_say_the_same_of_the_database() -> None:
    def statements(page: str) -> list[str]:
        return [fence.text for fence in fences(page) if fence.language == "sql"]

    def settings(page: str) -> list[str]:
        return [fence.text for fence in fences(page) if "./gapless" in fence.text]

    assert statements(DJANGO)[:2] == statements(FASTAPI)[:2]
    assert settings(DJANGO) == settings(FASTAPI)
    for title in ("promises", "database", "missing"):
        assert section(DJANGO, title) == section(FASTAPI, title)


async def answer_of(scope: Literal["function", "request"] | None) -> int:
    """The status of a route whose dependency fails after its `yield`, as a commit there may."""

    def committing() -> Iterator[None]:
        yield
        raise RuntimeError("not committed")

    app = FastAPI()

    @app.post("/", status_code=201, dependencies=[Depends(committing, scope=scope)])
    def place() -> None:
        """Do nothing."""

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with http_client("http://shop", transport=transport) as client:
        return (await client.post("/")).status_code


async def test_a_commit_in_a_dependency_comes_after_the_answer_as_the_page_says() -> None:
    assert await answer_of(None) == 201
    assert await answer_of("function") == 500
