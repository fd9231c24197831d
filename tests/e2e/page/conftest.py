"""The real page in a real browser: `run.py view` on a folder, Chromium driven by Playwright.

Screenshots of what the tests saw lie in `SHOTS` afterwards.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.factories.run_folders import large_run, small_run
from tests.packages import Program
from tests.processes import popen

ROOT = Path(__file__).resolve().parents[3]
SHOTS = ROOT / "build" / "screenshots"
"""Ignored by git."""
CHROMIUM_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
NUM_ROLLOUTS = 10_000

Serve = Callable[[Path], str]


@pytest.fixture(scope="session")
def browser(chromium: Program) -> Iterator[Browser]:
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
    opened.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    yield opened
    opened.close()
    assert wrong == []


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
        said = view.stdout.readline()
        found = re.search(r"http://\S+/", said)
        assert found is not None, said + view.stdout.read()
        return found[0]

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
