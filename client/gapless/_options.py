"""Options that methods pass on to the parts that read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

Options = TypeVar("Options", bound=Mapping[str, Any])


def known(method: str, form: Any, options: Options, *more: str) -> Options:
    """The options as they are. Raises `TypeError` for one that the method does not take: `form` is the
    `TypedDict` of its options, `more` names others."""
    names = [*form.__annotations__, *more]
    for name in options:
        if name not in names:
            raise TypeError(
                f"{method}() got an unexpected keyword argument {name!r}: its options are {', '.join(names)}"
            )
    return options
