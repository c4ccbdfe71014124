"""A small game as a scenario: moves are messages of one symbol, the game's rules judge every round."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.errors import UserError
from nip_ray.play.core import turn_masks
from nip_ray.play.rollout import Dialogue
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Judgement, Protocol
from nip_ray.scenarios.matrix_games.agent import MatrixAgent
from nip_ray.scenarios.matrix_games.games import Game, matrix_game
from nip_ray.scenarios.matrix_games.poker import KUHN, LEDUC, Poker
from nip_ray.scenarios.seat import agents_of
from nip_ray.seeding import seeded
from nip_ray.settings.matrix_games import MatrixAgentSettings, protocol_of

PLAYERS = ("player0", "player1")


class MatrixGame(Scenario):
    """Two players and a `Game`. Training and test instances are the same: there is nothing to generalise over. Labels
    have no meaning."""

    name = "matrix_game"
    held_out = False

    def __init__(self, protocol: Protocol, game: Game, agents: Mapping[str, MatrixAgentSettings]) -> None:
        self.protocol, self.game, self.agents = protocol, game, dict(agents)
        self.num_symbols = max(game.actions)
        self.label_I = torch.zeros(game.num_instances, dtype=torch.int64)

    def situation_I(self) -> Tensor:
        """The game's start."""
        return torch.arange(len(self.label_I), device=self.label_I.device) % self.game.num_starts

    def observe(self, agent: str, id_N: Tensor, said: Dialogue, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        """ "features" (N, states): the one-hot state of `agent`."""
        state_N = self.game.state(PLAYERS.index(agent), id_N, _moves(said), round_N)
        obs = turn_masks(self.protocol, agent, 1, round_N, seed_N)
        obs["features"] = nn.functional.one_hot(state_N, self.game.num_states).float()
        return obs

    def legal_symbols(self, agent: str, obs: Mapping[str, Tensor]) -> Tensor:
        """The player's moves that are legal in its state."""
        return self._legal(agent)[obs["features"].argmax(-1)][:, None]

    def judge(self, id_B: Tensor, said: Dialogue, round_B: Tensor, seed_B: Tensor) -> Judgement:
        """By the game's rules."""
        return self.game.judge(id_B, _moves(said), round_B)

    def build_agent(self, agent: str, seed: int) -> nn.Module:
        """Tables or small perceptrons, initialised from `seed`."""
        moves = self.game.actions[PLAYERS.index(agent)]
        with seeded(seed):
            return MatrixAgent(self.agents[agent], moves, self._legal(agent))

    def exact_figures(self, networks: Mapping[str, nn.Module]) -> dict[str, float]:
        """Values, exploitability and the game's other metrics, from the policies' probabilities in all states."""
        first, second = (self.policy_table(agent, networks[agent]) for agent in PLAYERS)
        return self.game.figures((first, second))

    @torch.no_grad()
    def policy_table(self, agent: str, network: nn.Module) -> Tensor:
        """(states, moves) float64, on the CPU: the probability of each of the player's moves in each state."""
        count, device = self.game.num_states, self.label_I.device
        obs = {
            "features": torch.eye(count, device=device),
            "speaks": torch.ones(count, 1, dtype=torch.bool, device=device),
        }
        policy, _ = network(obs, True, False)
        moves = self.game.actions[PLAYERS.index(agent)]
        return torch.softmax(policy.message[:, 0, :moves].double(), -1).cpu()

    def _legal(self, agent: str) -> Tensor:
        """(states, symbols) bool: legal moves; the alphabet is that of the player with more moves."""
        legal_SM = self.game.legal(PLAYERS.index(agent)).to(self.label_I.device)
        return nn.functional.pad(legal_SM, (0, self.num_symbols - legal_SM.shape[1]))


def _moves(said: Dialogue) -> Tensor:
    """(N, R, A): each player's move, in any channel; -1 for none."""
    return said.main[..., 0].amax(-1)


def build_matrix_game(protocol: Protocol, settings: Any) -> MatrixGame:
    """The scenario of `settings` (MatrixGameSettings) under the protocol of its game.

    Raises UserError for another protocol, an invalid game, or unknown agents.
    """
    if protocol.name != protocol_of(settings.game):
        raise UserError(
            f"protocol.name: {settings.game} is played under {protocol_of(settings.game)!r} alone (got"
            f" {protocol.name!r})"
        )
    for fault in settings.faults():
        raise UserError(f"scenario.{fault}")
    agents = agents_of(protocol, settings.agents, MatrixAgentSettings)
    rules = {"kuhn_poker": KUHN, "leduc_poker": LEDUC}.get(settings.game)
    game = matrix_game(settings, protocol.max_rounds) if rules is None else Poker(rules)
    return MatrixGame(protocol, game, agents)
