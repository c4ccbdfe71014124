"""Runs whose calls between Ray's processes are lost, answered in vain or late, beside undisturbed ones.

    python -m tests.chaos.network SEED [SEED ...]     # a case each; "0-99" is a range

Decisions that matter here:
- the seed draws the case: what runs, which RPC, and how it fails. Ray draws which calls fail, in every process from a
  seed of its own that nobody can set: a replay repeats the case, not the moments;
- faults are Ray's own (`RAY_testing_rpc_failure`, `RAY_testing_asio_delay_us`), set before Ray starts, in a process and
  a Ray of its own;
- Ray's logs name every call that it failed. A case in which none failed proves nothing and counts as failed, but for
  delays, of which nothing is logged: there, a call to an actor, before the run, must have taken as long as the delay.
"""

import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray

from nip_ray.config.load import config_from_dict
from nip_ray.runs.experiment import run_experiment
from nip_ray.sweeps.run import run_sweep
from nip_ray.sweeps.spec import parse_sweep
from tests.chaos.driver import ROOT, config, figures, weights
from tests.text import cooperation

RUNS = {"play": (2, 0), "learning": (0, 2), "sweep": (0, 0), "text": (0, 0)}
"""What runs -> env runners, learners. A sweep has two trials, language agents (whose replies are drawn) two rollout
workers."""
KINDS = {"request": "req", "reply": "resp", "in flight": "in_flight"}
"""How a call fails -> Ray's name of it."""
GCS = "ray::rpc::{}GcsService.grpc_client.{}"
RPCS = (
    GCS.format("InternalKV", "InternalKVGet"),
    GCS.format("NodeInfo", "GetAllNodeInfo"),
    GCS.format("WorkerInfo", "AddWorkerInfo"),
    GCS.format("ActorInfo", "RegisterActor"),
    GCS.format("ActorInfo", "CreateActor"),
    GCS.format("ActorInfo", "GetActorInfo"),
)
"""Those that the runs make, as Ray's logs have them."""
PERCENT = 25
DELAY_US = (20_000, 60_000)
DELAYED = "CoreWorkerService.grpc_server.PushTask"
LIMIT_S = 400.0


@dataclass(frozen=True)
class Case:
    """What runs, which RPC fails, and how; `delay` delays every task that a process is given."""

    seed: int
    runs: str
    kind: str
    rpc: str

    def environment(self) -> dict[str, str]:
        if self.kind == "delay":
            return {"RAY_testing_asio_delay_us": f"{self.rpc}={DELAY_US[0]}:{DELAY_US[1]}"}
        kind = KINDS[self.kind]  # the first call of each process, since there may be few, and then so many of a hundred
        faults = {"num_failures": -1, f"{kind}_failure_prob": PERCENT, f"num_lower_bound_{kind}_failures": 1}
        return {"RAY_testing_rpc_failure": json.dumps({self.rpc: faults})}


def draw(seed: int) -> Case:
    """The case of a seed. Four that follow each other fail in four ways."""
    dice = random.Random(f"network {seed}")
    kind = (*KINDS, "delay")[seed % 4]
    return Case(seed, dice.choice(list(RUNS)), kind, DELAYED if kind == "delay" else dice.choice(RPCS))


