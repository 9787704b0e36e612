"""The pages for people, and the documents of the API."""

from __future__ import annotations

from html import escape
from typing import Final

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from app.api import asyncapi
from app.launch import CHECKOUT

DOCUMENTS: Final = frozenset({"/openapi.json", "/asyncapi.json"})
"""Once credentials are required, these need one; the pages do not."""
_BROWSER_PAGE: Final = CHECKOUT / "docs" / "browser.html"
_SCRIPTS: Final = "/static-offline-docs"
_ICON_PATH: Final = "/favicon.svg"
_ICON: Final = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">
<rect width="16" height="16" rx="3" fill="#0b6e4f"/>
<path d="M3 5h10M3 8h10M3 11h10" stroke="#fff" stroke-width="1.6"/>
</svg>
"""
_STYLE: Final = """:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
a { color: light-dark(#0b6e4f, #5fd3a8); }
input, button { font: inherit; padding: .2rem .5rem; }
label input { width: 100%; box-sizing: border-box; }
ol { padding-left: 3rem; overflow-wrap: anywhere; font-family: ui-monospace, monospace; font-size: .9rem; }
"""
_FRONT: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Gapless</title>
<link rel="icon" href="favicon.svg">
<link rel="stylesheet" href="docs/style.css">
<h1>Gapless</h1>
<p>Ordered, durable delivery for chat and events.</p>
<ul>
<li><a href="docs">ROOT/docs</a>: every route, with forms to try them</li>
<li><a href="docs/browser">ROOT/docs/browser</a>: a page that publishes to a channel and follows it</li>
<li><a href="openapi.json">ROOT/openapi.json</a>, <a href="asyncapi.json">ROOT/asyncapi.json</a>: for
programs</li>
<li><a href="healthz">ROOT/healthz</a>, <a href="readyz">ROOT/readyz</a>,
<a href="metrics">ROOT/metrics</a>: for operators</li>
</ul>
</html>
"""


def install(app: FastAPI, *, documents: bool) -> None:
    """Adds the pages to `app`; without `documents`, not those that describe the API. None asks a foreign
    host, so `/docs` brings its own scripts."""

    @app.get("/", include_in_schema=False)
    async def front(request: Request) -> HTMLResponse:
        return HTMLResponse(_FRONT.replace("ROOT", escape(_root(request))))

    @app.get(_ICON_PATH, include_in_schema=False)
    async def icon() -> Response:
        return Response(_ICON, media_type="image/svg+xml")

    @app.get("/docs/style.css", include_in_schema=False)
    async def style() -> Response:
        return Response(_STYLE, media_type="text/css")

    @app.get("/docs/browser", include_in_schema=False)
    async def browser() -> FileResponse:
        return FileResponse(_BROWSER_PAGE, media_type="text/html")

    if documents:
        _install_documents(app)


def _install_documents(app: FastAPI) -> None:
    app.mount(_SCRIPTS, StaticFiles(packages=[("fastapi_offline", "static")]))

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        root = _root(request)
        return get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=f"{app.title} - Swagger UI",
            swagger_js_url=f"{root}{_SCRIPTS}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{_SCRIPTS}/swagger-ui.css",
            swagger_favicon_url=f"{root}{_ICON_PATH}",
        )

    @app.get("/asyncapi.json", include_in_schema=False)
    async def events(request: Request) -> JSONResponse:
        # A response, not its data: for a model of that, FastAPI would import all of Pydantic's version 1.
        return JSONResponse(asyncapi.document(_root(request)))


def _root(request: Request) -> str:
    """The prefix under which the application runs."""
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")
