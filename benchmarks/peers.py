"""nip_ray beside its peers: each in an environment of its own, the same work, in turns with ours.

    make peers                                            # all of it, at most two hours
    python benchmarks/peers.py run --only B1 --peers skrl # some of it
    python benchmarks/peers.py page                       # docs/peers.md from the recorded pairs

Decisions that matter here:
- a pair is one process of the peer and one of ours with the same seed, on one thread, one after the other; the next
  pair has the other order. The interval is that of `benchmarks/gate.py`;
- every pair is in `benchmarks/peers.json` when it ends, with versions, commands, machine and the yardstick before it.
  Recorded pairs are not run again, so an interrupted command continues. A peer that does not install or fails is a row
  with the error, which is tried again;
- environments are in `.venv-peers`, made by uv where it is on the path. No cell begins after --hours;
- a script of `benchmarks/peers` is what a user would write, and prints one line of JSON; its lines of code are counted,
  without those of the stopwatch. Ours is a config, whose lines are counted alike.
"""

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from _common import ROOT, machine, yardstick_ms
from gate import commit_of

HERE = ROOT / "benchmarks" / "peers"
RECORD = ROOT / "benchmarks" / "peers.json"
VENVS = ROOT / ".venv-peers"
LIMIT_S = 420.0
"""Of one process."""
TORCH = "torch==2.13.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DOOR = f"-e {ROOT}"

ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "rllib": (TORCH, "ray[rllib]==2.60.0", DOOR),
    "torchrl": (TORCH, "torchrl==0.14.1", DOOR),
    "skrl": (TORCH, "skrl==2.1.1", "tensorboard", DOOR),
    "benchmarl": (TORCH, "benchmarl==1.5.2", DOOR),
    "tianshou": (TORCH, "tianshou==2.0.1", DOOR),
    "sb3": (TORCH, "stable-baselines3==2.9.2", DOOR),
    "openspiel": (TORCH, "open_spiel==2.0.2"),
    "jaxmarl": ("jaxmarl==0.2.0",),
    "trl": (TORCH, "trl==1.16.0", "peft==0.21.2"),
    "comlrl": (TORCH, "comlrl==1.4.3"),
}
"""Environment -> its requirements."""


@dataclass(frozen=True)
class Cell:
    """A peer in a bench. script, ours: files of benchmarks/peers with their arguments. config: what a user of ours
    writes, if not that script. needs: both take `--run FOLDER`, a trained "run" of the message game or a tiny language
    "model"."""

    bench: str
    peer: str
    environment: str
    script: Sequence[str]
    ours: Sequence[str]
    config: str = "message_game.yaml"
    pairs: int = 5
    needs: str = ""

    @property
    def name(self) -> str:
        """Its key in the record."""
        return f"{self.bench} {self.peer}"


LIMITS = ("--seconds", "10", "--cap", "60")
SHORT_KUHN = "algorithm.lr=0.01,algorithm.average_weights=null,algorithm.entropy_coefficient=0.1"
SHORT_LEDUC = "algorithm.lr=0.03,play.num_copies=600,algorithm.minibatch_size=4800"
"""The shipped configs are for two and for ten minutes."""


def game(peer: str, name: str, **more: Any) -> Cell:
    """The message game."""
    ours = ("message_game_nip_ray.py", *LIMITS)
    return Cell("B1", peer, name, (f"message_game_{name}.py", *LIMITS), ours, **more)


def poker(peer: str, name: str, seconds: str, variant: str, changes: str = "") -> Cell:
    """A game of poker, in equal seconds."""
    common = ("--game", f"{name}_poker", "--seconds", seconds)
    ours = ("poker_nip_ray.py", *common, *(("--variant", changes) if changes else ()))
    theirs = ("poker_openspiel.py", *common, "--variant", variant)
    return Cell("B2", f"{peer}, {name.capitalize()}", "openspiel", theirs, ours, f"{name}_poker.yaml")


def cartpole(peer: str, name: str, script: str, variant: str = "", ours: str = "") -> Cell:
    """CartPole, in the same driver or by the same rule. ours: our variant of another name."""
    theirs, own = (
        (*LIMITS, "--bar", "475", *(("--variant", one) if one else ())) for one in (variant, ours or variant)
    )
    work = (f"cartpole_{script}.py", *theirs), ("cartpole_nip_ray.py", *own)
    return Cell("B6", peer, name, *work, "runner_cartpole.yaml")


