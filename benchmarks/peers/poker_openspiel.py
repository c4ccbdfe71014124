"""Poker by OpenSpiel: its CFR in C++ (`--variant cfr`), or its PPO, an agent for each player (`ppo`)."""

from typing import Any

import numpy as np
import pyspiel
import torch
from _poker import Table, Watch
from open_spiel.python import rl_environment
from open_spiel.python.pytorch.ppo import PPO, PPOAgent
from poker_referee import keys_of


def cfr(watch: Watch) -> None:
    """Counterfactual regret minimisation; the average policy."""
    game = pyspiel.load_game(watch.game)
    keys = keys_of(game)
    watch.start()
    solver = pyspiel.CFRSolver(game)
    while True:
        solver.evaluate_and_update_policy()
        if watch.due:
            watch.stop()
            average = solver.tabular_average_policy().policy_table()
            watch.keep({keys[name]: dict(choices) for name, choices in average.items()})
            if watch.over:
                return


def ppo(watch: Watch) -> None:
    """Self-play: an agent learns when its buffer is full. Its transitions go from turn to turn."""
    torch.manual_seed(watch.seed)
    np.random.seed(watch.seed)
    env = rl_environment.Environment(watch.game, include_full_state=False)
    env.seed(watch.seed)
    shape = (env.observation_spec()["info_state"][0],)
    moves = env.action_spec()["num_actions"]
    agents = [
        PPO(shape, moves, 2, player, steps_per_batch=BATCH, gamma=1.0, entropy_coef=ENTROPY, learning_rate=LR,
            num_minibatches=4, update_epochs=4, agent_fn=PPOAgent)
        for player in range(2)
    ]  # fmt: skip
    watch.start()
    while not watch.over:
        step, waiting = env.reset(), [False, False]
        while not step.last():
            player = step.observations["current_player"]
            if waiting[player]:
                turned(agents[player], step, 0.0, False)
            action = agents[player].step([step])[0].action
            waiting[player] = True
            step = env.step([action])
        for player in range(2):
            if waiting[player]:
                turned(agents[player], step, step.rewards[player], True)
        for agent in agents:
            agent.anneal_learning_rate(min(watch.now, 0.999 * watch.seconds), watch.seconds)
        if watch.due:
            watch.stop()
            watch.keep(table_of(agents, watch.game))


def turned(agent: PPO, step: Any, reward: float, done: bool) -> None:
    """End a transition."""
    agent.post_step([reward], [float(done)])
    if agent.cur_batch_idx == BATCH:
        agent.learn([step])


def table_of(agents: list[PPO], name: str) -> Table:
    """The policies in every information set."""
    game, found = pyspiel.load_game(name), {}
    keys, waiting = keys_of(game), [game.new_initial_state()]
    while waiting:
        state = waiting.pop()
        if not state.is_terminal() and not state.is_chance_node():
            key, player, legal = keys[state.information_state_string()], state.current_player(), state.legal_actions()
            if key not in found:
                seen = torch.tensor(state.information_state_tensor(player))[None]
                mask = torch.tensor([[move in legal for move in range(game.num_distinct_actions())]])
                with torch.no_grad():
                    chances = agents[player].get_action_and_value(seen, mask)[-1][0].double()
                found[key] = {move: float(chances[move] / chances[legal].sum()) for move in legal}
        if not state.is_terminal():
            waiting += [state.child(action) for action in state.legal_actions()]
    return found


BATCH, ENTROPY, LR = 512, 0.05, 2.5e-3

if __name__ == "__main__":
    torch.set_num_threads(1)
    clock = Watch("open_spiel", "torch")
    (cfr if clock.variant == "cfr" else ppo)(clock)
    clock.show()
