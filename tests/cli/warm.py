"""Commands without the half second in which each imports its modules: forked off a process with them.

What runs is what `launch.command("app.cli")` runs, in a process, a folder and an environment of its own. The
program of the process that forks is this file; `Warm` is its other side.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = (
    *("app.cli.__main__", "app.process.settings", "gapless", "gapless_cli.connection", "gapless_cli.output"),
    *("gapless_cli.tables", "app.cli.importing.importer", "rich.console", "typer._adapters"),
)
_REQUEST_BYTES = 1 << 20
_STREAMS = 3


class Warm:
    """Starts commands in a process of its own. Ended with `close`."""

    def __init__(self) -> None:
        self._mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._mine, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def run(
        self,
        arguments: tuple[str, ...],
        environment: dict[str, str],
        folder: Path,
        text: str,
        patience_s: float,
    ) -> tuple[int, str, str]:
        """Run a command to its end. Gives its exit code, output and errors."""
        from load.children import kill, tree

        mine, theirs = socket.socketpair()
        (stdin, into), (out, stdout), (err, stderr) = os.pipe(), os.pipe(), os.pipe()
        request = json.dumps([arguments, environment, str(folder)]).encode()
        with theirs:
            socket.send_fds(self._mine, [request], [stdin, stdout, stderr, theirs.fileno()])
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        with mine, ThreadPoolExecutor(_STREAMS) as threads:
            said = [threads.submit(_read, fd) for fd in (out, err)]
            threads.submit(_write, into, text)
            mine.settimeout(patience_s)
            with mine.makefile("r") as told:
                pid = int(told.readline())
                try:
                    code = told.readline()
                except TimeoutError:
                    kill(tree(pid))
                    texts = [each.result() for each in said]
                    raise AssertionError(f"killed after {patience_s:g} s: {arguments} {texts}") from None
        return int(code), said[0].result(), said[1].result()

    def close(self) -> None:
        """Once no command runs any more."""
        self._mine.close()
        self._process.kill()
        self._process.wait()


def _read(fd: int) -> str:
    with open(fd) as pipe:
        return pipe.read()


def _write(fd: int, text: str) -> None:
    try:
        with open(fd, "w") as pipe:
            pipe.write(text)
    except BrokenPipeError:
        pass  # It reads no input.


# --- in the process that forks


def _serve(requests: socket.socket) -> list[str] | None:
    """Fork a command for each request. Returns its arguments in its own process, None at the end."""
    waiting = 0
    while True:
        request, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, _STREAMS + 1)
        while waiting and os.waitpid(-1, os.WNOHANG)[0]:
            waiting -= 1
        if not request:
            return None
        if os.fork() == 0:
            requests.close()
            arguments, environment, folder = json.loads(request)
            pid = os.fork()
            if pid == 0:
                _become(fds, environment, folder)
                return ["app.cli", *arguments]
            for fd in fds[:_STREAMS]:
                os.close(fd)
            _tell(fds[_STREAMS], pid)
        waiting += 1
        for fd in fds:
            os.close(fd)


def _become(fds: list[int], environment: dict[str, str], folder: str) -> None:
    for fd, standard in zip(fds, range(_STREAMS), strict=False):
        os.dup2(fd, standard)
    for fd in fds:
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


def _tell(answer: int, pid: int) -> None:
    """The id of a command, and its exit code once it has ended."""
    os.write(answer, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(answer, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _main() -> None:
    launch = runpy.run_path(str(ROOT / "app" / "launch.py"))
    sys.meta_path.insert(0, launch["OwnPackages"])
    for name in PRELOADED:
        importlib.import_module(name)
    del sys.modules["app.cli.__main__"]  # It runs in each command.
    gc.freeze()  # Else each command looks at all that was imported, and copies it, when it ends.
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        launch["main"](arguments)


if __name__ == "__main__":
    _main()