SEEDS = ("--seconds", "10", "--cap", "90")
WORDS = (*LIMITS, "--bar", "0.95")
LORA = ("--seconds", "180", "--cap", "180", "--variant", "lora")
ADAPTERS = ("language_nip_ray.py", *LORA)
TWO = ("language_nip_ray.py", *WORDS, "--variant", "two")
CELLS = [
    game("Stable-Baselines3, one seat", "sb3", needs="run"),
    game("Tianshou, one seat", "tianshou", needs="run"),
    game("skrl", "skrl"),
    game("TorchRL", "torchrl"),
    game("BenchMARL", "benchmarl"),
    game("RLlib", "rllib"),
    poker("OpenSpiel, CFR", "kuhn", "20", "cfr", SHORT_KUHN),
    poker("OpenSpiel, PPO", "kuhn", "20", "ppo", SHORT_KUHN),
    poker("OpenSpiel, CFR", "leduc", "40", "cfr", SHORT_LEDUC),
    poker("OpenSpiel, PPO", "leduc", "40", "ppo", SHORT_LEDUC),
    cartpole("Stable-Baselines3, PPO", "sb3", "sb3"),
    cartpole("CleanRL's script, PPO", "skrl", "cleanrl"),
    cartpole("skrl, sequential, PPO", "skrl", "skrl", "sequential"),
    cartpole("skrl, step, PPO", "skrl", "skrl", "step"),
    cartpole("skrl, sequential, DQN", "skrl", "skrl", "dqn"),
    cartpole("Stable-Baselines3, DQN", "sb3", "sb3", "dqn", "dqn_huber"),
    Cell("B4", "JaxMARL, 8 seeds", "jaxmarl", ("message_game_jaxmarl.py", *SEEDS), ("seeds_nip_ray.py", *SEEDS)),
    Cell("B3", "TRL, GRPO", "trl", ("language_trl.py", *WORDS), ("language_nip_ray.py", *WORDS), "", needs="model"),
    Cell(
        "B3", "TRL, GRPO, SmolLM2", "trl", ("language_trl.py", *LORA), ("language_nip_ray.py", *LORA), "", 3, "smollm2"
    ),
    Cell("B3", "CoMLRL, MAGRPO, two models", "comlrl", ("language_comlrl.py", *WORDS), TWO, "", needs="model"),
]


@dataclass
class Row:
    """The record of a cell."""

    bench: str
    peer: str
    requirements: list[str]
    command: str
    ours: str
    machine: str
    lines: dict[str, int]
    pairs: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None


