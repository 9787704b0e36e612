"""The application for any ASGI server: `uvicorn app.main:app`, `fastapi run app/main.py`.

`gapless serve` is what we recommend; docs/servers.md says what it adds.
"""

from app.process.application import GaplessApp
from app.process.settings import Settings

app = GaplessApp(Settings(), stands_alone=True)
