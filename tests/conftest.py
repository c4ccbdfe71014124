"""Shared by all tests: an environment that leaves no trace in $HOME, and one Ray instance for the whole session.

The environment is set while this file is imported, so before any test imports torch or ray, and child processes inherit
it.
"""

import gc
import os
import shutil
import signal
import ssl
import sys
import tempfile
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]
THREADS = "1"
# short: Ray puts Unix sockets below it, and their paths end at 107 characters
SCRATCH = Path(tempfile.mkdtemp(prefix="nr", dir="/tmp"))

os.environ.update(
    HOME=str(SCRATCH),  # caches and default result folders of libraries go there, and with it they are removed
    # all workers compile kernels into one cache; the first process hands its environment down to them
    XDG_CACHE_HOME=os.environ["XDG_CACHE_HOME"] if "PYTEST_XDIST_WORKER" in os.environ else str(SCRATCH / "cache"),
    XDG_CONFIG_HOME=str(SCRATCH / "config"),
    MPLBACKEND="Agg",
    MPLCONFIGDIR=str(SCRATCH / "matplotlib"),
    OMP_NUM_THREADS=THREADS,
    MKL_NUM_THREADS=THREADS,
    # Ray knows "disabled" and "token". Left unset, a new local cluster writes a token to ~/.ray; tests talk to
    # themselves only.
    RAY_AUTH_MODE="disabled",
    # of the provider for tests; here, so that Ray's workers have it, too
    NIP_PROVIDER_KEY="sk-canary-7d2c41f0a9b84e55",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_worker_niceness="0",  # else every other process goes first, and who waits for a worker waits for them all
    RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="60",  # a busy machine needs more than the 5 s of a server
    RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S="60",
    RAY_TMPDIR=str(SCRATCH / "ray"),  # where Ray instances go that tests start in processes of their own
)
# a busy machine may take a second for what takes a millisecond
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
os.environ.pop("RAY_ADDRESS", None)  # never a cluster that happens to be there
(SCRATCH / "ray").mkdir()

# every client of a provider reads the system's certificates for it
ssl.create_default_context = cache(ssl.create_default_context)


@pytest.hookimpl(optionalhook=True)
def pytest_configure(config: pytest.Config) -> None:
    """Processes that tests start obey an interrupt, though a shell that runs the tests in the background has it
    ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


FIRST = tuple(
    f"tests/{name}.py"
    for name in (
        *("text/training/test_training", "text/training/test_policy_gradient", "text/training/test_service_training"),
        *(
            "serving/test_server",
            "serving/test_fine_tune",
            "runs/test_resume",
            "rllib/test_matrix",
            "drivers/test_experiments",
        ),
        *(
            "drivers/test_equality",
            "tracking/test_wandb_tracker",
            "storage/test_mirror",
            "text/providers/test_openai_chat",
        ),
    )
)
"""Files that take longest, so that no worker is left with one of them at the end."""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a worker where to list the tests that use the Ray instance, for the scheduler, which sees names only."""
    node.workerinput["ray_tests"] = str(SCRATCH / "ray_tests")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """In a worker; all collect the same."""
    gc.collect()
    gc.freeze()  # what is imported by now is not looked through again whenever something collects garbage
    place = getattr(session.config, "workerinput", {}).get("ray_tests")
    if place is not None:
        found = [item.nodeid for item in session.items if "ray_session" in getattr(item, "fixturenames", ())]
        part = Path(f"{place}.{os.getpid()}")
        part.write_text("\n".join(found), encoding="utf-8")
        part.replace(place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers, tests that use the Ray instance go to one of them and begin; the other tests of a file stay
    together."""
    from xdist.scheduler import LoadScopeScheduling

    class ByRayAndFile(LoadScopeScheduling):
        @cached_property
        def ray_tests(self) -> set[str]:
            return set((SCRATCH / "ray_tests").read_text(encoding="utf-8").splitlines())

        def _split_scope(self, nodeid: str) -> str:
            return "ray" if nodeid in self.ray_tests else nodeid.split("::")[0]

        def _assign_work_unit(self, node: Any) -> None:
            for scope in reversed(("ray", *FIRST)):
                if scope in self.workqueue:
                    self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    return ByRayAndFile(config, log)


DRAWS = ("tests/evaluation/report/", "tests/evaluation/test_report.py", "tests/browser")
"""Where pictures are looked at. Elsewhere figures are made and not rasterised, which takes longer than a tiny run's
training."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # one thread, whatever an earlier test left: on small tensors several only wait for each other
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(THREADS))
    for (canvas, name), (real, stub) in _writers().items():
        setattr(canvas, name, real if item.nodeid.startswith(DRAWS) else stub)


@cache
def _writers() -> dict[tuple[Any, str], tuple[Any, Any]]:
    """(class, name of its method that writes a picture) -> (the method, one that writes next to nothing)."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    def empty(content: Any) -> Any:
        return lambda canvas, file, **_: file.write(content)

    made = {
        (FigureCanvasSVG, "print_svg"): empty('<svg viewBox="0 0 1 1"><g ></g></svg>'),
        (FigureCanvasPdf, "print_pdf"): empty(b"%PDF-"),
    }
    return {(canvas, name): (getattr(canvas, name), stub) for (canvas, name), stub in made.items()}


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes what tests and libraries wrote outside their own temporary folders."""
    shutil.rmtree(SCRATCH, ignore_errors=True)


@pytest.fixture
def no_plugins() -> Iterator[None]:
    """No plugin is registered when the test begins, and what it registers is forgotten when it ends."""
    forget_plugins()
    yield
    forget_plugins()


def forget_plugins() -> None:
    """As a new process has it."""
    if "nip_ray.config.members" not in sys.modules:
        return
    from nip_ray.config.members import ADDED, forget
    from nip_ray.config.plugins import is_plugin_file

    tables = {
        "scenario": ("nip_ray.scenarios.registry", "SCENARIOS"),
        "algorithm": ("nip_ray.rllib.registry", "ALGORITHMS"),
        "language_scenario": ("nip_ray.scenarios.language", "LANGUAGE_SCENARIOS"),
        "provider": ("nip_ray.text.providers.interface", "PROVIDERS"),
        "text_algorithm": ("nip_ray.text.training.rules", "TEXT_ALGORITHMS"),
    }
    for part, names in ADDED.items():
        module, table = tables[part]
        for name in list(names):
            forget(part, name)
            if module in sys.modules:
                getattr(sys.modules[module], table).pop(name, None)
    from nip_ray.protocols.tables import PROTOCOLS, SHIPPED

    for name in set(PROTOCOLS) - set(SHIPPED):
        del PROTOCOLS[name]
    for name in [name for name in sys.modules if is_plugin_file(name)]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A local Ray instance with 4 logical CPUs, shared by every test that asks for it. Ports are chosen by Ray."""
    import ray

    ray.shutdown()  # of a run in this process that started one
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
