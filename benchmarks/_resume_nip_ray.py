"""Ours: `nip-ray train` and `nip-ray resume`, an iteration at a time. By hand: nothing."""

import re
from pathlib import Path
from typing import Any

from _resume_row import INTERVAL, Rows, digest

from nip_ray.config.load import config_to_yaml, load_config
from nip_ray.runs.session import Session
from nip_ray.storage.folder import RunFolder

CONFIGS = Path(__file__).resolve().parents[1] / "tune_configs"
GAMES = {
    "ppo": ("message_game", "play.num_copies=32", "algorithm.minibatch_size=64", "algorithm.anneal_lr=true"),
    "dqn": (
        *(
            "hironaka_host",
            "algorithm.steps_per_iteration=10",
            "algorithm.warm_up=64",
            "scenario.max_rounds=8",
            "scenario.num_test=8",
        ),
        *(
            "scenario.rho_games=4",
            "algorithm.roles.host.initial_rollout_size=32",
            "algorithm.roles.host.rollout_size=32",
        ),
    ),
}
TIMES = re.compile("^time/|_per_s$")


def main() -> None:
    """Train, or resume."""
    rows = Rows()
    name, *settings = GAMES[rows.variant]
    common = (
        f"iterations={rows.iterations}",
        f"checkpoint.interval={INTERVAL}",
        "evaluation.interval=0",
        "runtime.num_threads=1",
    )
    config, path = load_config(CONFIGS / f"{name}.yaml", [*settings, *common]), rows.folder / "run"
    begin = RunFolder.open(path, write=True) if rows.resume else RunFolder.create(path, config_to_yaml(config))
    with begin as folder:
        session = Session(config, folder, quiet=True)
        session.start(session.newest() if rows.resume else None)
        if rows.resume:
            rows.write("restored", session.iteration, **state(rows, session))
        while not session.over:
            row = session.step()
            numbers = {
                key: float(value)
                for key, value in row.items()
                if isinstance(value, int | float) and not TIMES.search(key)
            }
            rows.write("row", session.iteration, numbers, **state(rows, session))
        session.close()


def state(rows: Rows, session: Session) -> dict[str, Any]:
    """Every draw is made from the seed and the iteration, so there is no generator state to lose."""
    stored = session.algorithm.training_state()
    rates = [group["lr"] for optimizer in stored["optimizers"].values() for group in optimizer["param_groups"]]
    moments = {agent: optimizer["state"] for agent, optimizer in stored["optimizers"].items()}
    replay = {"replay": digest(stored["extra"])} if rows.variant == "dqn" else {}
    return {"counter": stored["counters"]["env_steps_total"], "lr": rates, "optimizer": digest(moments), **replay}


if __name__ == "__main__":
    main()
