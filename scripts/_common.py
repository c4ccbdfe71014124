"""The common part of the scripts: flags, configs of the published settings under any protocol, one run for each seed.

Nothing heavy is imported before a run begins, so that `--help` and a wrong flag are answered at once.
"""

import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_ray.errors import TrainingError, UserError

CONFIGS = Path(__file__).resolve().parents[1] / "tune_configs"
GI_CONFIGS = {
    "nip": "gi_published",
    "adp": "gi_adp",
    "debate": "gi_debate",
    "mnip": "gi_mnip",
    "solo_verifier": "gi_solo",
}
CV_PROTOCOLS = ("solo_verifier", "adp", "debate", "merlin_arthur", "nip", "mnip")
FREE_LENGTH = ("nip", "debate", "mnip")
"""Protocols whose numbers of rounds are a setting."""
DIFFICULTIES = ("introductory", "interview", "competition")
HEADLINES = ("accuracy", "completeness", "soundness", "undecided", "wl_bound", "solo_baseline")


def plain_parser(doc: str | None) -> ArgumentParser:
    """A parser without flags. doc: the script's docstring, which `--help` shows unchanged."""
    return ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)


def run_parser(doc: str | None, seed: int) -> ArgumentParser:
    """The flags of every script that makes runs. seed: the default."""
    made = plain_parser(doc)
    made.add_argument(
        "--seeds", type=int, nargs="+", default=[seed], metavar="S", help=f"one run for each (default: {seed})"
    )
    made.add_argument(
        "--out", type=Path, default=Path("runs"), metavar="DIR", help="where run folders are made (default: runs)"
    )
    made.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="A.B=C",
        help="set a key of the config; repeatable",
    )
    return made


def parser(doc: str | None) -> ArgumentParser:
    """The flags of every script that trains in a published setting."""
    made = run_parser(doc, 8144)
    made.add_argument("--iterations", type=int, metavar="N", help="instead of the published number")
    return made


def gi_parser(doc: str | None) -> ArgumentParser:
    """The same, with the flags of the published scripts on graph isomorphism."""
    made = parser(doc)
    made.add_argument("--protocol", choices=sorted(GI_CONFIGS), default="nip", help="(default: nip)")
    made.add_argument("--provers", choices=("trained", "random"), default="trained", help="(default: trained)")
    what = (
        "the verifier learns for N iterations, then the first prover, then the second; again and again (default: all"
        " always)"
    )
    made.add_argument("--turns", type=int, nargs="+", metavar="N", help=what)
    return made


def train_gi(arguments: Namespace, rule: str | None = None) -> None:
    """Train under the given protocol. rule: the config whose `algorithm` replaces PPO's."""
    train(arguments, GI_CONFIGS[arguments.protocol], gi_settings(arguments, rule))


def gi_settings(arguments: Namespace, rule: str | None = None) -> list[str]:
    """The changes of the flags and `rule` to the protocol's config, in the form of `--set`. Raises UserError for wrong
    turns."""
    protocol, settings = arguments.protocol, []
    provers = (
        [] if protocol == "solo_verifier" else ["prover"] if protocol in ("nip", "adp") else ["prover0", "prover1"]
    )
    if rule is not None:
        settings += [
            assign("name", f"{rule.replace('_', '-')}-{protocol}"),
            *replace("algorithm", read(rule)["algorithm"]),
        ]
    if arguments.provers == "random":
        settings += [part for prover in provers for part in replace(f"scenario.agents.{prover}", {"kind": "random"})]
    if arguments.turns is not None:
        settings.extend(replace("schedules", windows(["verifier", *provers], arguments.turns)))
    return settings


def windows(agents: Sequence[str], turns: Sequence[int]) -> dict[str, Any]:
    """Schedules under which the agents learn one after the other, each for a number of iterations. Raises UserError for
    wrong numbers."""
    if len(turns) != len(agents) or min(turns) < 1:
        raise UserError(
            f"--turns {' '.join(map(str, turns))}: expected {len(agents)} numbers >= 1, for {', '.join(agents)}"
        )
    ends = [sum(turns[: i + 1]) for i in range(len(turns))]
    return {
        agent: {"kind": "contiguous", "period": ends[-1], "start": end - turn, "stop": end}
        for agent, turn, end in zip(agents, turns, ends)
    }


