"""The value of a prover on handwritten digits: held-out accuracy of one small verifier alone, with a random prover, and
under nip.

    python benchmarks/digits.py
    python benchmarks/digits.py --seeds 0 --players nip debate

Prints, for each seed, accuracy on held-out images with its 95 % interval, accuracy on both labels, and seconds; then
the machine's yardstick. Run folders go into a temporary folder.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from _common import config, show, yardstick_ms

from nip_ray.cluster.process import prepare_process
from nip_ray.runs.experiment import run_experiment

PLAYERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "alone": ("digits_solo", ()),
    "alone, whole sight": ("digits_solo", ("scenario.agents.verifier.sight=whole",)),
    "random prover": ("digits_nip", ("scenario.agents.prover.kind=random",)),
    "nip": ("digits_nip", ()),
    "debate": ("digits_debate", ()),
}
SHOWN = ("accuracy", "completeness", "soundness")


def main() -> None:
    """Train and evaluate all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--players", nargs="*", choices=list(PLAYERS), default=["alone", "random prover", "nip"])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    prepare_process(arguments.threads)
    for player in arguments.players:
        for seed in arguments.seeds:
            name, overrides = PLAYERS[player]
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                settings = (*overrides, f"seed={seed}", f"runtime.num_threads={arguments.threads}")
                run_experiment(config(name, *settings), Path(folder) / "run", quiet=True)
                seconds = time.perf_counter() - start
                figures = examined(Path(folder) / "run")
            show(player, {"seed": seed, **figures, "seconds": round(seconds)})
    show("machine", {"yardstick_ms": round(yardstick_ms(), 1)})


def examined(folder: Path) -> dict[str, float | list[float]]:
    """Shares of the last evaluation, with the most likely actions, and the interval of the first."""
    found = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["greedy"]
    records = {key: found[f"verifier/{key}"] for key in SHOWN}
    interval = [round(records[SHOWN[0]][end], 3) for end in ("lower", "upper")]
    return {**{key: round(record["estimate"], 3) for key, record in records.items()}, "interval": interval}


if __name__ == "__main__":
    main()
