"""A real Spark cluster on loopback: one standalone master and its workers, each in its own process."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from load.children import Child, free_port
from load.drill import temporary_home
from load.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster. `master` is its URL for `--master`; `home` has the logs and files."""

    master: str
    home: Path
    processes: tuple[Child, ...]


@contextmanager
def cluster(workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[Cluster]:
    """A cluster until the block ends. Raises RuntimeError if it does not start."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    listen = ["--host", "127.0.0.1", "--webui-port", "0"]
    with temporary_home("cluster") as home:
        started = [_start(home, "master", "Master", [*listen, "--port", str(port)])]
        try:
            _until(home / "master.log", r"I have been elected leader", 1, started)
            for number in range(workers):
                options = [*listen, "--cores", str(cores), "--memory", memory]
                options += ["--work-dir", str(home / f"work{number}"), url]
                started.append(_start(home, f"worker{number}", "Worker", options))
            _until(home / "master.log", "Registering worker ", workers, started)
            yield Cluster(url, home, tuple(started))
        finally:
            for child in reversed(started):
                child.stop()


@contextmanager
def connect_server(cores: int = 2) -> Iterator[str]:
    """The URL, for `--master`, of a Spark Connect server that runs until the block ends."""
    port = free_port()
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    conf = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    with temporary_home("connect") as home:
        conf |= {"spark.local.dir": str(home), "spark.sql.warehouse.dir": str(home / "warehouse")}
        words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        options = ["--master", f"local[{cores}]", "--class", server, *words, "spark-internal"]
        child = _start(home, "connect", None, options)
        try:
            _until(home / "connect.log", "Spark Connect server started", 1, [child])
            yield f"sc://127.0.0.1:{port}"
        finally:
            child.stop()


def _start(home: Path, name: str, program: str | None, options: list[str]) -> Child:
    """Start `program` of Spark's standalone cluster, or `spark-submit` if it is None."""
    import pyspark
    from gapless_spark import java

    jars = Path(pyspark.__file__).parent / "jars"
    command = [str(jars.parent / "bin" / "spark-submit"), *options]
    if program is not None:
        command = [str(java.find().home / "bin" / "java"), "-Xmx256m", "-cp", f"{jars}/*"]
        command += [f"org.apache.spark.deploy.{program.lower()}.{program}", *options]
    environment = {
        "JAVA_HOME": str(java.find().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_HOME": str(jars.parent),
        "PYTHONSAFEPATH": "1",
    }
    return Child(command, home / f"{name}.log", environment).start()


def _until(log: Path, pattern: str, times: int, started: list[Child]) -> None:
    def found() -> bool:
        if ended := next((child for child in started if child.code() is not None), None):
            raise RuntimeError(f"a part of the cluster ended:\n{ended.tail()}")
        return len(re.findall(pattern, log.read_text() if log.exists() else "")) >= times

    wait_until(found, f"{log.name} says {pattern}")
