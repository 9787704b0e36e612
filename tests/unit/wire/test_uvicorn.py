"""What our HTTP protocol builds on: read again, and mend it, before a digest here is changed."""

from __future__ import annotations

import hashlib
import inspect
from types import ModuleType

import pytest
import uvicorn.protocols.http.flow_control
import uvicorn.protocols.http.httptools_impl
import uvicorn.server

READ = {
    uvicorn.protocols.http.httptools_impl: "1d4e1c579df41684",
    uvicorn.protocols.http.flow_control: "d39d16560df512f3",
    uvicorn.server: "c1be9d133467a42a",
}


@pytest.mark.parametrize("module", READ, ids=lambda module: module.__name__)
def test_the_inside_of_uvicorn_is_the_one_that_was_read(module: ModuleType) -> None:
    assert hashlib.sha256(inspect.getsource(module).encode()).hexdigest()[:16] == READ[module]
