"""The pages for people, and the documents of the API."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from starlette.responses import FileResponse, HTMLResponse

from app import openapi
from app.asyncapi import ASYNCAPI
from app.program import CHECKOUT

_BROWSER_PAGE: Final = CHECKOUT / "docs" / "browser.html"
_FRONT: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Gapless</title>
<h1>Gapless</h1>
<p>Ordered, durable delivery for chat and events.</p>
<ul>
<li><a href="/docs">/docs</a>: every route, with forms to try them</li>
<li><a href="/docs/browser">/docs/browser</a>: a page that follows a channel</li>
<li><a href="/openapi.json">/openapi.json</a>, <a href="/asyncapi.json">/asyncapi.json</a>: for programs</li>
<li><a href="/healthz">/healthz</a>, <a href="/readyz">/readyz</a>, <a href="/metrics">/metrics</a>: for
operators</li>
</ul>
</html>
"""


def install(app: FastAPI) -> None:
    """Adds the pages and documents to `app`; `/docs` comes from the framework."""
    app.openapi = openapi.document  # type: ignore[method-assign]

    @app.get("/", include_in_schema=False)
    async def front() -> HTMLResponse:
        return HTMLResponse(_FRONT)

    @app.get("/docs/browser", include_in_schema=False)
    async def browser() -> FileResponse:
        return FileResponse(_BROWSER_PAGE, media_type="text/html")

    @app.get("/asyncapi.json", include_in_schema=False)
    async def asyncapi() -> dict[str, Any]:
        return ASYNCAPI
