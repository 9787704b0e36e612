"""Starts Spark sessions for the jobs: on this machine, on a cluster, or through Spark Connect."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gapless_spark import java
from gapless_spark._needs import check_spark
from gapless_spark.errors import BadOption, GaplessSparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_BRIEF_JAVA = "-XX:InitialRAMPercentage=50 -XX:NewRatio=1"
"""The driver's heap has its full size from the start, half of it for new objects, so that a short run ends
before much garbage is collected."""
_SHARING = 19
"""From this version on Java writes an archive of its loaded classes automatically, which halves the time of
the next start. Older versions need an option for it."""
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


class ClusterUnreachable(GaplessSparkError):  # noqa: N818
    """Spark did not start, or the cluster does not answer."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of a session. `master` is Spark's, or `sc://host:port` for Spark Connect. `conf` are
    settings of Spark, which override all others.

    `quick`: start fast and compile little, for jobs with little work in Java. `archive`: keep the loaded
    classes of the first run for later ones, even if Java does not do that automatically; the first run takes
    longer. `brief`: collect little garbage, for short jobs.
    """

    name: str = "gapless"
    master: str = "local[*]"
    driver_memory: str | None = None
    executor_memory: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    quick: bool = False
    archive: bool = False
    brief: bool = False

    @property
    def here(self) -> bool:
        """Whether all of Spark runs on this machine, started by this process."""
        return self.local and "PYSPARK_GATEWAY_PORT" not in os.environ

    @property
    def connect(self) -> bool:
        return self.master.startswith("sc://")

    @property
    def local(self) -> bool:
        return self.master == "local" or self.master.startswith("local[")


def cores(master: str) -> int:
    """How many tasks can run at once: one for each core of this machine, or 8 on a cluster."""
    inside = master.partition("[")[2].rstrip("]").partition(",")[0]
    if inside.isdigit():
        return int(inside)
    if master == "local":
        return 1
    return os.cpu_count() or 2 if inside == "*" else 8


def conf_pairs(texts: list[str] | None) -> tuple[tuple[str, str], ...]:
    """The keys and values of `key=value` texts of `--conf`. Raises `BadOption`."""
    pairs = [text.partition("=") for text in texts or ()]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise BadOption(f"--conf: {key!r} is not key=value, such as spark.cores.max=4")
    return tuple((key, value) for key, _, value in pairs)


def start(options: SessionOptions, say: Callable[[str], None] = lambda _: None) -> SparkSession:
    """Start a session, or use that of spark-submit. `say` gets texts about what is used.

    Raises `NoJava`, `BadOption` and `ClusterUnreachable`. The caller must stop the session.
    """
    check_spark()
    if options.connect:
        say(f"Spark Connect at {options.master}")
        return _connect(options)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    java_options = "" if submitted else _environment(options, say)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(options.name)
    if not submitted:
        builder = builder.master(options.master)
    # spark-submit sets the driver's address. Remote executors could not reach a driver on loopback.
    for key, value in _settings(options, java_options, options.local and not submitted).items():
        builder = builder.config(key, value)
    began_at = time.monotonic()
    with _undisturbed():
        session = _made(builder.getOrCreate, options)
    say(f"session ready after {time.monotonic() - began_at:.1f} s")
    if not str(session.sparkContext.master).startswith("local"):
        session.sparkContext.addPyFile(str(packed()))
    return session


def packed() -> Path:
    """This package as a zip file, for executors that do not have it. The file exists until this process ends,
    because Spark's driver serves it."""
    home = Path(__file__).parent
    archive = java.temporary_folder("gapless-spark-") / "gapless_spark.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(home.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                file.write(path, path.relative_to(home.parent))
    return archive


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay an interrupt in the block until its end. A Java that loses its parent during its start would not
    detect that, and never end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        handler = before[number]
        try:
            if callable(handler):
                handler(number, frame)
            elif handler == signal.SIG_DFL:
                late.append(number)
        except KeyboardInterrupt:
            late.append(number)

    before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            # Spark installs its own handler of SIGINT, which cancels its jobs. That one stays.
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)
    if late and before[late[0]] == signal.SIG_DFL:
        signal.raise_signal(late[0])
    if late:
        raise KeyboardInterrupt


def _connect(options: SessionOptions) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(options.name).remote(options.master)
    for key, value in options.conf:
        builder = builder.config(key, value)

    def make() -> SparkSession:
        session = builder.getOrCreate()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        session.addArtifact(str(packed()), pyfile=True)
        return session

    return _made(make, options)


def _made(make: Callable[[], SparkSession], options: SessionOptions) -> SparkSession:
    try:
        return make()
    except ImportError as error:
        raise BadOption(f"--master {options.master}: {error}. Install pyspark[connect]") from None
    except Exception as error:
        text = " ".join(str(error).split())[:400]
        raise ClusterUnreachable(
            f"no Spark session on {options.master}: {text}. Check that the address is right, that a Spark 4.3"
            " runs there and that it can be reached from here"
        ) from error


def _environment(options: SessionOptions, say: Callable[[str], None]) -> str:
    """Set the environment of Spark's start scripts and local Python workers. Returns the options for Java."""
    found = java.find()
    say(f"Spark on {options.master} with {found}")
    os.environ["JAVA_HOME"] = str(found.home)
    # A folder in the working directory with the name of a package must not hide that package from a worker.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    if options.local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        home = str(Path(__file__).parent.parent)
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([home, *filter(None, known)]))
    return _java_options(options, found)


def _java_options(options: SessionOptions, found: java.Java) -> str:
    quiet = f"-Dlog4j2.configurationFile=file:{Path(__file__).parent / 'log4j2.properties'}"
    wanted = [quiet, "-Xlog:disable", "-Xlog:all=error:stderr"]
    if options.quick:
        wanted.append(_QUICK_JAVA)
    if options.brief:
        wanted.append(_BRIEF_JAVA)
    if found.version >= _SHARING:
        from pyspark import __version__

        archive = found.home / f"spark-{__version__}.jsa"
        wanted += ["-XX:+AutoCreateSharedArchive", f"-XX:SharedArchiveFile={archive}"]
    elif options.archive:
        wanted.append(java.shared_classes(found, options.name))
    return " ".join(wanted)


def _settings(options: SessionOptions, java_options: str, local: bool) -> dict[str, str]:
    settings = dict(_ALWAYS)
    if local:
        settings |= _LOCAL
    if java_options:
        settings["spark.driver.extraJavaOptions"] = java_options
    if options.driver_memory:
        settings["spark.driver.memory"] = options.driver_memory
    if options.executor_memory:
        settings["spark.executor.memory"] = options.executor_memory
    settings.update(options.conf)
    return settings
