"""The nouns of durable subscriptions as values."""

from __future__ import annotations

from subscriptions.domain.delivery import Change, Definition, Definitions, Subscription

SECRET = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"
PUSHED = {"push": {"url": "https://example.org", "secret": SECRET}}


def test_no_representation_shows_the_secret_of_a_push() -> None:
    definition = Definition("q", ("c",), settings=PUSHED)
    shown = [
        definition,
        Definitions(subscriptions=(definition,)),
        Subscription(1, "default", "q", ("c",), "latest", False, 0, PUSHED, {"push": "own"}),
        Change("subscription", "q", PUSHED, PUSHED),
    ]
    assert [SECRET in repr(each) for each in shown] == [False] * 4
