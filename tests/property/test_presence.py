"""What is told of those that join and leave a channel, for any order of events."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from subscriptions.domain.presence import (
    COUNT_EVERY_S,
    MAX_CHANGES,
    MAX_CROWD,
    Announcer,
    Change,
    ClientInfo,
    Clients,
    Count,
)

CHANNEL = ("default", "a")
TICK_S = COUNT_EVERY_S / 8
"""Exact in binary, and so is every sum of it: a rounded second may be less than a second later."""
NAMES = st.integers(0, 3 * MAX_CHANGES).map(str)
SOME = st.lists(st.tuples(NAMES, st.booleans()), max_size=3 * MAX_CHANGES)
CROWDS = st.builds(
    lambda count, joins: [(str(name), joins) for name in range(count)],
    st.integers(0, 2 * MAX_CROWD),
    st.booleans(),
)
TICKS = st.lists(SOME | CROWDS, max_size=30)


@given(TICKS, st.sampled_from([1, MAX_CROWD, MAX_CROWD + 1]))
def test_a_reader_that_counts_along_knows_who_is_there(
    ticks: list[list[tuple[str, bool]]], clients: int
) -> None:
    """Or is told a count, which is rare, and which follows whatever was left out."""
    announcer, now = Announcer(), 0.0
    there: set[str] = set()
    known: set[str] = set()
    counted_at = float("-inf")
    for tick in ticks:
        for name, joins in tick:
            if joins != (name in there):
                (there.add if joins else there.remove)(name)
                announcer.add(Change(name, None, joins, 0))
        told = announcer.take(clients, now)
        match told:
            case Count():
                assert now - counted_at >= COUNT_EVERY_S
                counted_at, known = now, set(there)
            case None:
                pass
            case changes:
                assert clients <= MAX_CROWD
                assert len(changes) <= MAX_CHANGES
                for change in changes:
                    (known.add if change.joined else known.discard)(change.client)
        if not announcer.due:
            assert known == there
        now += TICK_S
    for _ in range(MAX_CROWD // MAX_CHANGES):
        now += COUNT_EVERY_S
        announcer.take(clients, now)
    assert not announcer.due
    assert announcer.is_idle(now + 2 * COUNT_EVERY_S)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans())))
def test_a_client_is_on_a_channel_while_one_of_its_subscriptions_is(steps: list[tuple[int, bool]]) -> None:
    clients = Clients()
    some = [ClientInfo(str(n), f"user {n % 2}" if n < 4 else None, 0) for n in range(6)]
    open_: dict[int, int] = dict.fromkeys(range(6), 0)
    for number, joins in steps:
        before = open_[number]
        if joins:
            open_[number] += 1
            assert clients.join(CHANNEL, some[number]) == (before == 0)
        elif before:
            open_[number] -= 1
            assert clients.leave(CHANNEL, some[number]) == (before == 1)
        else:
            assert not clients.leave(CHANNEL, some[number])
        there = {some[n].id: some[n] for n, count in open_.items() if count}
        assert dict(clients.of(CHANNEL)) == there
        users = [client.user or "" for client in there.values()]
        assert dict(clients.users(CHANNEL)) == {user: users.count(user) for user in users}
        assert clients.channels == ([CHANNEL] if there else [])


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), max_size=40), st.integers(0, 40))
def test_a_list_that_was_read_at_any_time_is_right_in_the_end(
    steps: list[tuple[int, bool, bool]], begins: int
) -> None:
    """Its reader asks who is there between two steps, and is told from then on. Some steps end a tick."""
    announcer, now = Announcer(), 0.0
    there: set[str] = set()
    listed: set[str] | None = None

    def tick() -> None:
        told = announcer.take(len(there), now)
        assert not isinstance(told, Count)
        for change in told or ():
            if listed is not None:
                (listed.add if change.joined else listed.discard)(change.client)

    for number, (who, joins, ends) in enumerate([*steps, (0, False, True)]):
        if number == min(begins, len(steps)):
            listed = set(there)
        name = str(who)
        if joins != (name in there):
            (there.add if joins else there.remove)(name)
            announcer.add(Change(name, None, joins, 0))
        if ends:
            now += TICK_S
            tick()
    assert not announcer.due
    assert listed == there


STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.booleans()), max_size=60)


@given(STEPS)
def test_a_client_is_shown_wherever_there_is_a_place(steps: list[tuple[int, int, bool]]) -> None:
    """Three channels of a client, four of the process, of which two are kept for clients on none yet. Whoever
    is hidden gets the place that another leaves."""
    clients = Clients(max_channels=4, max_of_client=3, reserved=2, few=1)
    some = [ClientInfo(str(n), "user", 0) for n in range(3)]
    channels = [("default", str(n)) for n in range(5)]
    pairs = [(who, where) for who in range(3) for where in range(5)]
    open_: Counter[tuple[int, int]] = Counter()
    shown: set[tuple[int, int]] = set()

    def has_place(who: int, where: int) -> bool:
        held, of_client = {w for _, w in shown}, sum(client == who for client, _ in shown)
        return of_client < 3 and (where in held or len(held) < (2 if of_client else 4))

    for who, where, joins in [*steps, *((*pair, False) for pair in pairs for _ in steps)]:
        there, last = (who, where) in shown, open_[who, where] == 1
        if joins:
            expected = not there and not open_[who, where] and has_place(who, where)
            beyond = clients.beyond_client + clients.beyond_process
            assert clients.join(channels[where], some[who]) == expected
            hidden = not open_[who, where] and not expected
            assert clients.beyond_client + clients.beyond_process == beyond + hidden
            open_[who, where] += 1
        else:
            open_[who, where] = max(0, open_[who, where] - 1)
            assert clients.leave(channels[where], some[who]) == (there and last)
        now = {(w, c) for w, c in pairs if some[w].id in clients.of(channels[c])}
        filled = [each for _ in pairs for each in clients.fill(len(pairs))]
        shown = {(w, c) for w, c in pairs if some[w].id in clients.of(channels[c])}
        assert sorted(filled) == sorted((channels[c], some[w]) for w, c in shown - now)
        assert all(open_[each] for each in shown), "who is shown has a subscription"
        hiding = {pair for pair in pairs if open_[pair] and pair not in shown}
        assert not [pair for pair in hiding if has_place(*pair)], "who is hidden has no place"
        assert clients.hides == any(sum(w == who for w, _ in shown) < 3 for who, _ in hiding)
        assert set(clients.channels) == {channels[c] for _, c in shown}
    assert not shown
    assert not clients._hidden
    assert not clients._more
