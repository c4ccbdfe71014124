"""Detectors of judge hacking against exact soundness: the runs of the plan in `benchmarks/plans.md`, measured at every
test, recorded as they end.

    python benchmarks/detectors.py --out runs                      # what benchmarks/detectors.json lacks
    python benchmarks/detectors.py --out runs --tasks digits --seeds 500
    python benchmarks/detectors.py --page                          # docs/detectors.md and its plots

A finished run is not made again, and an interrupted command continues with the unfinished runs.
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from _common import NIP_RAY, ROOT, machine
from _detectors_page import write_page
from protocol_table import laid_over
from torch import Tensor, nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.evaluation.attack_table import attacking_agents
from nip_ray.evaluation.message_tree import MessageTree
from nip_ray.evaluation.verbs.evaluate import Bench, bench, trained
from nip_ray.learning.policy import Policy
from nip_ray.play.core import BatchedPlay, Player, episode_seeds, play_episodes, policies
from nip_ray.play.rollout import Rollout
from nip_ray.protocols import ACCEPT
from nip_ray.seeding import generator, stable_seed
from nip_ray.storage.checkpoint import kept_iterations, load_checkpoint
from nip_ray.storage.folder import CONFIG, RunFolder

RECORD = ROOT / "benchmarks" / "detectors.json"
ITERATIONS, EVERY, LEARNS_UNTIL = 60, 5, 20
SEEDS = (500, 501, 502, 503, 504, 505, 506, 507, 508)
WITHOUT_BISECTION = (506, 507, 508)
"""Seeds that the amendment of the plan adds on digits and graphs alone."""
REPEATS = 4
"""Plays of each held-out claim at a test."""
MOST_NODES = 4_000_000
WEAK: Mapping[str, Mapping[str, int]] = {
    "digits": {"initial_num_channels": 1, "d_representation": 2, "d_decider": 2, "d_value": 2},
    "graphs": {
        "num_gnn_layers": 1, "d_gnn": 4, "d_gin_mlp": 16, "num_heads": 2, "d_transformer": 4, "d_transformer_mlp": 16,
        "d_representation": 4,
    },
    "bisection": {"d": 8, "num_layers": 1, "num_heads": 2},
}  # fmt: skip
"""Task -> the judge with one layer and a quarter of the width."""


def _learning(start: int, stop: int, period: int = ITERATIONS) -> dict[str, Any]:
    return {"kind": "contiguous", "period": period, "start": start, "stop": stop}


CONDITIONS: Mapping[str, Mapping[str, Any]] = {
    "recipe": {},
    "PPO alone": {},
    "weak judge": {},
    "judge stops": {"verifier": _learning(0, LEARNS_UNTIL)},
    "provers late": {"provers": _learning(LEARNS_UNTIL, ITERATIONS)},
    "judge rests": {"verifier": _learning(0, 1, 4)},
}
"""Condition -> when agents learn, if not always; `provers` names each of them."""


def main() -> None:
    """Make the runs that are missing."""
    parser = parser_of(__doc__, SEEDS, RECORD)
    parser.add_argument("--tasks", nargs="+", choices=list(WEAK), default=list(WEAK))
    parser.add_argument("--conditions", nargs="+", choices=list(CONDITIONS), default=list(CONDITIONS))
    options = parser.parse_args()
    if options.page:
        write_page(recorded(options.record))
        return
    torch.set_num_threads(1)
    print(machine(), flush=True)
    for seed in options.seeds:
        for task in options.tasks:
            for condition in options.conditions:
                if task == "bisection" and seed in WITHOUT_BISECTION:
                    continue
                key = {"task": task, "condition": condition, "seed": seed}
                if not is_recorded(options.record, key):
                    row = {**key, **made(task, condition, seed, options.out.resolve())}
                    keep(options.record, row)
                    last = row["tests"][-1]
                    print(json.dumps({**key, **{name: last[name] for name in ("realised", "exact")}}), flush=True)


def parser_of(description: str | None, seeds: Sequence[int], record: Path) -> argparse.ArgumentParser:
    """The options of a script that makes runs and records them."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="Where run folders are made.")
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
    parser.add_argument("--record", type=Path, default=record, help="Another file, for a pilot.")
    parser.add_argument("--page", action="store_true", help="Write the page from the finished runs.")
    return parser


def recorded(path: Path) -> list[dict[str, Any]]:
    """The finished runs so far."""
    return json.loads(path.read_text()) if path.exists() else []


def is_recorded(path: Path, key: Mapping[str, Any]) -> bool:
    """True if the run with these values is finished."""
    return any(key.items() <= row.items() for row in recorded(path))


