"""The real page in a real browser: `run.py view` on a folder, Chromium driven by Playwright.

Screenshots of what the tests saw lie in `SHOTS` afterwards.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.e2e.page.browsers import CHROMIUM_ARGUMENTS, url_in
from tests.factories.run_folders import large_run, small_run
from tests.packages import Program
from tests.processes import popen

ROOT = Path(__file__).resolve().parents[3]
SHOTS = ROOT / "build" / "screenshots"
"""Ignored by git."""
NUM_ROLLOUTS = 10_000

Serve = Callable[[Path], str]


@pytest.fixture(scope="module")
def browser(chromium: Program) -> Iterator[Browser]:
    """For one module: while it is there, this thread has an event loop, which other tests bring."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=chromium.path, env=dict(chromium.environ), args=CHROMIUM_ARGUMENTS
        )
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab of a browser of its own; whatever goes wrong in it fails the test."""
    opened = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
    opened.set_default_timeout(20_000)
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if is_wrong(said) else None)
    yield opened
    opened.close()
    assert wrong == []


def is_wrong(said: ConsoleMessage) -> bool:
    """Errors, but for answers that say what is wrong with a question: those the page shows."""
    return said.type == "error" and "the server responded with a status of 4" not in said.text


@pytest.fixture
def serve() -> Serve:
    """Starts `run.py view FOLDER`; the page's address."""

    def start(folder: Path) -> str:
        view = popen(
            [sys.executable, "run.py", "view", str(folder), "--port", "0"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert view.stdout is not None
        return url_in(view.stdout.readline())

    return start


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two runs, `written` and `second`. Nobody changes it."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("written", "second"):
        small_run(folder, name=name).close()
    return folder


@pytest.fixture(scope="session")
def large_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 10,000 rollouts."""
    return large_run(tmp_path_factory.mktemp("large"), NUM_ROLLOUTS)


@pytest.fixture
def shoot(page: Page) -> Callable[[str], None]:
    """Keeps what the page shows as `NAME.png`."""

    def take(name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / f"{name}.png")
        print(f"screenshot: {(SHOTS / name).relative_to(ROOT)}.png")

    return take
