"""What runs in simulated worlds, and what stands there in the place of what would take too long.

Decisions that matter here:
- language agents: `run_experiment` and `resume_experiment` as they are. In the place of a report, which is drawn from
  files that stand, there is a line of text; prompts and YAML, the same in all worlds, are read once in a process;
- networks: see `tests.simulation.networks`.
"""

import os
import tempfile
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import nip_ray.config.load
import nip_ray.runs.experiment
import nip_ray.storage.folder
import nip_ray.text.training.trainer
from nip_ray.config.load import config_from_dict
from nip_ray.errors import UserError
from nip_ray.scenarios.language import LANGUAGE_SCENARIOS
from nip_ray.storage.files import write_atomically
from tests.simulation import networks
from tests.simulation.service import DOUBT_S
from tests.text import cooperation

_RULE: dict[str, Any] = {
    "name": "expert_iteration", "rollouts_per_iteration": 3, "num_test_items": 2, "test_scheme": "last",
    "fine_tuning": {"num_epochs": 1, "min_examples": 1},
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"algorithm": _RULE, "iterations": 2},
    "after the last": {"algorithm": {**_RULE, "fine_tune_after_last": True}, "iterations": 1},
    "overlap": {"algorithm": {**_RULE, "test_while_fine_tuning": True, "test_scheme": "all"}, "iterations": 2},
    "trees": {"algorithm": {**_RULE, "name": "malt", "num_responses": 2, "rollouts_per_iteration": 2}, "iterations": 2},
    "networks": networks.CONFIG,
}
ORDERS = {
    "plain": ["sample", "log", "test", "create_jobs", "await_jobs"],
    "overlap": ["sample", "log", "create_jobs", "test", "await_jobs"],
}


@cache
def _data() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="nip-simulated-", dir=memory()))
    cooperation.write_items(folder)
    return folder


@cache
def memory() -> str:
    """A folder in memory, where there is one."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()


@cache
def _config(variant: str) -> dict[str, Any]:
    made = cooperation.config(_data(), {})
    made |= VARIANTS[variant]
    made["scenario"]["data"] |= {"num_train": 6, "num_test": 2}
    made["providers"]["tables"] |= {"poll_interval_s": 20.0, "doubt_s": DOUBT_S, "max_retries": 30, "timeout_s": 100.0}
    return made


def config(variant: str, budget: float | None) -> Any:
    """The config of a variant, checked."""
    if variant == "networks":
        return config_from_dict(deepcopy(networks.CONFIG))
    return config_from_dict({**_config(variant), **({} if budget is None else {"budget": {"usd": budget}})})


def run(variant: str, budget: float | None, folder: Path) -> None:
    """Begin the run in `folder`, or resume it where it is one, as `nip-ray train --or-resume` would."""
    if not (folder / "config.yaml").is_file():
        nip_ray.runs.experiment.run_experiment(config(variant, budget), folder, quiet=True)
    else:
        settings = () if budget is None else (f"budget.usd={budget!r}",)
        nip_ray.runs.experiment.resume_experiment(folder, settings=settings, quiet=True)


def install() -> None:
    """Put the stand-ins in place, for good."""
    networks.install()
    nip_ray.text.training.trainer.write_report = lambda run: write_atomically(
        Path(run) / "report.html", b"drawn from what is there"
    )
    environment = nip_ray.storage.folder.environment()
    nip_ray.runs.experiment.environment = lambda: environment
    kind, built = LANGUAGE_SCENARIOS["code_validation"], {}

    # once: its prompts, which are the same in all worlds, take longer than all else
    def build(protocol: Any, settings: Any) -> Any:
        known = repr(settings)
        return built[known] if known in built else built.setdefault(known, kind.build(protocol, settings))

    LANGUAGE_SCENARIOS["code_validation"] = replace(kind, build=build)
    parse, write = cache(nip_ray.config.load.parse_yaml), nip_ray.runs.experiment.config_to_yaml
    written: dict[str, str] = {}

    def parsed(text: str, source: str) -> Any:  # always the same few texts, too
        try:
            return deepcopy(parse(text, ""))
        except UserError:
            return parse(text, source)

    nip_ray.config.load.parse_yaml = parsed

    def to_yaml(config: Any) -> str:
        return written.get(known := repr(config)) or written.setdefault(known, write(config))

    nip_ray.runs.experiment.config_to_yaml = nip_ray.config.load.config_to_yaml = to_yaml
