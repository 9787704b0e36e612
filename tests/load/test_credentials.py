"""What a credential opened ends with it, over every face, in a short run."""

from __future__ import annotations

import pytest

from load.credentials import main


@pytest.mark.drill
def test_every_face_ends_with_its_credential() -> None:
    assert main([]) == 0
