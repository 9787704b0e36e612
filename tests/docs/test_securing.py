"""docs/howto/securing.md, from its first block to its last."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trustme

from load.children import free_port
from load.nginx import nginx
from load.wire import Target
from tests.docs.follow import Place
from tests.docs.production import SERVER
from tests.patience import PATIENCE_S, wait_until

PAGE = "docs/howto/securing.md"


class Machine(Place):
    """A machine with an embedded Postgres, whose home directory is the folder."""

    def _environment(self) -> dict[str, str]:
        return {**Place._environment(self), "HOME": str(self.folder)}

    @staticmethod
    def _is_ready(answer: httpx.Response) -> bool:
        """Strangers are told yes or no only."""
        return bool(answer.json() == {"status": "ready"})


@contextmanager
def ending(place: Place) -> Iterator[None]:
    """End its servers afterwards."""
    try:
        yield
    finally:
        place.end()


@pytest.mark.drill
def test_the_page_leads_from_the_first_key_to_a_stream_with_a_ticket(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    unused: Any = SimpleNamespace(port=5432)
    place = Machine(folder, unused, free_port(), free_port(), installing=False)
    url = f"http://127.0.0.1:{place.port}"
    authority, certificate = trustme.CA(), tmp_path / "events.pem"
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert(SERVER).private_key_and_cert_chain_pem.write_to_path(certificate)
    with nginx(Target("127.0.0.1", place.port), certificate) as front, ending(place):
        # Has curl reach nginx by its name.
        (folder / ".curlrc").write_text(
            f'cacert = "{tmp_path}/ca.pem"\nconnect-to = "{SERVER}:443:{front.host}:{front.port}"\n'
        )
        place.follow(PAGE)
        for name in ("ops.key", "chat.key", "ann.token", "jwt.json"):
            assert (folder / name).stat().st_mode & 0o077 == 0
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:

            def ask(file: str, path: str) -> httpx.Response:
                credential = (folder / file).read_text().strip()
                return client.get(path, headers={"authorization": f"Bearer {credential}"})

            wait_until(lambda: ask("chat.key", "/v1/whoami").status_code == 401)
            assert ask("ops.key", "/v1/whoami").json()["operator"]
            history = ask("ann.token", "/v1/channels/chat.lobby/messages").json()["messages"]
            assert [(one["sender"], one["data"]) for one in history] == [("chat", {"text": "hello"})]
            keys = ask("ops.key", "/v1/keys").json()["keys"]
            assert [key["name"] for key in keys] == ["ops"], json.dumps(keys)