def run(runs: str, folder: Path, temporary: Path) -> None:
    """In a process of its own: the run, on a Ray of its own."""
    ray.init(
        num_cpus=4,
        _temp_dir=str(temporary),
        object_store_memory=80 << 20,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    actor: Any = ray.remote(Counter).options(num_cpus=0).remote()  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    ray.get(actor.total.remote())  # it is there
    began = time.monotonic()
    ray.get(actor.total.remote())
    (folder.parent / "call_s").write_text(str(time.monotonic() - began))
    ray.kill(actor)
    content = config(*RUNS[runs], iterations=3)
    if runs == "sweep":
        run_sweep(parse_sweep({**content, "sweep": {"seeds": [0, 1], "max_failures": 3}}), folder, quiet=True)
    else:
        content = cooperation.dummy(folder.parent, talk={"num_talkers": 2}) if runs == "text" else content
        run_experiment(config_from_dict(content), folder, quiet=True)
    ray.shutdown()


def started(runs: str, folder: Path, faults: dict[str, str]) -> Counter[str]:
    """Run it in `folder`/run; returns which faults Ray's logs name, and how often.

    Raises:
        RuntimeError: it fails or takes too long.
    """
    folder.mkdir(parents=True)
    temporary = Path(tempfile.mkdtemp(prefix="nip-"))  # short: paths of sockets are limited
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **faults}
    command = [sys.executable, "-m", "tests.chaos.network", "--run", runs, str(folder / "run"), str(temporary)]
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        try:
            code: Any = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = f"none after {LIMIT_S:g} s"
        finally:
            if process.poll() is None:
                for child in [*psutil.Process(process.pid).children(recursive=True), process]:
                    child.kill()
            process.wait()
        output.seek(0)
        if code != 0:
            shutil.rmtree(temporary, ignore_errors=True)
            raise RuntimeError(f"exit code {code}: {output.read()[-3000:]}")
    logs = [path.read_text(errors="replace") for path in temporary.glob("session_2*/logs/*") if path.is_file()]
    shutil.rmtree(temporary, ignore_errors=True)
    return Counter(re.findall(r"Inject (RPC .*)", "\n".join([*logs, (folder / "output").read_text()])))


def results(runs: str, folder: Path) -> dict[str, Any]:
    """What must be the same: of each run its rows, and its weights, or what language agents said."""
    found: dict[str, Any] = {}
    for path in sorted((folder / "trials").iterdir()) if runs == "sweep" else [folder]:
        if path.is_dir():
            said = {file.name: file.read_bytes() for file in sorted((path / "rollouts").glob("*"))}
            found |= {
                f"{path.name} rows": figures(path),
                f"{path.name} weights": said if runs == "text" else weights(path),
            }
    assert len(found) == (4 if runs == "sweep" else 2)
    return {key.replace(folder.name, "run"): value for key, value in found.items()}


def check(seed: int, folder: Path) -> str:
    """Play the case of a seed; returns what it was and how much failed. Undisturbed runs in `folder` are used again.

    Raises:
        AssertionError: with the command that plays it again.
    """
    case, began = draw(seed), time.monotonic()
    calm, disturbed = folder / f"calm-{case.runs}", folder / f"seed-{seed}"
    told = f"{case}: again by `python -m tests.chaos.network {seed}`"
    try:
        if not (calm / "over").exists():
            shutil.rmtree(calm, ignore_errors=True)
            started(case.runs, calm, {})
            (calm / "over").touch()
        found = started(case.runs, disturbed, case.environment())
    except RuntimeError as error:
        raise AssertionError(f"{told}: {error}") from error
    call_s = float((disturbed / "call_s").read_text())
    struck = call_s >= DELAY_US[0] / 1e6 if case.kind == "delay" else found.total() > 0
    assert struck, f"nothing failed in {told}"
    expected, made = results(case.runs, calm / "run"), results(case.runs, disturbed / "run")
    for what in expected:
        assert made[what] == expected[what], f"other {what} in {told}"
    return f"{case}: {dict(found)}, a call took {call_s:.3f} s, {time.monotonic() - began:.0f} s"


def main() -> None:
    """Play the cases of seeds; exits with 1 if one fails."""
    if sys.argv[1] == "--run":
        return run(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    bounds = [[int(bound) for bound in argument.split("-")] for argument in sys.argv[1:]]
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in [seed for bound in bounds for seed in range(bound[0], bound[-1] + 1)]:
            try:
                print(check(seed, Path(folder)), flush=True)
            except AssertionError as error:
                failed.append(seed)
                print(f"FAILED {error}", flush=True)
    sys.exit(f"failed: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