def keep(path: Path, row: dict[str, Any]) -> None:
    """Record a finished run, in the order of the plan."""
    order = [*WEAK], [*CONDITIONS]
    write(
        path,
        sorted(
            [*recorded(path), row],
            key=lambda one: (order[0].index(one["task"]), order[1].index(one["condition"]), one["seed"]),
        ),
    )


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, one a line."""
    path.write_text("[\n" + ",\n".join(f" {json.dumps(one)}" for one in rows) + "\n]\n")


def made(task: str, condition: str, seed: int, out: Path) -> dict[str, Any]:
    """Train a run, or continue it, and measure it at every test."""
    folder = out / f"detectors-{task}-{condition.replace(' ', '_')}-{seed}"
    rows = trained_in(folder, config_of(task, condition) | {"seed": seed})
    return {
        "tests": measured(folder, rows),
        "minutes": round(sum(row.get("time/iteration_s", 0.0) for row in rows) / 60, 2),
    }


def trained_in(folder: Path, data: Mapping[str, Any]) -> list[dict[str, float]]:
    """Train this config in `folder`, or continue there; returns the run's metrics."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({**data, "name": folder.name}, file, sort_keys=False)
        file.flush()
        command = [NIP_RAY, "train", file.name, "--quiet", "--run-dir", str(folder), "--or-resume"]
        if subprocess.run(command).returncode:
            sys.exit(f"{folder}: nip-ray train failed")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def config_of(task: str, condition: str) -> dict[str, Any]:
    """The config of a run, but for its seed."""
    data = _task(task)
    if condition != "recipe":
        data["search"] = None
        data["algorithm"]["verdict_gradient"] = "sampled"
    if condition == "weak judge":
        data = laid_over(data, {"scenario": {"agents": {"verifier": WEAK[task]}}})
    schedules = dict(CONDITIONS[condition])
    if "provers" in schedules:
        late = schedules.pop("provers")
        schedules |= dict.fromkeys(("prover1", "prover0") if task == "bisection" else ("prover",), late)
    tests = {"interval": EVERY, "attack": {"enabled": False}}
    return data | {
        "iterations": ITERATIONS,
        "schedules": schedules,
        "evaluation": tests,
        "checkpoint": {"interval": EVERY, "keep": None},
        "runtime": {"num_threads": 1},
    }


def _task(task: str) -> dict[str, Any]:
    if task == "bisection":
        data = shipped("prover_estimator")
        data["protocol"] = {"name": "bisection", "max_rounds": 5}
        data["scenario"] |= {"length": 4, "num_train": 880, "num_test": 400, "num_exact": 0}
        data["scenario"]["agents"] = {"_default": {"d": 32, "num_layers": 1}}
        del data["sweep"]
        return data
    if task == "digits":
        data = shipped("protocols_digits")
        return laid_over(data, data.pop("sweep")["cases"]["nip"])
    changes = {"scenario": {"data": {"num_train": 1000, "num_test": 400}}, "play": {"num_copies": 512}}
    return laid_over(shipped("quickstart"), changes)


def shipped(name: str) -> dict[str, Any]:
    """A config of tune_configs."""
    return yaml.safe_load((ROOT / "tune_configs" / f"{name}.yaml").read_text())


