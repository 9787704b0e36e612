"""What commands read of a message that is to be published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from gapless_cli.failures import usage


@dataclass(frozen=True, slots=True)
class Settings:
    """The fields of each message beside its data. `ttl` is in seconds."""

    type: str | None
    key: str | None
    headers: Mapping[str, str] | None
    sender: str | None
    ttl: float | None
    ephemeral: bool

    @property
    def options(self) -> dict[str, Any]:
        """Those of every publish, by the client's names for them."""
        return {"type": self.type, "key": self.key, "headers": self.headers, "sender": self.sender}


def parse(text: str, where: str, advice: str = "") -> Any:
    """One JSON value, without the constants that only Python knows. Raises `Failure`."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise usage(f"{where} is nested too deep") from None
    except ValueError as error:
        raise usage(f"{where} is not JSON ({error}){advice}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
