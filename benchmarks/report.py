"""Time and size of a report: a run of 1,000 iterations with 20 graph transcripts, and a comparison of six runs.

    python benchmarks/report.py

Prints one JSON object. Targets: 5 s and 3 MB for a report. Times are of a new process, as for a user; ``cpu_s``
excludes the effect of other programs.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import yaml

from nip_ray.evaluation.intervals import proportion
from nip_ray.evaluation.transcripts import instance_pictures
from nip_ray.protocols import build
from nip_ray.scenarios.graph_isomorphism.create import write_dataset
from nip_ray.scenarios.graph_isomorphism.dataset import load_pairs
from nip_ray.scenarios.graph_isomorphism.generate import GeneratorSettings
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from nip_ray.settings.graph_isomorphism import GraphAgentSettings

ITERATIONS, EPISODES, ROUNDS = 1000, 20, 8


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        runs = [run_folder(folder / f"run-{seed}", seed) for seed in range(6)]
        report_s, report_cpu_s = timed("report", str(runs[0]))
        compare_s, compare_cpu_s = timed("compare", *map(str, runs), "--out", str(folder / "comparison.html"))
        found = {
            "report_s": report_s,
            "report_cpu_s": report_cpu_s,
            "report_bytes": (runs[0] / "report.html").stat().st_size,
            "compare_s": compare_s,
            "compare_cpu_s": compare_cpu_s,
            "compare_bytes": (folder / "comparison.html").stat().st_size,
            "iterations": ITERATIONS,
            "transcripts": EPISODES,
        }
    print(json.dumps(found))


def timed(*words: str) -> tuple[float, float]:
    """Wall seconds and processor seconds of `nip-ray WORDS`."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "nip_ray.cli", *words], check=True, stdout=subprocess.DEVNULL)
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(wall_s, 2), round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2)


def run_folder(path: Path, seed: int) -> Path:
    """A run folder like that of a long run; its metrics are invented, its graphs are real."""
    (path / "transcripts").mkdir(parents=True)
    noise = torch.rand(ITERATIONS, 12, generator=torch.Generator().manual_seed(seed)).tolist()
    rows = [row(i + 1, values) for i, values in enumerate(noise)]
    table = {
        f"verifier/{name}": proportion(700 + seed, 1000).record() for name in ("accuracy", "completeness", "soundness")
    }
    document = {
        "format": "nip_ray.evaluation",
        "version": 1,
        "iteration": ITERATIONS,
        "split": "test",
        "greedy": table,
        "sampled": table,
    }
    config = {"name": "long", "seed": seed, "iterations": ITERATIONS, "protocol": {"name": "nip"}}
    contents = {
        "config.yaml": yaml.safe_dump(config),
        "metrics.jsonl": "".join(json.dumps(one) + "\n" for one in rows),
        "evaluation.json": json.dumps(document),
        "transcripts/001000.jsonl": "".join(json.dumps(episode(i)) + "\n" for i in range(EPISODES)),
        "instances.json": json.dumps({"version": 1, "pictures": pictures(path)}),
    }
    for name, content in contents.items():
        (path / name).write_text(content, encoding="utf-8")
    return path


def row(iteration: int, noise: list[float]) -> dict[str, float]:
    """One iteration's metrics."""
    level = 0.5 + 0.4 * iteration / ITERATIONS
    names = (
        "accuracy",
        "completeness",
        "soundness",
        "undecided",
        "accuracy/wl_score=-1",
        "accuracy/wl_score=1",
        "accuracy/wl_score=2",
    )
    shares = {f"verifier/{name}": level + 0.05 * x for name, x in zip(names, noise, strict=False)}
    shares |= {"episode_length": 8 - 4 * level, "verifier/return": level, "prover/return": 1 - level}
    made: dict[str, float] = {
        "iteration": iteration,
        "version": 1,
        "time/iteration_s": 0.3,
        "time/sample_s": 0.1,
        "time/learn_s": 0.18,
    }
    made |= {f"train/{name}": value for name, value in shares.items()}
    made |= {f"learn/{agent}/entropy": 2.5 - level for agent in ("verifier", "prover")}
    return made | ({f"eval/{name}": value for name, value in shares.items()} if iteration % 10 == 0 else {})


def episode(instance: int) -> dict[str, object]:
    """An episode in which the verifier asks and the prover answers until the last round."""
    chances = {"reject": 0.2, "accept": 0.7, "continue": 0.1}
    rounds = []
    for r in range(ROUNDS):
        turn: dict[str, object] = {
            "agent": ("verifier", "prover")[r % 2],
            "channel": "main",
            "message": [(instance + r) % 7 + 11 * (r % 2)],
        }
        rounds.append(
            {"round": r, "turns": [turn | ({"decision": "continue", "probabilities": chances} if r % 2 == 0 else {})]}
        )
    judged = {"label": instance % 2, "verdict": ("reject", "accept")[instance % 3 % 2], "correct": instance % 3 == 0}
    return {"instance": instance, **judged, "length": ROUNDS, "rounds": rounds, "version": 1}


def pictures(folder: Path) -> dict[str, dict[str, object]]:
    """Pictures of generated pairs."""
    write_dataset(folder / "pairs.npz", EPISODES, 0, GeneratorSettings())
    pairs = load_pairs(folder / "pairs.npz")
    protocol = build("nip")
    return instance_pictures(
        GraphIsomorphism(protocol, pairs, pairs, dict.fromkeys(protocol.agents, GraphAgentSettings())), range(EPISODES)
    )


if __name__ == "__main__":
    main()
