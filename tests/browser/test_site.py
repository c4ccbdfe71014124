"""The documentation's site in a real headless browser: search, links, a narrow screen, dark."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.docs.test_site import build_site

pytestmark = pytest.mark.browser


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = build_site(tmp_path_factory.mktemp("site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_the_search_finds_a_page_and_a_name(opened: Callable[..., Any], address: str) -> None:
    page = opened(address, 1300)
    for words, title in (("load_run", "load_run"), ("patience", "Stop a run early")):
        page.locator("input.md-search__input").click()
        page.fill("input.md-search__input", words)
        found = page.locator(".md-search-result__link", has_text=title).first
        found.wait_for()
        found.click()
        page.locator("article", has_text=words).wait_for()


def test_the_parts_are_tabs_and_lead_to_pages(opened: Callable[..., Any], address: str) -> None:
    page = opened(address, 1300)
    assert [name.strip() for name in page.locator(".md-tabs__link").all_inner_texts()] == [
        "Learn",
        "How-to",
        "Concepts",
        "Reference",
    ]
    page.locator(".md-tabs__link", has_text="How-to").click()
    page.wait_for_url("**/how-to/**")
    assert page.locator("article h1").count() == 1
    page.goto(f"{address}start/")
    page.locator("article a", has_text="configuration.md").first.click()
    page.wait_for_url("**/configuration/")
    page.locator("article a", has_text="Protocol").first.click()
    page.wait_for_url("**/configuration/protocol/")


def test_a_link_out_of_the_pages_leads_to_a_copy(opened: Callable[..., Any], address: str) -> None:
    page = opened(address, 1300)
    page.goto(f"{address}tutorials/own-protocol/")
    page.locator("article a[href*='own_protocol.py']").first.click()
    page.wait_for_url("**/repository/examples/own_protocol.py/")
    assert "register" in page.locator("article pre").first.inner_text()


@pytest.mark.parametrize("path", ["", "how-to/stop-early/", "configuration/protocol/", "api/nip_ray.play/"])
def test_a_narrow_screen_scrolls_down_alone(opened: Callable[..., Any], address: str, path: str) -> None:
    page = opened(address, 390)
    page.goto(address + path)
    page.locator("article h1").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("dark", [False, True])
def test_the_colours_are_those_of_the_system(opened: Callable[..., Any], address: str, dark: bool) -> None:
    page = opened(address, 1300, dark)
    page.locator("article h1").wait_for()
    red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (red + green + blue < 3 * 100) is dark
