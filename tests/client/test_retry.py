"""When a call is tried again, decided without waiting."""

from __future__ import annotations

import pytest
from gapless import NO_RETRY, GaplessError, ProtocolError, RateLimited, RetryPolicy, Unavailable, Unreachable
from gapless._retry import Attempts, NoReply, Outcome, Reply, backoff
from hypothesis import given
from hypothesis import strategies as st

OK = Reply(200, {}, b"{}")
CUT = NoReply("cut")
REFUSED = NoReply("refused", sent=False)


def attempts(policy: RetryPolicy | None = None, *, repeatable: bool = True, chance: float = 0.5) -> Attempts:
    return Attempts(policy or RetryPolicy(), repeatable=repeatable, now=0.0, chance=lambda: chance)


def refusal(status: int, **headers: str) -> Reply:
    return Reply(status, {name.replace("_", "-"): value for name, value in headers.items()})


@given(st.integers(1, 10_000), st.floats(0, 100), st.floats(0, 100), st.floats(0, 1, exclude_max=True))
def test_backoff_is_full_jitter_under_an_exponential_ceiling(
    failures: int, base: float, cap: float, chance: float
) -> None:
    delay = backoff(failures, base, cap, chance)
    assert 0 <= delay <= cap
    if failures < 50:
        assert delay == pytest.approx(chance * min(cap, base * 2 ** (failures - 1)))


outcomes = st.one_of(
    st.builds(NoReply, st.just("x"), sent=st.booleans(), passing=st.booleans()),
    st.builds(Reply, st.integers(200, 599), st.just({})),
    st.builds(refusal, st.sampled_from([429, 503]), retry_after=st.integers(0, 60).map(str)),
)


@given(
    st.lists(outcomes, min_size=1, max_size=30),
    st.booleans(),
    st.integers(1, 10),
    st.floats(0, 60),
    st.floats(0, 1, exclude_max=True),
)
def test_attempts_and_time_are_bounded_whatever_happens(
    seen: list[Outcome], repeatable: bool, most: int, total: float, chance: float
) -> None:
    policy = RetryPolicy(attempts=most, total_seconds=total)
    deciding = attempts(policy, repeatable=repeatable, chance=chance)
    now, tried = 0.0, 0
    for outcome in seen:
        tried += 1
        try:
            verdict = deciding.judge(outcome, now)
        except GaplessError:
            break
        if isinstance(verdict, Reply):
            assert verdict.ok
            break
        assert verdict >= 0
        now += verdict
    assert tried <= most
    assert now <= total


@pytest.mark.parametrize(
    "outcome", [CUT, REFUSED, *(refusal(status) for status in (408, 425, 429, 500, 502, 503, 504))]
)
def test_passing_failures_are_tried_again(outcome: Outcome) -> None:
    deciding = attempts()
    assert isinstance(deciding.judge(outcome, 0.0), float)
    assert deciding.judge(OK, 1.0) is OK


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 415, 422, 501, 505])
def test_lasting_refusals_are_raised_at_once(status: int) -> None:
    with pytest.raises(GaplessError) as caught:
        attempts().judge(refusal(status), 0.0)
    assert caught.value.status == status
    assert not caught.value.retryable


def test_a_refusal_that_calls_itself_retryable_is_tried_again() -> None:
    assert isinstance(attempts().judge(Reply(409, {}, b'{"code": "busy", "retryable": true}'), 0.0), float)


@pytest.mark.parametrize("outcome", [REFUSED, refusal(429), refusal(503)])
def test_what_was_certainly_not_carried_out_is_repeated_even_if_unsafe(outcome: Outcome) -> None:
    assert isinstance(attempts(repeatable=False).judge(outcome, 0.0), float)


@pytest.mark.parametrize("outcome", [CUT, refusal(500), refusal(502), refusal(504)])
def test_what_may_have_been_carried_out_is_not_repeated_if_unsafe(outcome: Outcome) -> None:
    with pytest.raises(GaplessError):
        attempts(repeatable=False).judge(outcome, 0.0)


def test_a_hopeless_request_is_not_repeated() -> None:
    with pytest.raises(Unreachable):
        attempts().judge(NoReply("no such scheme", passing=False), 0.0)


def test_retry_after_is_the_least_wait() -> None:
    deciding = attempts(RetryPolicy(base_seconds=0.2))
    assert deciding.judge(refusal(429, retry_after="7"), 0.0) == pytest.approx(7 + 0.5 * 0.2)


def test_a_retry_after_beyond_the_time_allowed_is_raised_at_once() -> None:
    with pytest.raises(RateLimited) as caught:
        attempts(RetryPolicy(total_seconds=5)).judge(refusal(429, retry_after="60"), 0.0)
    assert caught.value.retry_after == 60


def test_the_last_error_is_the_one_raised() -> None:
    deciding = attempts(RetryPolicy(attempts=2))
    deciding.judge(CUT, 0.0)
    with pytest.raises(Unavailable):
        deciding.judge(refusal(503), 0.1)


def test_no_retry_raises_the_first_failure() -> None:
    with pytest.raises(Unreachable) as caught:
        attempts(NO_RETRY).judge(CUT, 0.0)
    assert caught.value.retryable


def test_a_redirect_is_not_an_answer() -> None:
    with pytest.raises(ProtocolError):
        attempts().judge(refusal(302), 0.0)


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"total_seconds": -1}, {"base_seconds": -1}, {"cap_seconds": -1}]
)
def test_a_policy_without_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        RetryPolicy(**wrong)