def cv_parser(doc: str | None) -> ArgumentParser:
    """The same for language agents: their protocol and provider."""
    made = parser(doc)
    made.add_argument("--protocol", choices=CV_PROTOCOLS, default="nip", help="(default: nip)")
    who = (
        "hosted: the published models by the OpenAI protocol ($OPENAI_BASE_URL, $OPENAI_API_KEY); local: a small model"
        " made here; "
    )
    made.add_argument(
        "--provider", choices=("hosted", "local", "dummy"), default="hosted", help=f"{who}dummy: random replies"
    )
    return made


def train_cv(arguments: Namespace, rule: str) -> None:
    """Train language agents. rule: ei or malt."""
    train(arguments, *cv_settings(arguments, rule))


def cv_settings(arguments: Namespace, rule: str) -> tuple[str, list[str]]:
    """(config, changes of the flags to it)."""
    file = {"ei": "ei_cv_offline", "malt": "malt_cv_offline"}[rule] if arguments.provider == "local" else f"{rule}_cv"
    written = read(file)
    limits = {
        key: written["protocol"][key] for key in ("min_rounds", "max_rounds") if arguments.protocol in FREE_LENGTH
    }
    agents = written["scenario"]["agents"]
    if "prover" in agents:
        agents["_default"] = {**agents.pop("prover"), "group": "provers"}  # as published, two provers share a model
    settings = [
        assign("name", f"{rule}-cv-{arguments.protocol}"),
        *replace("protocol", {"name": arguments.protocol, **limits}),
    ]
    if arguments.provider == "dummy":
        agents = {"_default": {"provider": "dummy", "model": "none"}}
        settings += [
            *replace("providers", {"dummy": {"name": "dummy"}}),
            *replace("budget", {}),
            "algorithm.rollouts_per_iteration=20",
        ]
        settings += replace("scenario.data", {"num_train": 200, "num_test": 48})
    return file, [*settings, *replace("scenario.agents", agents)]


def train(arguments: Namespace, file: str, settings: Sequence[str] = ()) -> None:
    """One run for each seed, one after the other, of `file` with `settings`; prints a line of JSON for each."""
    from nip_ray import run_experiment
    from nip_ray.config.load import load_config

    if arguments.iterations is not None:
        settings = [*settings, f"iterations={arguments.iterations}"]
    configs = [
        load_config(CONFIGS / f"{file}.yaml", [*settings, *arguments.settings, f"seed={seed}"])
        for seed in arguments.seeds
    ]
    for config in configs:
        result = run_experiment(config, arguments.out / f"{config.name}-seed{config.seed}")
        keys = [f"{prefix}/verifier/{name}" for prefix in ("eval", "eval_sampled") for name in HEADLINES]
        figures = {key: result.metrics[key] for key in keys if key in result.metrics}
        print(json.dumps({"run_dir": str(result.run_dir), "seed": config.seed, **figures}), flush=True)


def read(file: str) -> dict[str, Any]:
    """A config of `tune_configs/` as written."""
    from nip_ray.config.yaml_text import parse_yaml

    return parse_yaml((CONFIGS / f"{file}.yaml").read_text(encoding="utf-8"), file)


def assign(key: str, value: Any) -> str:
    """`key=value` for `--set`. JSON is YAML."""
    return f"{key}={json.dumps(value)}"


def replace(key: str, value: Mapping[str, Any]) -> tuple[str, str]:
    """The arguments of `--set` that replace a mapping, which would otherwise keep keys that `value` does not name."""
    return assign(key, None), assign(key, value)


def run(main: Callable[[], None]) -> None:
    """Call `main`; a mistake of the user ends in one line and status 2, failed training in one line and status 1."""
    try:
        main()
    except (UserError, TrainingError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
