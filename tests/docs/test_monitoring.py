"""The alert rules and the dashboard: sound by Prometheus' own tool, and about metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docs.tables import metrics_table
from tests.patience import PATIENCE_S
from tests.support import ROOT

FOLDER = ROOT / "docs" / "monitoring"
STRANGE = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
"""What Prometheus adds, and what its library says of a process."""


@pytest.fixture(scope="session")
def promtool() -> str:
    """Prometheus' tool, brought here if that can be done."""
    fetch = [ROOT / ".ci" / "promtool"]
    found = subprocess.run(fetch, capture_output=True, text=True, timeout=5 * PATIENCE_S)
    if found.returncode != 0:
        pytest.skip(f"promtool is missing and cannot be fetched here: {found.stderr}")
    return found.stdout.strip()


def check(promtool: str, *arguments: str | Path, text: str | None = None) -> str:
    command = [promtool, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return found


def asked() -> list[str]:
    """Every expression of the dashboard, with the variables as Grafana would put them in."""
    found = [target["expr"] for panel in panels() for target in panel.get("targets", [])]
    return [text.replace("$__rate_interval", "1m").replace("$", "") for text in found]


def test_the_rules_are_sound_and_raise_what_they_should(promtool: str) -> None:
    assert "SUCCESS: 17 rules found" in check(promtool, "check", "rules", FOLDER / "alerts.yml")
    check(promtool, "test", "rules", FOLDER / "alerts_test.yml")


def test_each_alert_is_tried_on_what_is_well() -> None:
    alerts = re.findall(r"alert: (\w+)", (FOLDER / "alerts.yml").read_text())
    tried = re.findall(r"alertname: (\w+), exp_alerts: \[\]", (FOLDER / "alerts_test.yml").read_text())
    assert sorted(set(tried)) == sorted(alerts)


def test_the_dashboard_asks_what_prometheus_understands(promtool: str, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(asked())]
    # Every JSON document is one of YAML.
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in check(promtool, "check", "rules", tmp_path / "rules.yml")


def test_rules_and_dashboard_ask_for_metrics_that_there_are() -> None:
    listed = set(re.findall(r"^\| `(\w+)` ", metrics_table(), re.MULTILINE))
    text = "\n".join([*asked(), (FOLDER / "alerts.yml").read_text()])
    names = set(re.findall(r"\b(?:gapless|process|python)_\w+", text)) | {"up"}
    assert {re.sub("_bucket$", "", name) for name in names} - listed - STRANGE == set()


def test_the_dashboard_fits_together() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_what_a_service_tells_is_as_prometheus_wants_it(promtool: str, server_url: str) -> None:
    check(promtool, "check", "metrics", text=httpx.get(f"{server_url}/metrics", timeout=PATIENCE_S).text)
