"""Where the lines come from: a file, gzipped or not, or stdin kept in a file of its own meanwhile."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gapless_cli.failures import Failure, usage

MAX_LINE_BYTES = 8 * 1024 * 1024
_GZIP = b"\x1f\x8b"
_CHUNK = 1024 * 1024
_READ = 128 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """`end` is where the next line begins, in uncompressed bytes. `raw` is None for one that is too long."""

    number: int
    raw: bytes | None
    end: int


class Source:
    """One input. It is opened once and must stay as it is: what changes while it is read is refused."""

    def __init__(self, name: str, file: io.FileIO) -> None:
        self.name = name
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self._facts = self._stat()
        self.digest = self._digest()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    @property
    def position(self) -> int:
        """How far the file was read, in bytes of the file: for a progress bar."""
        return min(self.size, os.lseek(self._file.fileno(), 0, os.SEEK_CUR))

    def lines(self, offset: int = 0, number: int = 0) -> Iterator[Line]:
        """The lines from `offset` on, where `number` lines were read already. Raises `Failure`."""
        try:
            with self._opened() as stream:
                _skip(stream, offset)
                yield from self._lines(stream, offset, number)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise Failure(f"{self.name}: the gzip data is damaged or cut off: {error}") from error
        except OSError as error:
            raise Failure(f"{self.name}: cannot be read: {error}") from error

    def _lines(self, stream: BinaryIO, offset: int, number: int) -> Iterator[Line]:
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            offset += len(line)
            whole = len(line) <= MAX_LINE_BYTES
            while not line.endswith(b"\n") and not whole and (line := stream.readline(_CHUNK)):
                offset += len(line)
            yield Line(number, line if whole else None, offset)
        self.require_unchanged()

    def require_unchanged(self) -> None:
        """Raises `Failure` when the file is not the one whose digest was taken."""
        if self._stat() != self._facts:
            raise Failure(f"{self.name}: was changed while it was imported; import it when it is finished")

    def _opened(self) -> io.BufferedReader:
        self._file.seek(0)
        raw: io.BufferedReader = io.BufferedReader(io.FileIO(os.dup(self._file.fileno())), _READ)
        if raw.peek(2)[:2] == _GZIP:
            return io.BufferedReader(_Unzipped(raw), _CHUNK)
        return raw

    def _stat(self) -> tuple[int, int]:
        facts = os.fstat(self._file.fileno())
        return facts.st_size, facts.st_mtime_ns

    def _digest(self) -> str:
        self._file.seek(0)
        digest = hashlib.file_digest(self._file, "sha256")
        return digest.hexdigest()


class _Unzipped(gzip.GzipFile):
    """A gzip file that closes what it reads from."""

    def __init__(self, raw: io.BufferedReader) -> None:
        super().__init__(fileobj=raw, mode="rb")
        self._raw_file = raw

    def close(self) -> None:
        super().close()
        self._raw_file.close()


def open_source(name: str, scratch: Path) -> Source:
    """The input of that name; `-` is stdin, kept in `scratch` until it is done with. Raises `Failure`."""
    try:
        return Source("stdin", _spooled(scratch)) if name == "-" else Source(name, _opened(name))
    except OSError as error:
        raise usage(f"cannot read {name}: {error.strerror or error}") from error


def _opened(name: str) -> io.FileIO:
    path = Path(name)
    if path.exists() and not path.is_file():
        raise usage(f"{name} is no file (a pipe is read with -)")
    return io.FileIO(path)


def _spooled(scratch: Path) -> io.FileIO:
    """All of stdin in a nameless file: only what is known to its end can be resumed or told as done."""
    file = tempfile.TemporaryFile(dir=scratch, buffering=0)  # noqa: SIM115 (lives as long as its source)
    shutil.copyfileobj(sys.stdin.buffer, file, _CHUNK)
    return file


def _skip(stream: BinaryIO, offset: int) -> None:
    while offset > 0:
        chunk = stream.read(min(_CHUNK, offset))
        if not chunk:
            raise EOFError("it is shorter than what was imported of it")
        offset -= len(chunk)
