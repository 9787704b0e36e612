"""Metrics show nobody the names of another namespace."""

from __future__ import annotations

from app.api.operate import of_namespace

TEXT = b"""# HELP gapless_subscription_in_flight Messages leased now.
gapless_subscription_in_flight{namespace="acme",subscription="q"} 1.0
gapless_subscription_in_flight{namespace="acme2",subscription="q"} 2.0
gapless_subscription_in_flight{instance="a",namespace="blue",subscription="acme"} 3.0
gapless_streams 4.0
# EOF
"""


def test_lines_of_other_namespaces_are_left_out() -> None:
    assert of_namespace(TEXT, "acme").splitlines() == [
        line for line in TEXT.splitlines() if b"acme2" not in line and b"blue" not in line
    ]
    assert of_namespace(TEXT, "none").count(b"namespace=") == 0
