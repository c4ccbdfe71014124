"""Does training succeed on a processor that rounds differently? The quickstart with every initial weight multiplied by
1 + 1e-6 noise.

    python benchmarks/rounding.py --draws 5

Rounding differs between processors, numbers of threads and kernels, and a borderline run may succeed or fail. Here it
differs on purpose: same seed, other noise in each draw. Shown are the last evaluation's accuracy and, over all
messages, the soundness error.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from nip_ray.config.load import load_config
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from nip_ray.seeding import stable_seed

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Draw by draw."""
    from _common import machine, show  # beside this file, not visible to tests

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], help="Further settings.")
    arguments = parser.parse_args()
    print(machine())
    for draw in range(arguments.draws):
        show(f"quickstart, draw {draw}", perturbed(draw, arguments.set))


def perturbed(draw: int, settings: list[str]) -> dict[str, Any]:
    """The result of a run whose initial weights have the noise of this draw."""
    build = GraphIsomorphism.build_agent

    def rounded(self: GraphIsomorphism, agent: str, seed: int) -> Any:
        network = build(self, agent, seed)
        noise = torch.Generator().manual_seed(stable_seed(draw, agent))
        with torch.no_grad():
            for weight in network.parameters():
                weight.mul_(1 + 1e-6 * torch.randn(weight.shape, generator=noise))
        return network

    GraphIsomorphism.build_agent = rounded  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            config = load_config(ROOT / "tune_configs" / "quickstart.yaml", ["evaluation.interval=0", *settings])
            run = run_experiment(config, Path(folder) / "run", quiet=True)
            told = json.loads((run.run_dir / "evaluation.json").read_text(encoding="utf-8"))
            return {
                "accuracy": run.metrics["eval/verifier/accuracy"],
                "soundness error": told["soundness_error"]["estimate"],
            }
    finally:
        GraphIsomorphism.build_agent = build  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
