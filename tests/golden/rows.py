"""What the small runs of `tests/golden/configs` came to when their numbers were last taken on purpose, and how to take
them again.

    make golden                 # compares, as the test does
    make golden ARGS=--write    # records
    make golden ARGS="gi_nip_ppo --write"

A record, `recorded/NAME.json`, has the first rows of metrics (all digits, no times), for each trained module a SHA-256
over its weights and buffers and their Euclidean norm, and the machine that they were computed on. With the same torch
on the same kind of processor all must be equal to the last bit. Elsewhere sums of floats are taken in another order:
then numbers are compared to `TOLERANCE`, and sums not at all. Metrics that a record does not have yet are no
difference.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in (FOLDER / "configs").glob("*.yaml"))
TOLERANCE = 1e-5
"""Relative, or absolute below 1."""

_LEFT_OUT = re.compile(r"time/|.*_s$|version$")
Record = dict[str, Any]


def machine() -> dict[str, str]:
    """What the last bits depend on."""
    import torch

    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    kind = [
        found[1].strip()
        for key in ("vendor_id", "cpu family", "model")
        if (found := re.search(rf"^{key}\s*:(.*)$", cpu, re.MULTILINE))
    ]
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "processor": " ".join([platform.machine(), *kind, capability])}


def produce(name: str, folder: Path) -> Record:
    """Run a config in the empty folder `folder`, in this process."""
    path = FOLDER / "configs" / f"{name}.yaml"
    how = {"text": _text, "runner": _runner}.get(name.partition("_")[0], _experiment)
    weights = how(path, folder)
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "machine": machine(),
        "rows": [{key: row[key] for key in row if not _LEFT_OUT.match(key)} for row in rows],
        "weights": weights,
    }


def _experiment(path: Path, folder: Path) -> Record:
    from nip_ray.config.load import load_config
    from nip_ray.runs.experiment import run_experiment
    from nip_ray.storage.checkpoint import load_checkpoint

    run_experiment(load_config(path), folder / "run", quiet=True)
    return _digests(load_checkpoint(folder / "run" / "checkpoints").tensors["training"]["modules"])


def _runner(path: Path, folder: Path) -> Record:
    from nip_ray.drivers.runner import run_runner
    from nip_ray.storage.checkpoint import load_checkpoint

    run_runner(path, folder / "run", quiet=True)
    states = load_checkpoint(folder / "run" / "checkpoints").tensors
    return _digests({name: states[name]["parameters"] for name in states if name.startswith("agent_")})


def _text(path: Path, folder: Path) -> Record:
    """Of what the provider was sent to learn from: it has no weights, but tables that follow from this."""
    from nip_ray.config.load import load_config
    from nip_ray.runs.experiment import run_experiment
    from tests.text import cooperation
    from tests.text.provider import API_KEY, provider_thread

    files = cooperation.write_items(folder)
    data = [f"scenario.data.{split}={file}" for split, file in files.items()]
    options = dict(roles=cooperation.roles(), situation="tests.text.cooperation:situation", prices=cooperation.PRICES)
    before = {key: os.environ.get(key) for key in ("OPENAI_API_KEY", "OPENAI_BASE_URL")}
    with provider_thread(folder, **options) as provider:
        os.environ.update(OPENAI_API_KEY=API_KEY, OPENAI_BASE_URL=provider.base_url)
        try:
            run_experiment(load_config(path, data), folder / "run", quiet=True)
        finally:
            for key, value in before.items():
                os.environ.pop(key) if value is None else os.environ.update({key: value})
        sent = sorted(hashlib.sha256(provider.content(file["id"])).hexdigest() for file in provider.files())
    return {f"training data {i}": {"sha256": digest} for i, digest in enumerate(sent)}


def _digests(modules: Mapping[str, Any]) -> Record:
    """Module -> SHA-256 over all its tensors, by name, and the norm of them all as one vector."""
    found: Record = {}
    for name, state in sorted(modules.items()):
        digest, square = hashlib.sha256(), 0.0
        for key, tensor in _tensors(state):
            digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
            square += float(tensor.double().pow(2).sum())
        found[name] = {"sha256": digest.hexdigest(), "norm": math.sqrt(square)}
    return found


def _tensors(state: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if hasattr(state, "dtype"):
        yield key, state
    elif isinstance(state, Mapping | list | tuple):
        parts = sorted(state.items()) if isinstance(state, Mapping) else enumerate(state)
        for part, value in parts:
            yield from _tensors(value, f"{key}.{part}")


def record_of(name: str) -> Path:
    """The file of a config's record: the one for this make of processor, where its run differs, else the common one."""
    make = machine()["processor"].split()[1:2]
    own = FOLDER / "recorded" / f"{'-'.join([name, *make])}.json"
    return own if own.exists() else own.with_name(f"{name}.json")


