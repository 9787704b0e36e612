"""What a user's own job does on a cluster: read the log, work on it, publish what came of it.

`python on_cluster.py MASTER READER_URL PUBLISHER_URL`; prints what it counted.
"""

from __future__ import annotations

import sys

import gapless_spark
from gapless_spark.session import SessionOptions, start
from pyspark.sql import functions


def main(master: str, url: str) -> None:
    spark = start(SessionOptions("on-cluster", master, executor_memory="512m"))
    gapless_spark.register(spark)
    messages = spark.read.format("gapless").options(url=url, channels="in.>", minPartitions=4).load()
    counts = messages.groupBy("channel").count()
    rows = counts.select(
        functions.lit("out").alias("channel"),
        "channel",
        functions.to_json(functions.struct("channel", "count")).alias("data"),
    )
    out = rows.select(functions.lit("out").alias("channel"), "data")
    out.write.format("gapless").options(url=url, writeId="counts").mode("append").save()
    # The same job again: it was written, and is not written twice.
    out.write.format("gapless").options(url=url, writeId="counts").mode("append").save()
    executors = spark.range(0, 4, 1, 4).rdd.map(host).distinct().count()
    print("read", messages.count(), "on", executors, "executors")
    spark.stop()


def host(_: object) -> str:
    import os

    return os.environ["SPARK_EXECUTOR_DIRS"]


if __name__ == "__main__":
    main(*sys.argv[1:])