def main() -> None:
    """Run, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "page"))
    parser.add_argument("--only", nargs="+", help="Benches, such as B1.")
    parser.add_argument("--peers", nargs="+", help="Peers, by a part of their names.")
    parser.add_argument("--pairs", type=int, help="Pairs of each cell, in place of its own number.")
    parser.add_argument("--hours", type=float, default=2.0, help="No cell begins later.")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    if options.command == "run":
        wanted = [cell for cell in CELLS if not options.only or cell.bench in options.only]
        named = [part.lower() for part in options.peers or [""]]
        wanted = [cell for cell in wanted if any(part in cell.peer.lower() for part in named)]
        run(wanted, options.record, options.hours, options.pairs)
    else:
        from _peers_page import write_page

        write_page(recorded(options.record), [cell.name for cell in CELLS])


def run(cells: Sequence[Cell], record: Path, hours: float, pairs: int | None = None) -> None:
    """Add the missing pairs of each cell."""
    end = time.monotonic() + hours * 3600
    for cell in cells:
        known, row = recorded(record).get(cell.name), new_row(cell)
        if known is not None and same_work(known, row):
            row.pairs = known["pairs"]
        wanted = pairs or cell.pairs
        if len(row.pairs) >= wanted:
            continue
        if time.monotonic() > end:
            print(f"{cell.name}: left for the next run, {hours:g} hours are over", flush=True)
            continue
        try:
            python = environment(cell.environment)
            more = ("--run", str(NEEDS[cell.needs]())) if cell.needs else ()
            while len(row.pairs) < wanted:
                row.pairs.append(pair(cell, python, len(row.pairs), more))
                keep(record, cell.name, row)
                print(cell.name, brief(row.pairs[-1]), flush=True)
        except RuntimeError as error:
            row.error = str(error)
            print(f"{cell.name}: {str(error)[-300:]}", flush=True)
        keep(record, cell.name, row)


def new_row(cell: Cell) -> Row:
    """A row without pairs."""
    shown = [part.replace(f"{ROOT}", ".") for part in ENVIRONMENTS[cell.environment]]
    command = f".venv-peers/{cell.environment}/bin/python benchmarks/peers/{' '.join(cell.script)}"
    ours = f"python benchmarks/peers/{' '.join(cell.ours)}"
    ours_lines = lines_of_config(cell.config) if cell.config else lines_of_code(HERE / cell.ours[0])
    lines = {"peer": lines_of_code(HERE / cell.script[0]), "ours": ours_lines}
    return Row(cell.bench, cell.peer, shown, command, ours, machine(), lines)


def same_work(known: dict[str, Any], row: Row) -> bool:
    """True if recorded pairs are of the same commands and versions."""
    return all(known[key] == getattr(row, key) for key in ("requirements", "command", "ours"))


def pair(cell: Cell, python: Path, number: int, more: Sequence[str]) -> dict[str, Any]:
    """One process of each, of seed `number`."""
    found: dict[str, Any] = {
        "commit": commit_of("HEAD")[:8],
        "yardstick_ms": round(yardstick_ms(), 1),
        "load": round(os.getloadavg()[0], 1),
    }
    sides = {"peer": (python, cell.script), "ours": (Path(sys.executable), cell.ours)}
    for side in sorted(sides, reverse=number % 2 == 0):
        interpreter, (script, *arguments) = sides[side]
        found[side] = result_of([str(interpreter), str(HERE / script), *arguments, "--seed", str(number), *more])
    return found


def result_of(command: Sequence[str]) -> dict[str, Any]:
    """The last line of JSON that a script prints. Raises RuntimeError with the end of its output if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
    environment |= {"HF_HUB_OFFLINE": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    environment |= {"PEERS_REFEREE": str(VENVS / "openspiel" / "bin" / "python"), "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[1]}: no result in {LIMIT_S:.0f} s") from None
    rows = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not rows:
        raise RuntimeError(f"{Path(command[1]).name}: {(done.stderr or done.stdout)[-1500:]}")
    return json.loads(rows[-1])


def environment(name: str) -> Path:
    """The interpreter of a peer's environment, which is made unless it is there. Raises RuntimeError with the end of
    the installer's output."""
    python, done = VENVS / name / "bin" / "python", VENVS / name / ".installed"
    wanted = "\n".join(ENVIRONMENTS[name])
    if done.exists() and done.read_text() == wanted:
        return python
    parts = [part for requirement in ENVIRONMENTS[name] for part in requirement.split(" ")]
    uv = shutil.which("uv")
    if uv:
        begin = [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(python.parents[1])]
        install = [uv, "pip", "install", "--quiet", "--python", str(python)]
        tries = [[*install, "--torch-backend", "cpu", *parts], [*install, *parts]]  # the CPU builds' index may be away
    else:
        begin = [sys.executable, "-m", "venv", "--clear", str(python.parents[1])]
        tries = [[str(python), "-m", "pip", "install", "-qq", "--extra-index-url", CPU_INDEX, *parts]]
    subprocess.run(begin, check=True, capture_output=True)
    error = ""
    for command in tries:
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode == 0:
            done.write_text(wanted)
            return python
        error = made.stderr
    raise RuntimeError(f"does not install: {error[-1500:]}")


def nip_ray(*arguments: str) -> None:
    """Run our command. Raises RuntimeError with the end of its errors."""
    command = [sys.executable, "-m", "nip_ray.cli", *arguments]
    made = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if made.returncode:
        raise RuntimeError(f"nip-ray {arguments[0]} failed: {made.stderr[-1500:]}")


def trained_run() -> Path:
    """A run of the message game, whose prover is in the other seat; made once."""
    folder = VENVS / "message_game"
    if not (folder / "run.json").exists() or not json.loads((folder / "run.json").read_text()).get("finished"):
        shutil.rmtree(folder, ignore_errors=True)
        config = str(ROOT / "tune_configs" / "message_game.yaml")
        nip_ray("train", config, "--run-dir", str(folder), "--quiet", "--set", "runtime.num_threads=1")
    return folder


def tiny_model() -> Path:
    """The language model of benchmarks/policy_gradient.py; written once."""
    folder = VENVS / "tiny_model"
    if not (folder / "tokenizer.json").exists():
        from policy_gradient import write_model

        folder.mkdir(parents=True, exist_ok=True)
        write_model(folder)
    return folder


def smollm2() -> Path:
    """SmolLM2-135M, from its package; written once."""
    folder = VENVS / "smollm2"
    if not (folder / "config.json").exists():
        nip_ray("model", "smollm2-135m", "--out", str(folder))
    return folder


NEEDS = {"run": trained_run, "model": tiny_model, "smollm2": smollm2}


def lines_of_code(path: Path) -> int:
    """Lines with code, without docstrings, and without those of the stopwatch."""
    text = path.read_text()
    lines = text.splitlines()
    strings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code = [line.strip() for number, line in enumerate(lines, 1) if number not in strings]
    return sum(bool(line) and not line.startswith("#") and "clock" not in line.lower() for line in code)


def lines_of_config(name: str) -> int:
    """Lines with a key."""
    lines = (line.strip() for line in (ROOT / "tune_configs" / name).read_text().splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def brief(found: dict[str, Any]) -> str:
    """One line on a pair."""
    return json.dumps(
        {side: {key: found[side][key] for key in SHOWN if key in found[side]} for side in ("peer", "ours")}
    )


SHOWN = ("steps_per_s", "solved_s", "score", "to_0.05", "final")


def recorded(record: Path) -> dict[str, dict[str, Any]]:
    """Cell -> its row."""
    return json.loads(record.read_text()) if record.exists() else {}


def keep(record: Path, name: str, row: Row) -> None:
    """Write a row; a reader never sees half a file."""
    rows = dict(sorted({**recorded(record), name: asdict(row)}.items()))
    part = record.with_suffix(".part")
    part.write_text(json.dumps(rows, indent=1) + "\n")
    part.replace(record)


if __name__ == "__main__":
    main()
