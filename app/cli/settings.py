"""The settings of the service, as its commands read them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gapless_cli.failures import usage

if TYPE_CHECKING:
    from app.process.settings import Settings


def settings_from(**flags: object) -> Settings:
    """The settings, overridden by the given flags. Raises `Failure` with a line for each bad setting."""
    import tomllib

    from pydantic import ValidationError

    from app.process.settings import Settings

    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        lines = [
            f"GAPLESS_{'.'.join(map(str, e['loc'])).upper()}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        ]
        raise usage("; ".join(lines)) from None
    except (tomllib.TOMLDecodeError, OSError) as error:
        file = os.environ.get("GAPLESS_CONFIG", "gapless.toml")
        raise usage(f"cannot read the settings in {file}: {error}") from None
