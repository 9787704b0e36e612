"""Serves `browser.html` and passes `/v1/` on to Gapless, so that page and streams share one origin.

    python docs/browser.py                      then open http://127.0.0.1:8000

A browser lets a page read only its own origin unless the other permits it; the service does not yet.
"""

import http.client
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

SERVICE = urlsplit(os.environ.get("GAPLESS_URL", "http://127.0.0.1:8080"))
PAGE = Path(__file__).with_name("browser.html").read_bytes()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if not self.path.startswith("/v1/"):
            self.answer(200 if self.path == "/" else 404, "text/html", PAGE if self.path == "/" else b"")
            return
        names = ("Accept", "Last-Event-ID")
        headers = {name: self.headers[name] for name in names if name in self.headers}
        service = http.client.HTTPConnection(SERVICE.hostname or "127.0.0.1", SERVICE.port)
        try:
            service.request("GET", self.path, headers=headers)
            answer = service.getresponse()
            self.answer(answer.status, answer.headers["Content-Type"])
            while chunk := answer.read1():
                self.wfile.write(chunk)
        except (OSError, http.client.HTTPException):
            self.close_connection = True  # The browser comes back by itself, with the last id it saw.
        finally:
            service.close()

    def answer(self, status: int, media_type: str, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing for each request."""


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"open http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
