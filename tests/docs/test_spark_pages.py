"""Every example of the Spark pages and of the notebook is run, page by page, each against an empty log.

Python runs in this process, with the run's session, a page's blocks one after the other in one namespace. SQL
runs as the owner; commands (`sh` with ./gapless) as they stand. Output that is shown is compared. The reader
and the publisher of the pages are logins with that role and nothing else.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest

from app import launch
from tests.docs.pages import Fence, fences, read
from tests.patience import PATIENCE_S
from tests.pipeline.conftest import Log, Loop, log, loop, plain_log, spark
from tests.pipeline.sinks import login
from tests.support import ROOT

__all__ = ["log", "loop", "plain_log", "spark"]  # fixtures

pytestmark = [pytest.mark.spark, pytest.mark.drill]
HOW_TO = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "howto").glob("spark-*.md"))
PAGES = ["docs/spark.md", *HOW_TO]
NOTEBOOK = "docs/howto/spark-notebook.ipynb"
READER = "postgresql://reader@db.example/gapless"
PUBLISHER = "postgresql://publisher@db.example/gapless"
FOLDER = "/data/"


def cells(name: str) -> list[Fence]:
    """The code of a notebook, cell by cell."""
    notebook: dict[str, Any] = json.loads(read(name))
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [Fence(name, n, "python", "".join(text), None, False) for n, text in enumerate(code, 1)]


class Page:
    """Runs the blocks of one page."""

    def __init__(self, log: Log, folder: Path, reader: str, publisher: str) -> None:
        self._log = log
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._places = {FOLDER: f"{folder}/", READER: reader, PUBLISHER: publisher}
        self.reader = reader

    def run(self, fence: Fence) -> str | None:
        """What a block prints; None: it is not for running, or says nothing."""
        if fence.skipped:
            return None
        text = self._placed(fence.text)
        match fence.language:
            case "sql":
                self._log.owner.execute(text)
            case "python":
                return self._python(fence, text)
            case "sh" if "./gapless" in text:
                return self._shell(fence, text)
        return None

    def expected(self, answer: str) -> str:
        return tidy(self._placed(answer))

    def _placed(self, text: str) -> str:
        for name, place in self._places.items():
            text = text.replace(name, place)
        return text

    def _python(self, fence: Fence, text: str) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), warnings.catch_warnings():
            # Spark's own, of a version of pandas that nothing here uses.
            warnings.simplefilter("ignore")
            exec(compile(text, str(fence), "exec"), self._names)
        return output.getvalue()

    def _shell(self, fence: Fence, text: str) -> str:
        environment = {**os.environ, "GAPLESS_DATABASE_URL": self.reader}
        gapless = shlex.join(launch.command("app.cli"))
        command = f'gapless() {{ {gapless} "$@"; }}\n{text.replace("./gapless", "gapless")}'
        done = subprocess.run(
            ["bash", "-ec", command],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE_S,
        )
        assert done.returncode == 0, f"{fence}: {done.stdout}{done.stderr}"
        return done.stdout


def tidy(output: str) -> str:
    """Without spaces at the ends of lines, which no page keeps."""
    return "\n".join(line.rstrip() for line in output.strip().splitlines())


@pytest.mark.parametrize(
    "name",
    ["docs/spark.md", *HOW_TO, NOTEBOOK],
)
def test_examples_do_what_the_page_says(
    name: str, log: Log, loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = [loop.run(login(log.database, role)) for role in ("reader", "publisher")]
    page = Page(log, tmp_path, *logins)
    if name == NOTEBOOK:
        monkeypatch.setenv("GAPLESS_DATABASE_URL", page.reader)
        log.owner.append("chat.lobby", ['{"text": "hello world"}', '{"text": "world"}'])
    ran = 0
    for fence in cells(name) if name == NOTEBOOK else fences(name):
        output = page.run(fence)
        if output is None:
            continue
        ran += 1
        if fence.answer is not None:
            assert tidy(output) == page.expected(fence.answer), fence
    assert ran


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = json.loads(read(NOTEBOOK))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == []
