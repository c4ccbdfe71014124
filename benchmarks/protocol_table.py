"""All protocols on equal terms, on graph isomorphism and on digits: the trials of `tune_configs/protocols_*.yaml`,
recorded as they end.

    nip-ray data graph-isomorphism --pairs 1000 --seed 1 --exclude PUBLISHED_TEST.npz --out VALIDATION.npz
    python benchmarks/protocol_table.py gi train --test PUBLISHED_TEST.npz --out runs  # five seeds by the recipe
    python benchmarks/protocol_table.py gi tune --test VALIDATION.npz --out runs       # learning rates by PPO alone
    python benchmarks/protocol_table.py gi plain --test PUBLISHED_TEST.npz --out runs  # five seeds by PPO alone
    python benchmarks/protocol_table.py digits train --out runs                        # the rest alike
    python benchmarks/protocol_table.py page                                           # docs/results.md and its figures

Tuning of digits holds training images out. PPO alone has neither the search nor the gradient of every verdict, encodes
all channels at once, and has twice the episodes; the recorded runs on graphs are older and have fewer. Finished trials
are in `benchmarks/protocols_TASK.json`, with their settings, and are not run again: so the trials may be spread over
many days and machines. An interrupted command continues with the unfinished trials.
"""

import argparse
import io
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml
from _common import NIP_RAY, ROOT, machine
from _protocol_table_page import write_page
from PIL import Image

RATES = {"gi": (3e-4, 6e-4, 1.2e-3, 2.4e-3), "digits": (1.5e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2)}
"""Task -> learning rates tried for PPO alone."""
SEEDS = {"tune": (90, 91, 92), "train": (400, 401, 402, 403, 404), "plain": (400, 401, 402, 403, 404)}
PARTS = tuple(SEEDS)
KEPT = ("estimate", "lower", "upper", "n")


