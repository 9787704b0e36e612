"""The two lists: from a variable with commas, and refused where they cannot be meant."""

from __future__ import annotations

import pytest
from gapless_cli.failures import Failure

from app.cli.serve import _environment
from app.cli.settings import settings_from
from app.process.settings import Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allowed_hosts", "https://a.example"),
        ("allowed_hosts", "a.example, *"),
        ("allowed_hosts", "10.0.0.1"),
        ("allowed_origins", "*"),
        ("allowed_origins", "https://a.example,null"),
        ("allowed_origins", "a.example"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_advice(name: str, value: str) -> None:
    with pytest.raises(Failure, match=f"GAPLESS_{name.upper()}: .*is not a"):
        settings_from(**{name: value})


def test_workers_get_the_lists_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings_from(allowed_hosts="A.example, b.example", allowed_origins=["https://c.example:443"])
    for name, value in _environment(given).items():
        monkeypatch.setenv(name, value)
    assert Settings().allowed_hosts == ("a.example", "b.example") == given.allowed_hosts
    assert Settings().allowed_origins == ("https://c.example",) == given.allowed_origins
    monkeypatch.setenv("GAPLESS_ALLOWED_HOSTS", "")
    assert Settings().allowed_hosts == ()
