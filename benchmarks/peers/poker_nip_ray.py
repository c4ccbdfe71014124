"""Poker by nip_ray: `nip-ray train tune_configs/kuhn_poker.yaml`, or leduc_poker.yaml, with as many iterations as the
time allows, since its learning rate falls to 0. What a user writes is that config."""

import time
from pathlib import Path
from typing import Any

import torch
from _poker import Table, Watch

from nip_ray.config.load import load_config
from nip_ray.rllib.cluster import build_algorithm
from nip_ray.scenarios.matrix_games.scenario import PLAYERS

CONFIGS = Path(__file__).resolve().parents[2] / "tune_configs"
PROBE = 5


def built(iterations: int) -> Any:
    """The algorithm for that many iterations."""
    changes = [f"seed={watch.seed}", "runtime.num_threads=1", f"iterations={iterations}"]
    changes += watch.variant.split(",") if watch.variant else []
    config: Any = load_config(CONFIGS / f"{watch.game}.yaml", changes)
    return build_algorithm(config)


def table_of(algorithm: Any) -> Table:
    """The evaluation policies in every information set."""
    scenario, networks, found = algorithm.scenario, algorithm.networks(), {}
    game = scenario.game
    tables = [scenario.policy_table(agent, networks[agent]).tolist() for agent in PLAYERS]

    def walk(k: int, moves: list[str]) -> None:
        node = game.nodes[k]
        if node.player is None:
            return
        if node.chooses:
            for deal, cards in enumerate(game.rules.deal_DC):
                public = str(cards[2]) if node.open else "-"
                chances = tables[node.player][int(game.state_PKD[node.player, k, deal])]
                key = f"{node.player}|{cards[node.player]}|{public}|{'/'.join(part.strip() for part in moves)}"
                found[key] = {move: chances[move] for move in node.children}
        for move, child in node.children.items():
            said = f" {move}" if node.chooses else ""
            opens = game.nodes[child].open and not node.open and game.nodes[child].player is not None
            walk(child, [*moves[:-1], moves[-1] + said, *([""] if opens else [])])

    walk(0, [""])
    return found


torch.set_num_threads(1)
watch = Watch("nip_ray", "torch", "ray")
first = built(1000)
first.train()
begun = time.perf_counter()
for _ in range(PROBE):
    first.train()
pace = (time.perf_counter() - begun) / PROBE
first.stop()
planned = max(10, int(watch.seconds / pace))
algorithm = built(planned)
watch.start()
while True:
    algorithm.train()
    if watch.due:
        watch.stop()
        watch.keep(table_of(algorithm))
        if watch.over or algorithm.iteration >= planned:
            break
watch.show(iterations=algorithm.iteration)
algorithm.stop()
