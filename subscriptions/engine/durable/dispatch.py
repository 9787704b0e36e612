"""Decides for which streams a group claims, and deals the deliveries to streams and pulls."""

from __future__ import annotations

from collections.abc import Iterable

from subscriptions.domain.delivery import Delivery, Hand
from subscriptions.engine.durable.member import Member
from subscriptions.engine.durable.pull import Pull


def hands_of_streams(members: Iterable[Member], turn: int, most: int) -> list[Hand]:
    """One message for each stream in turn, beginning with another stream each time."""
    order = [(member.number, len(member.outstanding), room) for member in members if (room := member.room)]
    order = order[turn % len(order) :] + order[: turn % len(order)] if order else []
    hands: list[Hand] = []
    n = 0
    while order and len(hands) < most:
        n += 1
        hands += [Hand(number, held + n) for number, held, _ in order]
        order = [stream for stream in order if stream[2] > n]
    return hands[:most]


def deal(deliveries: list[Delivery], pulls: Iterable[Pull], members: Iterable[Member]) -> list[Delivery]:
    """Give each delivery to its pull or stream. Returns the deliveries whose pull or stream is gone. One pull
    after another is filled: a few large answers cost less than many small ones."""
    unwanted: list[Delivery] = []
    pulled = [delivery for delivery in deliveries if delivery.member == 0]
    for pull in pulls:
        hand = pulled[: pull.room]
        pulled = pulled[len(hand) :]
        if hand and not pull.resolve(hand):
            unwanted += hand
    streamed: dict[int, list[Delivery]] = {}
    for delivery in deliveries:
        if delivery.member != 0:
            streamed.setdefault(delivery.member, []).append(delivery)
    there = {member.number: member for member in members if not member.goodbye}
    for number, hand in streamed.items():
        if member := there.get(number):
            member.give(hand)
        else:
            unwanted += hand
    return unwanted + pulled
