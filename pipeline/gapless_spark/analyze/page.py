"""The page: one file with its style, its script and the plotting library. It loads nothing from elsewhere.

Names and texts of messages are untrusted. They are escaped where they are inserted (`text.py`, `markup.py`).
The page's content security policy allows only its own two scripts, and no connections.
"""

from __future__ import annotations

import base64
import errno
import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from gapless_spark.analyze.body import body
from gapless_spark.analyze.findings import Findings
from gapless_spark.analyze.plots import Plots
from gapless_spark.analyze.text import escaped
from gapless_spark.errors import BadOption

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script type="application/json" id="figures">{figures}</script>
{library}<script>{script}</script>
</body>
</html>
"""


def render(findings: Findings, title: str) -> str:
    """The whole page as HTML."""
    plots = Plots()
    inside = body(findings, title, plots)
    script = _asset("report.js")
    packed, allowed = library() if plots.figures else ("", [])
    scripts = " ".join(f"'sha256-{digest}'" for digest in [_digest(script), *allowed])
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return TEMPLATE.format(
        policy=policy,
        title=escaped(title, 200),
        style=_asset("report.css"),
        body=inside,
        figures=_json(plots.figures),
        library=packed,
        script=script,
    )


def write(path: Path, text: str) -> int:
    """Write the page atomically. Returns its length in bytes. Raises `BadOption` if it cannot be written."""
    data = text.encode()
    with _beside(path) as beside:
        beside.write_bytes(data)
        beside.replace(path)
    return len(data)


def check_place(path: Path) -> None:
    """Raise `BadOption` if a page cannot be written. Called before the work, so that it is not wasted."""
    with _beside(path) as beside:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        beside.touch()


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, removed after the block. An `OSError` becomes `BadOption`."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
    except OSError as error:
        raise BadOption(f"--report: {path} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _json(value: Any) -> str:
    """JSON that cannot end the HTML element around it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return re.sub("[<>&']", lambda found: f"\\u{ord(found[0]):04x}", text)


@cache
def library() -> tuple[str, list[str]]:
    """The element with plotly.js, compressed to a third, which the page's script unpacks; and the digests
    that the policy must allow for it."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped,unused-ignore]

    source = get_plotlyjs()
    packed = base64.b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode()
    return f'<script type="text/plain" id="plotly">{packed}</script>\n', [_digest(source)]


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files("gapless_spark.analyze").joinpath("assets", name).read_text(encoding="utf-8")
