"""The log of a run in `inspect view`."""

import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.load import load_config
from nip_ray.exports.inspect_log import export_inspect
from nip_ray.runs.experiment import run_experiment
from tests.text.cooperation import dummy, write_config

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made before there is a browser, whose event loop would be in the way."""
    pytest.importorskip("inspect_ai")
    folder = tmp_path_factory.mktemp("run")
    run_experiment(load_config(write_config(folder, dummy(folder))), folder / "run", quiet=True)
    return export_inspect(folder / "run")


def test_inspect_view_shows_figures_and_dialogues(log: Path, browser: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "inspect_ai", "view", "start", "--log-dir", str(log.parent), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(150):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.2)
        context = browser.new_context(locale="en-US")
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_text("code_validation, test").wait_for()
        assert "0.833" in page.inner_text("body")
        page.get_by_text("Print 2. (test)").first.click()
        page.get_by_text("Messages", exact=True).first.click()
        page.get_by_text("prover: Answer:").first.wait_for()
        context.close()
    finally:
        server.terminate()
        server.wait(30)