def main() -> None:
    """Tune, train, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=[*RATES, "page"])
    parser.add_argument("command", choices=PARTS, nargs="?")
    parser.add_argument(
        "--test",
        type=Path,
        help="Held-out pairs of graphs: for tuning a validation split, for training the published one.",
    )
    parser.add_argument("--out", type=Path, default=Path("runs"), help="Where the sweeps' folders are made.")
    parser.add_argument("--seeds", type=int, nargs="+", help="Five, and three others for tuning.")
    parser.add_argument("--cases", nargs="+", help="Some protocols alone, by their names in the config.")
    parser.add_argument("--concurrent", type=int, default=1, help="Trials at once, each on a thread of its own.")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that a sweep does not outlive this
    task, command, out = options.task, options.command, options.out.resolve()
    if task == "page":
        write_page({each: recorded(each) for each in RATES})
        return
    if command is None:
        parser.error(f"{', '.join(PARTS[:-1])} or {PARTS[-1]}?")
    if (options.test is None) == (task == "gi"):
        parser.error("--test FILE is needed with gi, and with it alone")
    print(machine(), flush=True)
    if task == "gi":
        data = {"test": str(options.test.resolve())}
    else:
        data = {"source": "files", "train": str(training_digits(out))} if command == "tune" else {}
    for seed in options.seeds or SEEDS[command]:
        folder = out / f"protocols-{task}-{command}-{seed}"
        for earlier in sorted(out.glob(f"{folder.name}*/sweep.yaml")):  # of a command that was interrupted
            record(earlier.parent, task, command)
        if sweep := missing(task, command, seed, data, options.cases):
            sweep["sweep"]["max_concurrent"] = options.concurrent
            run(sweep, folder, task, command)


def training_digits(out: Path) -> Path:
    """A file of only the training images, of which tuning holds a share out, so that it never sees the test images."""
    from nip_ray.scenarios.image_classification.images import load_images
    from nip_ray.settings.image_classification import ImageDataSettings

    images, _ = load_images(ImageDataSettings())
    rows = [
        {"image": {"bytes": png(pixels_HW * (255 // images.levels)), "path": None}}
        for pixels_HW in images.pixels_ICHW[:, 0]
    ]
    table = pyarrow.Table.from_pylist(
        [{**row, "label": label} for row, label in zip(rows, images.class_I.tolist(), strict=True)]
    )
    out.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, out / "digits-training.parquet")
    return out / "digits-training.parquet"


def png(pixels_HW: Any) -> bytes:
    """A grey image."""
    file = io.BytesIO()
    Image.fromarray(pixels_HW.numpy()).save(file, "PNG")
    return file.getvalue()


def missing(
    task: str, command: str, seed: int, held_out: Mapping[str, str], cases: Sequence[str] | None
) -> dict[str, Any]:
    """The sweep of the trials of a seed that are not recorded; {} if none is missing. held_out: changes of
    scenario.data."""
    data = yaml.safe_load((ROOT / "tune_configs" / f"protocols_{task}.yaml").read_text())
    known, usual = recorded(task), float(data["algorithm"]["lr"])
    done = {(row["case"], row["lr"]) for row in known[command] if row["seed"] == seed}
    data["scenario"]["data"] |= held_out
    if command != "train":
        data = alone(data)
    if command == "tune":
        data |= {"iterations": data["iterations"] // 4, "checkpoint": {"interval": data["iterations"]}}
        data["evaluation"]["attack"] = {"enabled": False}
    made = {}
    for case, change in data["sweep"]["cases"].items():
        rates = (
            RATES[task] if command == "tune" else (tuned(known["tune"], case, usual) if command == "plain" else usual,)
        )
        for rate in rates:
            if (cases is None or case in cases) and (case, rate) not in done:
                made[f"{case} | {rate:g}"] = laid_over(change, {"algorithm": {"lr": rate}})
    data["sweep"] |= {"seeds": [seed], "cases": made}
    return data if made else {}


def alone(data: dict[str, Any]) -> dict[str, Any]:
    """The config for PPO alone; see the module."""
    changed = laid_over(data, {"iterations": 2 * data["iterations"], "algorithm": {"verdict_gradient": "sampled"}})
    changed["search"] = None
    every = [changed, *changed["sweep"]["cases"].values()]
    for settings in (agent for part in every for agent in part.get("scenario", {}).get("agents", {}).values()):
        settings.pop("channels", None)
    return changed


def tuned(rows: Sequence[Mapping[str, Any]], case: str, usual: float) -> float:
    """The learning rate with the best median accuracy over the tuning seeds; `usual` if the protocol was not tuned."""
    found: dict[float, list[float]] = {}
    for row in rows:
        if row["case"] == case:
            found.setdefault(row["lr"], []).append(row["accuracy"]["estimate"])
    return max(found, key=lambda rate: median(found[rate])) if found else usual


def laid_over(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with `changes`, mappings key by key."""
    made = deepcopy(dict(data))
    for key, value in changes.items():
        old = made.get(key)
        made[key] = laid_over(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return made


def run(sweep: dict[str, Any], folder: Path, task: str, command: str) -> None:
    """Run the sweep, and record finished trials, also if the sweep is interrupted."""
    earlier = set(folder.parent.glob(f"{folder.name}*/sweep.yaml"))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        sweep["sweep"]["storage_path"] = str(folder.parent)
        yaml.safe_dump(sweep | {"name": folder.name}, file, sort_keys=False)
        file.flush()
        process = subprocess.Popen([NIP_RAY, "sweep", file.name, "--quiet"])
        made = None
        try:
            while process.poll() is None:
                made = made or next(
                    (path for path in folder.parent.glob(f"{folder.name}*/sweep.yaml") if path not in earlier), None
                )
                if made is not None:
                    record(made.parent, task, command)
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.terminate()
            process.wait()
            if made is not None:
                record(made.parent, task, command)
    if process.returncode:
        raise SystemExit(f"{folder.name}: nip-ray sweep ended with {process.returncode}")


def record(folder: Path, task: str, command: str) -> None:
    """Record the finished trials of a sweep's folder."""
    known = recorded(task)
    rows = known[command]
    seen = {(row["case"], row["lr"], row["seed"]) for row in rows}
    for row in ended(folder, command):
        if (row["case"], row["lr"], row["seed"]) not in seen:
            rows.append(row)
            print(
                json.dumps({key: row[key] for key in ("case", "lr", "seed", "accuracy", "soundness_error")}), flush=True
            )
    rows.sort(key=lambda row: (row["case"], row["lr"], row["seed"]))
    lines = (f' "{part}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in known[part]) + "\n ]" for part in PARTS)
    record_of(task).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def ended(folder: Path, command: str) -> Iterator[dict[str, Any]]:
    """A row for each trial that was played to its end and evaluated."""
    for place in sorted((folder / "trials").glob("*/run.json")):
        found, run_dir = json.loads(place.read_text()), place.parent
        if not found.get("finished") or not (run_dir / "evaluation.json").exists():
            continue
        config = yaml.safe_load((run_dir / "config.yaml").read_text())
        document = json.loads((run_dir / "evaluation.json").read_text())
        metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        case = case_of(folder, run_dir.name).split(" | ")[0]
        figures = {
            key: kept(document["greedy"].get(f"verifier/{key}"))
            for key in ("accuracy", "completeness", "soundness", "undecided")
        }
        yield {
            "case": case,
            "lr": config["algorithm"]["lr"],
            "seed": config["seed"],
            "iterations": config["iterations"],
            "env_steps": config["iterations"] * config["play"]["num_copies"] * rounds_of(config),
            **figures,
            "searched": kept(document.get("searched", {}).get("verifier/accuracy")),
            "soundness_error": (
                kept(document.get("soundness_error")) | {"by": (document.get("soundness_error") or {}).get("by")}
            ),
            "completeness_error": completeness_error(document),
            "curve": [
                [row["iteration"], row["eval/verifier/accuracy"]] for row in metrics if "eval/verifier/accuracy" in row
            ],
            "overlap": document.get("overlap"),
            "minutes": round(sum(row.get("time/iteration_s", 0.0) for row in metrics) / 60, 2),
        }


def completeness_error(document: Mapping[str, Any]) -> dict[str, Any]:
    """The share of true claims that are not accepted over all messages, else under the chosen attacker; {} if no agent
    attacks them."""
    every = document.get("attack", {}).get("completeness", {}).get("every_message")
    right = every or document.get("completeness_under_attack")
    if right is None:
        return {}
    ends = {
        "estimate": 1 - right["estimate"],
        "lower": 1 - right["upper"],
        "upper": 1 - right["lower"],
        "n": right["n"],
    }
    return ends | {"by": "every_message" if every else right.get("attacker")}


def case_of(folder: Path, trial: str) -> str:
    """The name of a trial's case: trials are numbered in the order of the sweep's cases."""
    cases = list(yaml.safe_load((folder / "sweep.yaml").read_text())["sweep"]["cases"])
    return cases[int(trial.split("-")[0].split("_")[-1])]


def rounds_of(config: Mapping[str, Any]) -> int:
    """Rounds of an episode; all have the same number."""
    fixed = {"adp": 2, "merlin_arthur": 2, "helpful_sneaky": 2, "solo_verifier": 1}
    protocol = config["protocol"]
    return fixed.get(protocol["name"]) or protocol["max_rounds"]


def kept(figure: Mapping[str, Any] | None) -> dict[str, Any]:
    """An estimate with its interval."""
    return {} if figure is None else {key: figure[key] for key in KEPT}


def recorded(task: str) -> dict[str, list[dict[str, Any]]]:
    """The finished trials so far."""
    written = json.loads(record_of(task).read_text()) if record_of(task).exists() else {}
    return {part: written.get(part, []) for part in PARTS}


def record_of(task: str) -> Path:
    """The file of finished trials."""
    return ROOT / "benchmarks" / f"protocols_{task}.json"


if __name__ == "__main__":
    main()
