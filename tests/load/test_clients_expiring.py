"""Foreign clients whose tokens end every few seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from load.children import CHECKOUT
from load.clients.__main__ import RENEWALS, check_renewals
from load.verdict import Verdict


def test_too_few_renewals_are_a_breach() -> None:
    enough, short, none = Verdict(), Verdict(), Verdict()
    check_renewals("it", {"connection": RENEWALS + 1, "subscription": RENEWALS + 1}, enough)
    check_renewals("it", {"connection": RENEWALS + 1, "subscription": RENEWALS}, short)
    check_renewals("it", {}, none)
    assert [verdict.exit_code for verdict in (enough, short, none)] == [0, 1, 1]


@pytest.mark.drill
def test_clients_that_renew_their_tokens_get_each_message_once() -> None:
    command = [sys.executable, "-m", "load.clients", "--expiring"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
