"""A supervisor as `gapless serve` has it, over the worker beside this file. Arguments: home, port, count.

Its limits are `PATIENCE_S` seconds; `STOP_S`, if given, is that of a worker's stop, and `LISTEN_S` that of a
taken port.
"""

import os
import sys
from pathlib import Path

from app.supervisor import Endpoints, SupervisorConfig, listener, pool, run


async def prepare(endpoints: Endpoints) -> None:
    print("prepare", endpoints.owner_url, endpoints.redis_url, flush=True)


patience_s = float(os.environ["PATIENCE_S"])
listener._PATIENCE_S = float(os.environ.get("LISTEN_S", patience_s))
pool.LONG_LIFE_S = patience_s
worker = str(Path(__file__).with_name("worker.py"))
sys.exit(
    run(
        SupervisorConfig(
            home=Path(sys.argv[1]),
            port=int(sys.argv[2]),
            workers=int(sys.argv[3]),
            database_url=os.environ.get("DATABASE"),
            redis_url=os.environ.get("REDIS"),
            worker_argv=(sys.executable, worker),
            stop_timeout_s=float(os.environ.get("STOP_S", patience_s)),
            ready_timeout_s=patience_s,
        ),
        prepare,
    )
)