def recorded(name: str) -> Record:
    """The record of a config."""
    return json.loads(record_of(name).read_text(encoding="utf-8"))


def differences(expected: Record, found: Record) -> list[str]:
    """What is not as recorded, a line each, the first row first."""
    exact = expected["machine"] == found["machine"]
    lines = []
    if len(expected["rows"]) != len(found["rows"]):
        lines.append(f"{len(found['rows'])} rows, recorded {len(expected['rows'])}")
    for number, (before, now) in enumerate(zip(expected["rows"], found["rows"], strict=False), 1):
        lines += [f"row {number}  {line}" for line in _unlike(before, now, exact)]
    if expected["weights"].keys() != found["weights"].keys():
        return [*lines, f"weights of {sorted(found['weights'])}, recorded {sorted(expected['weights'])}"]
    for module, before in expected["weights"].items():
        kept = before if exact else {key: before[key] for key in before if key != "sha256"}
        lines += [f"weights of {module}  {line}" for line in _unlike(kept, found["weights"][module], exact)]
    return lines


def _unlike(expected: Mapping[str, Any], found: Mapping[str, Any], exact: bool) -> Iterator[str]:
    for key, before in expected.items():
        now = found.get(key, "missing")
        if before == now:
            continue
        numbers = isinstance(before, int | float) and isinstance(now, int | float)
        if not exact and numbers and abs(now - before) <= TOLERANCE * max(1.0, abs(before)):
            continue
        yield f"{key}: {now!r}, recorded {before!r}" + (f" (difference {now - before:.3g})" if numbers else "")


def how_compared(expected: Record, found: Record) -> str:
    """One line on how strictly."""
    if expected["machine"] == found["machine"]:
        return "compared to the last bit"
    before, now = (f"torch {on['torch']}, {on['processor']}" for on in (expected["machine"], found["machine"]))
    return f"compared to {TOLERANCE:g} only, without sums: recorded with {before}; this is {now}"


def main() -> int:
    """Compare, or record again."""
    parser = argparse.ArgumentParser(
        description="Compare the small runs of tests/golden with their records, or record them again."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a file in tests/golden/configs (default: all)")
    parser.add_argument("--write", action="store_true", help="record again")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(NAMES)):
        parser.error(f"{', '.join(unknown)}: expected names from {', '.join(NAMES)}")
    differ = 0
    for name in arguments.names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            found = produce(name, Path(folder))
        path = record_of(name)
        lines = differences(recorded(name), found) if path.exists() else ["no record"]
        if arguments.write and (lines or found != recorded(name)):
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(f"{name}: recorded" + (f", {len(lines)} differences" if lines else ""))
        else:
            differ += bool(lines)
            print(f"{name}: {'as recorded' if not lines else 'NOT as recorded'}, {how_compared(recorded(name), found)}")
            print("".join(f"  {line}\n" for line in lines), end="")
    return 1 if differ else 0


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    sys.exit(main())
