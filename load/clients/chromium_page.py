"""A browser's own EventSource: headless Chromium opens a page that follows the channel."""

# It runs in its own environment, which has the client. The type checker does not see the client.
# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import shutil
import sys
import time

from playwright.sync_api import sync_playwright


def main(page_url: str, total: int) -> None:
    """Print the number of each message of the page, until 2.5 s after the last one, to see doubled ones."""
    program = shutil.which("chromium") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page()
        page.goto(page_url)
        printed, until = 0, float("inf")
        while time.monotonic() < until:
            page.wait_for_timeout(250)
            got = page.evaluate("got")
            for number in got[printed:]:
                print(number, flush=True)
            if total - 1 in got and until == float("inf"):
                until = time.monotonic() + 2.5
            printed = len(got)
        browser.close()


main(sys.argv[1], int(sys.argv[2]))
