"""Parses the places of files in options: a path, an address with `file:`, or one with another scheme.

A text that begins like an address is not taken for a local path. Otherwise `s3://bucket/x` would be written
to a local folder of that name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from gapless_spark.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_FILE = re.compile(r"file:(?://(?P<host>[^/]*))?(?P<path>/.*)", re.IGNORECASE | re.DOTALL)


def scheme_of(place: str) -> str | None:
    """The scheme of an address, in lower case; None for a path."""
    if place.lower().startswith("file:"):
        return "file"
    found = _ADDRESS.match(place)
    return found[1].lower() if found else None


def local(place: str, option: str) -> Path:
    """An absolute path on this machine. Raises `BadOption` for an address with a scheme other than `file`,
    and for an invalid path."""
    scheme = scheme_of(place)
    if scheme == "file":
        return _of_file(place, option)
    if scheme is not None:
        raise BadOption(
            f"{option}: {scheme}: is not served, only folders of this machine, mounted ones too."
            f" Give a path, or ./{place} if that is the folder's name"
        )
    return _checked(place, option)


def local_or_address(place: str, option: str) -> str:
    """An absolute path, or an address with another scheme, which Spark must serve (`check_address`)."""
    return place if scheme_of(place) not in (None, "file") else str(local(place, option))


def check_address(spark: SparkSession, place: str, option: str) -> None:
    """Raise `BadOption` if Spark does not serve the scheme of `place`. Spark Connect cannot tell this before
    the work, so nothing is checked there."""
    scheme = scheme_of(place)
    if scheme in (None, "file") or not hasattr(spark, "_jvm"):
        return
    from pyspark.errors import PySparkException

    jvm = spark._jvm
    assert jvm is not None
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(
            scheme, spark.sparkContext._jsc.hadoopConfiguration()
        )
    except (PySparkException, _java_error()):
        raise BadOption(
            f"{option}: {scheme}: is not served: this Spark has no file system of that name. Give a path, or"
            " add the package that serves it with --conf spark.jars.packages=…"
        ) from None


def _java_error() -> type[Exception]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]

    error: type[Exception] = Py4JError
    return error


def _of_file(place: str, option: str) -> Path:
    found = _FILE.fullmatch(place)
    if found is None or found["host"] not in (None, "", "localhost"):
        raise BadOption(
            f"{option}: {place} names no folder of this machine; give a path, or file:///data/export"
        )
    if {"?", "#"} & set(place):
        raise BadOption(f"{option}: {place} has a ? or # in it; give the path, without file:")
    return _checked(os.fsdecode(unquote_to_bytes(os.fsencode(found["path"]))), option)


def _checked(path: str, option: str) -> Path:
    if not path or "\0" in path:
        raise BadOption(f"{option}: {'is empty' if not path else 'holds a zero character'}; give a path")
    return Path(path).absolute()
