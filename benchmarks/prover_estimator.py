"""Where the sweep of tune_configs/prover_estimator.yaml stops, and in whom: exact worst cases of its trials, with the
estimator that was learned and with a truthful one.

    nip-ray sweep tune_configs/prover_estimator.yaml
    python benchmarks/prover_estimator.py runs/prover-estimator
"""

import argparse
from pathlib import Path
from typing import Any, cast

import torch
from _common import machine

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.evaluation.verbs.evaluate import bench, trained
from nip_ray.scenarios.state_tracking.estimates import Asked, Claims, truthful, worst_acceptance
from nip_ray.scenarios.state_tracking.scenario import StateTracking
from nip_ray.storage.checkpoint import kept_iterations, load_checkpoint
from nip_ray.storage.folder import CONFIG, RunFolder

TITLES = (
    "moves", "seed", "soundness, every prover", "the same, estimator truthful", "completeness, every estimator",
    "estimator's most likely answer is true",
)  # fmt: skip


def main() -> None:
    """Print a row for each finished trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="The sweep's folder.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    rows = [found(folder) for folder in sorted((options.sweep / "trials").iterdir()) if (folder / CONFIG).exists()]
    print("| " + " | ".join(TITLES) + " |\n" + "|---" * len(TITLES) + "|")
    for row in sorted(row for row in rows if row is not None):
        print(f"| {row[0]} | {row[1]} | " + " | ".join(f"{value:.3f}" for value in row[2:]) + " |")


def found(folder: Path) -> tuple[float, ...] | None:
    """The row of a trial's last checkpoint (None: it is not over)."""
    config = load_config(folder / CONFIG, checked=False)
    assert isinstance(config, ExperimentConfig)
    made, place = bench(folder, config, None, None), RunFolder.open(folder)
    if config.iterations not in kept_iterations(place.checkpoints):
        return None
    networks = trained(made, load_checkpoint(place.checkpoints, config.iterations))
    scenario = cast(StateTracking, made.examination.scenario)
    ids = scenario.ids("test")[: scenario.settings.num_exact]
    false = ids[scenario.label_I[ids] == 0]
    chains = scenario.chains.rows(false)
    with torch.no_grad():
        exact = scenario.exact_figures(networks)
        verifier, estimator = (scenario.asks(networks, agent, false) for agent in ("verifier", "estimator"))
        sound = 1 - float(worst_acceptance(chains, truthful(chains), verifier).mean())
        right = agreement(chains, estimator)
    return (
        scenario.settings.length,
        config.seed,
        exact["worst_case/soundness"],
        sound,
        exact["worst_case/completeness"],
        right,
    )


def agreement(chains: Any, estimator: Asked) -> float:
    """The share of first claims, with each middle state, about which an estimator's most likely answer is true."""
    count, states = len(chains.claim_I), 5
    item_N = torch.arange(count).repeat_interleave(states)
    nothing_N, zero_N = torch.full_like(item_N, -1), torch.zeros_like(item_N)
    at = Claims(
        item_N, zero_N, zero_N + chains.length, chains.state_IP[item_N, 0], chains.claim_I[item_N],
        torch.arange(states).repeat(count), nothing_N, nothing_N, zero_N, zero_N, zero_N,
    )  # fmt: skip
    return float((estimator(at).argmax(-1) == truthful(chains)(at).argmax(-1)).double().mean())


if __name__ == "__main__":
    main()
