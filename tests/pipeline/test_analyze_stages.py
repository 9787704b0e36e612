"""What a terminal shows of stages that run side by side."""

from __future__ import annotations

import io

import pytest
from gapless_spark.analyze.stages import Stages
from rich.console import Console


def test_stages_at_once_have_a_line_each_when_they_end() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    stages = Stages(console)
    with stages.stage("One") as one:
        with stages.stage("Two") as two:
            two.text = "second"
        one.text = "first"
    with pytest.raises(KeyError), stages.stage("Three"):
        raise KeyError
    shown = out.getvalue()
    assert shown.index("second") < shown.index("first")
    assert "Three  " not in shown
    # The line that moves is gone, so that others can be shown.
    with console.status("free"):
        pass
