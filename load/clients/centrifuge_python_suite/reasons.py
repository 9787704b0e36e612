"""The cases that do not pass, the reason of each, and the verdict on a run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from load.verdict import Breach, Verdict


class Case(NamedTuple):
    """What became of a test or a subtest: `passed`, `failed` or `skipped`. `why` is its error, `said` the
    client's log."""

    test: str
    parameters: str
    outcome: str
    why: str = ""
    said: str = ""

    def __str__(self) -> str:
        return f"{self.test} {self.parameters}".rstrip()


class Reason(NamedTuple):
    """Why some tests do not pass: each of their cases with `text` in its parameters. `evidence` is a pattern
    that the error or the client's log of each such case must match."""

    name: str
    text: str
    evidence: str
    tests: tuple[str, ...]

    def covers(self, case: Case) -> bool:
        """Whether this case is one of those that do not pass."""
        return case.test in self.tests and self.text in case.parameters

    def explains(self, case: Case) -> bool:
        """Whether the case failed for this reason."""
        return case.outcome != "passed" and bool(re.search(self.evidence, f"{case.why}\n{case.said}"))


def _named(*names: str) -> tuple[str, ...]:
    return tuple(f"test_client.{name}" for name in names)


REASONS: Final = (
    Reason(
        "protobuf: the service speaks JSON only, and ends the connection with 3501",
        "use_protobuf=True",
        r"connection closed, code: 3501, reason: text messages only",
        _named(
            "TestAutoRecovery.test_auto_recovery",
            "TestClient.test_client_connects_disconnects",
            "TestClientLevelOperations.test_client_publish_history_presence",
            "TestClientTokenInvalid.test_client_token",
            "TestConnectDisconnectLoop.test_connect_disconnect_loop",
            "TestConnectedContext.test_connected_context_has_client_and_version",
            "TestConnectingDisconnectedCallbacks.test_connecting_and_disconnected_callbacks",
            "TestGetState.test_get_state_called_on_initial_subscribe",
            "TestHistoryPagination.test_history_since_and_reverse",
            "TestJoinLeave.test_join_leave",
            "TestMultipleSubscriptions.test_multiple_subscriptions",
            "TestPresenceTwoClients.test_presence_two_clients",
            "TestPubSub.test_pub_sub",
            "TestRecoveryAfterUnsubscribeResubscribe.test_recovery_after_unsub_resub",
            "TestServerSideSubscriptions.test_server_side_subs",
            "TestSubscribeUnsubscribeLoop.test_subscribe_unsubscribe_loop",
            "TestSubscribingSubscribedCallbacks.test_subscribing_and_subscribed_callbacks",
            "TestSubscription.test_client_subscribe_unsubscribes",
            "TestSubscriptionOperations.test_subscription_operations",
            "TestSubscriptionTokenInvalid.test_client_token",
            "TestSubscriptionTokenUnauthorized.test_unauthorized_subscription_token",
        ),
    ),
    Reason(
        "tokens: a wrong one has to end the connection with 3500; all are refused with 101",
        "use_protobuf=False",
        r"connect reply has error: \{'code': 101\b",
        _named("TestClientTokenInvalid.test_client_token"),
    ),
    Reason(
        "tokens: a wrong one of a subscription has to be refused with 103; all are with 101",
        "use_protobuf=False",
        r"subscribe reply has error: \{'code': 101\b",
        _named("TestSubscriptionTokenInvalid.test_client_token"),
    ),
    Reason(
        "tokens: the server subscribes the user of the token to a channel of his own",
        "use_protobuf=False",
        r"connect reply has error: \{'code': 101\b",
        _named("TestServerSideSubscriptions.test_server_side_subs"),
    ),
)


def read(results: Path) -> list[Case]:
    """The cases that `cases.py` has written."""
    return [Case(**json.loads(line)) for line in results.read_text().splitlines()]


def judge(cases: Sequence[Case], reasons: Sequence[Reason] = REASONS) -> Verdict:
    """The verdict: what has no reason must pass, and what has one must still fail for it."""
    verdict = Verdict((Breach.FAILED, Breach.STALE))
    for case in cases:
        reason = next((reason for reason in reasons if reason.covers(case)), None)
        if reason is None and case.outcome != "passed":
            verdict.add(Breach.FAILED, f"{case}: {case.outcome}: {case.why[-600:].strip()}")
        elif reason is not None and case.outcome == "passed":
            verdict.add(Breach.STALE, f"{case} passes, but has the reason: {reason.name}")
        elif reason is not None and not reason.explains(case):
            verdict.add(Breach.FAILED, f"{case} fails, but not for its reason: {case.why[-600:].strip()}")
    for reason in reasons:
        for test in reason.tests:
            if not any(case.test == test and reason.covers(case) for case in cases):
                verdict.add(
                    Breach.STALE, f"{test} {reason.text} did not run, but has the reason: {reason.name}"
                )
    return verdict


def table(cases: Sequence[Case], reasons: Sequence[Reason] = REASONS) -> list[str]:
    """What a person reads: how many cases passed, and each that did not, by its reason."""
    outcomes = Counter(case.outcome for case in cases)
    lines = [", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))]
    rest = [case for case in cases if case.outcome != "passed"]
    for reason in reasons:
        covered = [case for case in rest if reason.covers(case)]
        lines += [f"{len(covered)} for this reason: {reason.name}", *(f"    {case}" for case in covered)]
        rest = [case for case in rest if case not in covered]
    return [*lines, f"{len(rest)} without a reason", *(f"    {case}" for case in rest)]
