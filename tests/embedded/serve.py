"""A supervisor as `gapless serve` has it, over the worker beside this file. Arguments: home, port, count."""

import os
import sys
from pathlib import Path

from app.supervisor import Endpoints, SupervisorConfig, run


def prepare(endpoints: Endpoints) -> None:
    print("prepare", endpoints.owner_url, endpoints.redis_url, flush=True)


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
            stop_timeout_s=1.0,
            ready_timeout_s=10.0,
        ),
        prepare,
    )
)
