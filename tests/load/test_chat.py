"""The chat run in a short form: followers fold what they get while others change it and parts are killed."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from load.children import CHECKOUT


@pytest.mark.drill
def test_every_follower_has_the_view_of_the_service_at_the_end(tmp_path: Path) -> None:
    chance, file = random.Random(5), tmp_path / "chat.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        for number in range(6000):
            message = {
                "channel": f"chat.room{chance.randrange(6)}",
                "key": f"user{number % 7}",
                "data": number,
            }
            lines.write(json.dumps(message) + "\n")
    command = [sys.executable, "-m", "load.chat", str(file), "--readers", "20", "--seed", "5"]
    answer = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    said = answer.stdout
    assert answer.returncode == 0, said + answer.stderr
    assert "seq dense, 0 before their targets, 0 folded wrongly, 0 views wrong" in said
    found = re.search(r"([\d,]+) of them with a target, ([\d,]+) originals shown", said)
    assert found is not None
    assert min(int(count.replace(",", "")) for count in found.groups()) > 300
