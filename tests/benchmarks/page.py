"""The page on a run of many rollouts, in real Chromium: how long until something is to be seen."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.e2e.page.browsers import CHROMIUM_ARGUMENTS, url_in
from tests.factories.run_folders import NEEDLE, large_run
from tests.packages import find

SEEN = """
const tell = () => { document.documentElement.dataset.seen = performance.now(); };
const look = () => {
  const there = document.querySelector("tbody tr, .chart svg");
  requestAnimationFrame(there ? () => setTimeout(tell) : look);
};
look();
"""
"""Milliseconds from the navigation to the frame in which rows or charts are painted."""


def measure(num_rollouts: int) -> dict[str, float]:
    """Seconds. `cold` ones begin with a server that has not read the journal yet."""
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="warren-page-") as root,
        sync_playwright() as playwright,
    ):
        folder = large_run(Path(root), num_rollouts)
        chromium = find("chromium")
        browser = playwright.chromium.launch(
            executable_path=chromium.path, env=dict(chromium.environ), args=CHROMIUM_ARGUMENTS
        )
        for view in ("rollouts", "charts"):
            with serving(folder) as url:
                address = f"{url}?run={folder.name}&view={view}"
                figures[f"{view}: first paint, cold"] = _first_paint(browser, address)
                figures[f"{view}: first paint, warm"] = _first_paint(browser, address)
        with serving(folder) as url:
            figures |= _using(browser.new_page(), f"{url}?run={folder.name}&view=rollouts")
        browser.close()
    return figures


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """`run.py view` on a folder; its address."""
    view = subprocess.Popen(
        [sys.executable, "run.py", "view", str(folder), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert view.stdout is not None
    try:
        yield url_in(view.stdout.readline())
    finally:
        view.terminate()
        view.wait()


def _first_paint(browser: Browser, address: str) -> float:
    page = browser.new_page()
    page.add_init_script(SEEN)
    page.goto(address)
    root = page.locator("html[data-seen]")
    seen = float(root.get_attribute("data-seen", timeout=60_000) or "nan") / 1000
    page.close()
    return seen


def _using(page: Page, address: str) -> dict[str, float]:
    page.set_default_timeout(120_000)
    page.goto(address)
    page.wait_for_selector("tbody tr")
    figures = {}
    started = time.monotonic()
    page.wait_for_selector(".state:not(:has-text('reading'))")
    figures["every body read, in the background"] = time.monotonic() - started
    for name, act, row in (
        ("last page", lambda: page.get_by_role("link", name="last").first.click(), "0.0"),
        ("most interrupted", lambda: page.get_by_label("Order").select_option("cut"), "0.1"),
        ("text search", lambda: page.get_by_label("Search").fill(NEEDLE), NEEDLE),
    ):
        started = time.monotonic()
        act()
        page.wait_for_selector(f"tbody tr:has-text('{row}')")
        figures[name] = time.monotonic() - started
    page.close()
    return figures
