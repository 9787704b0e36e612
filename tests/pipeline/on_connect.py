"""What a user's own job does through Spark Connect: read, work, publish, and write the same once more.

`python on_connect.py sc://HOST:PORT URL`
"""

from __future__ import annotations

import sys

import gapless_spark
from gapless_spark.session import SessionOptions, start
from pyspark.sql import functions


def main(master: str, url: str) -> None:
    spark = start(SessionOptions("on-connect", master))
    gapless_spark.register(spark)
    messages = spark.read.format("gapless").options(url=url, channels="in.>").load()
    tenfold = (messages.data.cast("int") * 10).cast("string")
    out = messages.select(functions.lit("out").alias("channel"), tenfold.alias("data"))
    for _ in range(2):
        out.write.format("gapless").options(url=url, writeId="tenfold").mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
