"""Shared by all tests: an environment that leaves no trace in $HOME, and one Ray instance for the whole session.

The environment is set while this file is imported, so before any test imports torch or ray, and child processes inherit it.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
THREADS = "1"
SCRATCH = Path(tempfile.mkdtemp(prefix="nr", dir="/tmp"))  # short: Ray puts Unix sockets below it, and their paths end at 107 characters

os.environ.update(
    HOME=str(SCRATCH),  # caches and default result folders of libraries go there, and with it they are removed
    XDG_CACHE_HOME=str(SCRATCH / "cache"),
    XDG_CONFIG_HOME=str(SCRATCH / "config"),
    MPLBACKEND="Agg",
    MPLCONFIGDIR=str(SCRATCH / "matplotlib"),
    OMP_NUM_THREADS=THREADS,
    MKL_NUM_THREADS=THREADS,
    # Ray knows "disabled" and "token". Left unset, a new local cluster writes a token to ~/.ray; tests talk to themselves only.
    RAY_AUTH_MODE="disabled",
    NIP_PROVIDER_KEY="sk-canary-7d2c41f0a9b84e55",  # of the provider for tests; here, so that Ray's workers have it, too
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_TMPDIR=str(SCRATCH / "ray"),  # where Ray instances go that tests start in processes of their own
)
os.environ.pop("RAY_ADDRESS", None)  # never a cluster that happens to be there
(SCRATCH / "ray").mkdir()


@pytest.hookimpl(optionalhook=True)
def pytest_configure(config: pytest.Config) -> None:
    """Processes that tests start obey an interrupt, though a shell that runs the tests in the background has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers the tests of a file stay together, and all files that share the Ray instance go to one worker."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.split("::")[0])

    return ByFile(config, log)


@cache
def _group(file: str) -> str:
    return "ray" if "ray_session" in (ROOT / file).read_text(encoding="utf-8") else file


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes what tests and libraries wrote outside their own temporary folders."""
    shutil.rmtree(SCRATCH, ignore_errors=True)


@pytest.fixture
def no_plugins() -> Iterator[None]:
    """No plugin is registered when the test begins, and what it registers is forgotten when it ends."""
    _forget_plugins()
    yield
    _forget_plugins()


def _forget_plugins() -> None:
    if "nip_ray.config.members" not in sys.modules:
        return
    from nip_ray.config.members import ADDED, forget
    from nip_ray.config.plugins import is_plugin_file

    tables = {"scenario": ("nip_ray.scenarios.registry", "SCENARIOS"), "algorithm": ("nip_ray.rllib.algorithms", "ALGORITHMS")}
    for part, names in ADDED.items():
        module, table = tables[part]
        for name in list(names):
            forget(part, name)
            if module in sys.modules:
                getattr(sys.modules[module], table).pop(name, None)
    for name in [name for name in sys.modules if is_plugin_file(name)]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A local Ray instance with 4 logical CPUs, shared by every test that asks for it. Ports are chosen by Ray."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=256 * 2**20,
        log_to_driver=False,
        logging_level="warning",
        _temp_dir=str(SCRATCH / "ray"),
    )
    yield
    ray.shutdown()
