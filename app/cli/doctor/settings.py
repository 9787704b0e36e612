"""The settings in effect, and where each comes from."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from app.cli.doctor.check import Check, ok, warn
from app.process.settings import Settings

PREFIX = "GAPLESS_"
OTHERS = frozenset(
    {
        "GAPLESS_CONFIG",
        "GAPLESS_URL",
        "GAPLESS_TOKEN",
        "GAPLESS_TOKEN_FILE",
        "GAPLESS_TRACEBACK",
        "GAPLESS_PUSH_SECRET",
        "GAPLESS_SUBSCRIPTION",
        "GAPLESS_ATTEMPT",
        "GAPLESS_MESSAGE_ID",
        "GAPLESS_MESSAGE_CHANNEL",
        "GAPLESS_MESSAGE_TYPE",
        "GAPLESS_MESSAGE_KEY",
        "GAPLESS_CI_BOUNDED",
        "GAPLESS_FAILPOINTS",
        "GAPLESS_LISTEN_FD",
        "GAPLESS_READY_FD",
        "GAPLESS_WORKER_INDEX",
        "GAPLESS_WORKER_RESTARTS",
    }
)
"""Variables that mean something and are no settings of the service."""

_SECRET = re.compile("key|secret|token|password", re.IGNORECASE)
_PASSWORD = re.compile(r"(?<=[:/])([^:/@]*:)[^@/]+(?=@)|(?<=[?&])(password=)[^&]*")


@dataclass(frozen=True, slots=True)
class Setting:
    """`value` as text, without secrets. `source`: `default`, the flag, the variable, or the file."""

    name: str
    value: str
    source: str


def in_effect(settings: Settings, flags: frozenset[str] = frozenset()) -> list[Setting]:
    """All settings by name; `flags` are those that were given on the command line."""
    file, in_file = _file()
    variables = {name.upper() for name in os.environ}
    found = []
    for name in type(settings).model_fields:
        variable = f"{PREFIX}{name.upper()}"
        source = "default"
        if name in flags:
            source = f"--{name.replace('_', '-')}"
        elif variable in variables:
            source = variable
        elif name in in_file:
            source = str(file)
        found.append(Setting(name, _shown(name, getattr(settings, name)), source))
    return found


def check_names(settings: Settings) -> Check:
    """A variable or key with a typing error would be ignored without a word."""
    known = {f"{PREFIX}{name.upper()}" for name in type(settings).model_fields}
    file, in_file = _file()
    if "GAPLESS_CONFIG" in os.environ and not file.is_file():
        return warn("settings", f"GAPLESS_CONFIG names {file}, which is not there", "correct or remove it")
    unknown = [name for name in sorted(os.environ) if name.upper().startswith(PREFIX)]
    unknown = [name for name in unknown if name.upper() not in known | OTHERS]
    unknown += [f"{name} in {file}" for name in in_file if f"{PREFIX}{name.upper()}" not in known]
    if not unknown:
        return ok("settings", f"{file} and variables" if in_file else "variables and defaults")
    near = [difflib.get_close_matches(name.split()[0].upper(), known, 1) for name in unknown]
    guess = [
        f"{name} (meant {match[0]}?)" if match else name for name, match in zip(unknown, near, strict=True)
    ]
    return warn("settings", f"not a setting, and ignored: {', '.join(guess)}", "correct or remove it")


def without_password(url: str) -> str:
    """A URL that can be shown."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", url)


def _shown(name: str, value: object) -> str:
    if value is None or value == ():
        return "-"
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return "***" if _SECRET.search(name) and text else without_password(text)


def _file() -> tuple[Path, dict[str, object]]:
    path = Path(os.environ.get("GAPLESS_CONFIG", "gapless.toml"))
    try:
        return path, tomllib.loads(path.read_text())
    except (OSError, ValueError):
        return path, {}
