"""The poison drill in its short form, without its clock."""

from __future__ import annotations

import pytest

from load.poison import main


@pytest.mark.drill
def test_only_the_poisonous_dies_and_a_killed_fleet_loses_nothing() -> None:
    assert main(["--keys", "6", "--messages", "400", "--members", "8", "--factor", "inf"]) == 0