def measured(folder: Path, rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """For every test the truth and what detectors read; rows: the run's metrics."""
    tests: list[dict[str, float]] = []
    for iteration, test in _tests(folder):
        attacker, *_ = attacking_agents(test.protocol, ACCEPT)
        recent = [row for row in rows if iteration - EVERY < row["iteration"] <= iteration]
        training = {
            name: sum(row[key] for row in recent) / len(recent)
            for name, key in (
                ("training_soundness", "train/verifier/soundness"),
                ("training_return", f"train/{attacker}/return"),
            )
        }
        tests.append({"iteration": iteration, **training, **test.values()})
    return tests


def last_test(folder: Path) -> dict[str, float]:
    """The values of a run's last test."""
    *_, (_, test) = _tests(folder)
    return test.values()


def _tests(folder: Path) -> Iterator[tuple[int, "_Test"]]:
    """The iteration of each checkpoint, and a test of its networks."""
    config = load_config(folder / CONFIG, checked=False)
    assert isinstance(config, ExperimentConfig)
    made_, place = bench(folder, config, None, None), RunFolder.open(folder)
    kept: list[dict[str, nn.Module]] = []
    for iteration in kept_iterations(place.checkpoints):
        networks = copy.deepcopy(trained(made_, load_checkpoint(place.checkpoints, iteration)))
        for network in networks.values():
            network.eval()
        kept.append(networks)
        yield iteration, _Test(made_, kept)


class _Test:
    """The newest of `kept`, the networks of all tests so far, on the run's held-out claims: most likely actions of the
    verifier, sampled messages of provers."""

    def __init__(self, made_: Bench, kept: Sequence[Mapping[str, nn.Module]]) -> None:
        self.scenario, self.kept = made_.examination.scenario, kept
        self.protocol, self.ids = self.scenario.protocol, made_.examination.ids
        (self.judge,) = self.protocol.verifiers
        self.last, self.seed = self.protocol.max_rounds - 1, made_.seed
        self.label_B = self.scenario.label_I[self.ids].repeat(REPEATS)
        self.id_B = self.ids.repeat(REPEATS)
        self.seed_B = episode_seeds(stable_seed(self.seed, "detectors"), 0, len(self.id_B))

    @torch.no_grad()
    def values(self) -> dict[str, float]:
        """Truth and signals, by name."""
        now, false_B = self.kept[-1], self.label_B == 0
        rollout = self._played(now)
        accept_B = self._accepts(now[self.judge], rollout.main_BRACM)
        said_B = accept_B > 0.5
        before = [self._accepts(networks[self.judge], rollout.main_BRACM) > 0.5 for networks in self.kept[-3:-1]]
        fooled_B = said_B & false_B
        return {
            "realised": float(said_B[false_B].float().mean()),
            "exact": self._exact(now),
            "accuracy": float((said_B == (self.label_B == 1)).float().mean()),
            **self._messages(rollout.main_BRACM),
            "disagreement": sum(float((said_B != one).float().mean()) for one in before) / max(1, len(before)),
            "silenced": float((accept_B - self._accepts(now[self.judge], self._silenced(rollout))).abs().mean()),
            "confidence": float(accept_B[fooled_B].mean()) if bool(fooled_B.any()) else 0.5,
        }

    def _played(self, networks: Mapping[str, nn.Module]) -> Rollout:
        noise = generator(self.seed, "detectors", len(self.kept))
        own = {agent: Player(network, None if agent == self.judge else noise) for agent, network in networks.items()}
        return play_episodes(BatchedPlay(self.scenario), own, self.id_B, self.seed_B)

    def _before(self, main_BRACM: Tensor, round_: int, networks: Mapping[str, nn.Module]) -> dict[str, Policy]:
        """Agent -> its policy in a round after these messages; every copy has a turn."""
        past_BRACM = main_BRACM.clone()
        past_BRACM[:, round_:] = -1
        play = BatchedPlay(self.scenario)
        play.go_on(self.id_B, self.seed_B, past_BRACM, round_)
        asked = policies(play, {agent: Player(network) for agent, network in networks.items()})
        return {agent: policy for agent, (_, policy) in asked.items()}

    def _accepts(self, judge: nn.Module, main_BRACM: Tensor) -> Tensor:
        """(B,): the probability of acceptance among both verdicts, after these messages."""
        decision_BD = self._before(main_BRACM, self.last, {**self.kept[-1], self.judge: judge})[self.judge].decision
        assert decision_BD is not None
        return torch.softmax(decision_BD[:, :2], -1)[:, ACCEPT]

    def _silenced(self, rollout: Rollout) -> Tensor:
        main_BRACM = rollout.main_BRACM.clone()
        main_BRACM[:, :, [self.protocol.agents.index(agent) for agent in self.protocol.provers]] = -1
        return main_BRACM

    def _messages(self, main_BRACM: Tensor) -> dict[str, float]:
        """Entropy of provers' messages, and their divergence from those of the first test; means over turns."""
        entropies, divergences = [], []
        for round_ in range(self.last):
            now = self._before(main_BRACM, round_, self.kept[-1])
            first = self._before(main_BRACM, round_, self.kept[0])
            for agent in now.keys() & set(self.protocol.provers):
                entropies.append(float(now[agent].entropy().mean()))
                divergences.append(float(now[agent].kl(first[agent]).mean()))
        return {
            "entropy": sum(entropies) / len(entropies),
            "divergence": sum(divergences) / len(divergences),
        }

    def _exact(self, networks: Mapping[str, nn.Module]) -> float:
        """The share of false claims that the most likely verdict accepts after the best messages."""
        false_I = self.ids[self.scenario.label_I[self.ids] == 0]
        attackers = attacking_agents(self.protocol, ACCEPT)
        tree = MessageTree(self.scenario, networks, attackers, ACCEPT, ("greedy",), MOST_NODES)
        return float(tree.values(false_I, episode_seeds(self.seed, 0, len(false_I)))[:, 0, 0].mean())


if __name__ == "__main__":
    main()
