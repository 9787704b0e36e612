"""The generated tables of the documentation.

python -m tests.docs.tables        writes them anew

"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import REGISTRY, Metric
from typer.main import get_command

import app
import cache
import db
import subscriptions
from app.api.openapi import Schemas
from app.api.route import Returns
from app.api.table import ROUTES
from app.cli.__main__ import app as cli
from app.launch import CHECKOUT
from app.metrics.measuring import as_families
from app.process.settings import Settings
from db.measures import Measure
from subscriptions.domain.model import MAX_ID
from tests.support import ROOT


def settings_table() -> str:
    """Every field of `Settings` with its default."""
    lines = ["| variable | default | |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        lines.append(f"| `GAPLESS_{name.upper()}` | {_default(field.default)} | {field.description} |")
    return "\n".join(lines) + "\n"


def _default(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, Path):
        return f"`{value.relative_to(CHECKOUT)}` in the checkout"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def metrics_table() -> str:
    """Every metric that the service's modules register, with its labels and its own help text."""
    for package in (app, cache, db, subscriptions):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    lines = ["| metric | kind | labels | |", "|---|---|---|---|"]
    collectors = {id(c): c for c in REGISTRY._names_to_collectors.values()}
    found = {
        m.name: (m, getattr(c, "_labelnames", ()))
        for c in collectors.values()
        for m in c.collect()
        if m.name.startswith("gapless_")
    }
    # These are measured while a service runs.
    for family in as_families([Measure("", "", 0, None, None, 0, 0, 0, 0, 0, 0)], 0, 0.0):
        metric = Metric(family.name, family.text, family.kind)
        found[family.name] = metric, tuple(family.samples[0].labels)
    for name, (metric, names) in sorted(found.items()):
        full = f"{name}_total" if metric.type == "counter" else name
        labels = ", ".join(f"`{label}`" for label in names)
        lines.append(f"| `{full}` | {metric.type} | {labels} | {metric.documentation} |")
    return "\n".join(lines) + "\n"


def commands_table() -> str:
    """Every command with its arguments and flags."""
    lines = ["| command | does | flags |", "|---|---|---|", *_commands("./gapless", get_command(cli))]
    return "\n".join(lines) + "\n"


def _commands(path: str, group: Any) -> Iterator[str]:
    for name, command in group.commands.items():
        arguments = [_argument(p) for p in command.params if p.param_type_name == "argument"]
        flags = [p.opts[0] for p in command.params if p.param_type_name == "option"]
        does = " ".join(command.help.split("\n\n")[0].split())
        listed = ", ".join(f"`{flag}`" for flag in flags)
        yield f"| `{' '.join([path, name, *arguments])}` | {does} | {listed} |".replace("  ", " ")
        if hasattr(command, "commands"):
            yield from _commands(f"{path} {name}", command)


def _argument(parameter: Any) -> str:
    name = str(parameter.name).upper()
    shown = name + ("…" if parameter.nargs == -1 else "")
    return shown if parameter.required else f"[{shown}]"


def job_table(job: str) -> str:
    """Every flag of a job of the Spark package, which runs without its Spark here."""
    if (package := str(ROOT / "pipeline")) not in sys.path:
        sys.path.append(package)
    from gapless_spark.cli import make

    lines = ["| flag | default | |", "|---|---|---|"]
    group: Any = get_command(make())
    for flag in group.commands[job].params:
        text = " ".join(flag.help.split()).replace("|", "\\|")
        default = "" if flag.default in (None, False) else f"`{flag.default}`"
        lines.append(f"| `{flag.opts[0]}` | {default} | {text} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def routes_table() -> str:
    """Every route of the table with its parameters, its body and its answers."""
    lines = ["| route | does | parameters | body | answers |", "|---|---|---|---|---|"]
    schemas = Schemas()
    for route in ROUTES:
        headers = [f"`{header.name}`" for header in route.headers]
        members = [] if route.query is None else schemas.members(route.query)
        given = ", ".join([*(_parameter(name, schema) for name, schema, _ in members), *headers])
        body = "" if route.body is None else _form(schemas.of(route.body.forms["application/json"]))
        answers = ", ".join(
            f"{status} {_answer(answer, schemas)}".strip() for status, answer in route.returns.items()
        )
        row = f"| `{route.method} {route.path}` | {route.text[0]} | {given} | {body} | {answers} |"
        lines.append(row.replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def _parameter(name: str, schema: dict[str, Any]) -> str:
    """With what it may be, where that is a number or one of a few words, and its default."""
    said = []
    if "maximum" in schema and schema["maximum"] < MAX_ID:
        said.append(f"{schema['minimum']} to {schema['maximum']}")
    if "enum" in schema:
        said.append(" or ".join(f"`{word}`" for word in schema["enum"]))
    if schema.get("default", "") not in ("", [], False, 0):
        said.append(f"default {schema['default']}")
    return f"`{name}`" + (f" ({'; '.join(said)})" if said else "")


def _answer(answer: Returns, schemas: Schemas) -> str:
    """Its structs where it is JSON, else its media types."""
    if (form := answer.forms.get("application/json")) is not None:
        return _form(schemas.of(form))
    return " or ".join(f"`{media_type}`" for media_type in answer.forms)


def _form(schema: dict[str, Any]) -> str:
    """The structs of a schema by name."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(map(_form, schema["anyOf"]))
    return f"array of {_form(schema['items'])}" if "items" in schema else ""


OPERATIONS: Final = "docs/operations.md"
SPARK: Final = "docs/spark.md"
TABLES: Final[dict[str, tuple[str, Callable[[], str]]]] = {
    "settings": (OPERATIONS, settings_table),
    "metrics": (OPERATIONS, metrics_table),
    "routes": ("docs/reference.md", routes_table),
    "commands": ("docs/reference.md", commands_table),
    "export": (SPARK, partial(job_table, "export")),
    "analyze": (SPARK, partial(job_table, "analyze")),
}


def main() -> None:
    """Replace each marked section by its table."""
    for title, (name, table) in TABLES.items():
        page = ROOT / name
        before, mark, rest = re.split(rf"(<!-- {title}:[^>]*-->\n)", page.read_text())
        page.write_text(before + mark + table() + rest[rest.index("<!-- end -->") :])


if __name__ == "__main__":
    main()
