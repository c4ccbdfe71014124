"""From a rollout to what one agent learns from: rows for its own turns, with observations rebuilt from tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nip_ray.learning.policy import Action
from nip_ray.play.game import views_along
from nip_ray.play.rollout import Rollout
from nip_ray.play.scenario import Scenario


@dataclass(frozen=True)
class AgentRows:
    """One agent's N own turns in a rollout of B copies, ordered by copy and round.

    copy_N, round_N: where each row stands. obs: observations, each (N, ...). action: what was done. log_prob_N: its log-probability
    when it was done. row_BR: (B, R) int64, the row at (copy, round), -1 where the agent had no turn.
    """

    agent: str
    copy_N: Tensor
    round_N: Tensor
    obs: dict[str, Tensor]
    action: Action
    log_prob_N: Tensor
    row_BR: Tensor

    def spread(self, x_N: Tensor) -> Tensor:
        """(B, R): a value per row on the grid of copies and rounds, zero where there is no row."""
        grid = torch.zeros(self.row_BR.shape, dtype=x_N.dtype, device=x_N.device)
        grid[self.copy_N, self.round_N] = x_N
        return grid

    def of_copies(self, copy_K: Tensor) -> Tensor:
        """(N',) int64: the rows of some copies."""
        rows = self.row_BR[copy_K].flatten()
        return rows[rows >= 0]

    def obs_of(self, row_K: Tensor) -> dict[str, Tensor]:
        """The observations of some rows, each (K, ...)."""
        return {key: value[row_K] for key, value in self.obs.items()}

    def action_of(self, row_K: Tensor) -> dict[str, Tensor]:
        """What was done in some rows."""
        return {key: value[row_K] for key, value in self.action.items()}

    def beside(self, other: "AgentRows", copy_K: Tensor) -> tuple[Tensor, Tensor]:
        """(N',) int64 each: rows of this agent and of `other` in the same copies and rounds, for the turns that both had in some copies."""
        mine, its = self.row_BR[copy_K], other.row_BR[copy_K]
        both = (mine >= 0) & (its >= 0)
        return mine[both], its[both]


def own_rows(scenario: Scenario, rollout: Rollout, agent: str) -> AgentRows:
    """The rows of `agent` in `rollout`, on the rollout's device."""
    return _rows(scenario, rollout, agent, rollout.turn_BRA[:, :, scenario.protocol.agents.index(agent)])


def live_rows(scenario: Scenario, rollout: Rollout, agent: str) -> AgentRows:
    """A row for every round that was played, whoever had the turn, with what `agent` could observe then.

    For critics that judge every round. The action of a row in which it had no turn means nothing.
    """
    return _rows(scenario, rollout, agent, torch.arange(rollout.num_rounds, device=rollout.id_B.device) < rollout.length_B[:, None])


def _rows(scenario: Scenario, rollout: Rollout, agent: str, where_BR: Tensor) -> AgentRows:
    protocol = scenario.protocol
    index, writes = protocol.agents.index(agent), list(protocol.writes[agent])
    copy_N, round_N = where_BR.nonzero(as_tuple=True)
    said = rollout.dialogue.rows(copy_N)
    obs = _observations(scenario, rollout, agent, copy_N, round_N)
    rows = torch.arange(len(copy_N), device=copy_N.device)
    action = {"message": said.main[rows, round_N, index][:, writes].flatten(1).clamp_min(0)}
    if said.linear is not None:
        action["linear"] = said.linear[rows, round_N, index][:, writes].flatten(1).clamp_min(0)
    if agent in protocol.deciders:
        action["decision"] = rollout.decision_BRA[copy_N, round_N, index]
    row_BR = torch.full(where_BR.shape, -1, device=copy_N.device)
    row_BR[copy_N, round_N] = rows
    return AgentRows(agent, copy_N, round_N, obs, action, rollout.log_prob_BRA[copy_N, round_N, index], row_BR)


def final_rows(scenario: Scenario, rollout: Rollout, agent: str) -> tuple[Tensor, dict[str, Tensor]]:
    """(copies K, observations of `agent` there after the last round), for copies that were cut off where its turn would have come next.

    Whoever would not have moved next may have nothing to see there yet: what the other is about to say.
    """
    if rollout.cut_B is None:
        return rollout.id_B.new_zeros(0), {}
    next_B = scenario.protocol.would_act(agent, rollout.length_B, rollout.seed_B)
    copy_K = (rollout.cut_B & next_B).nonzero().flatten()
    return copy_K, _observations(scenario, rollout, agent, copy_K, rollout.length_B[copy_K]) if len(copy_K) else {}


def _observations(scenario: Scenario, rollout: Rollout, agent: str, copy_N: Tensor, round_N: Tensor) -> dict[str, Tensor]:
    """What `agent` saw in these copies before these rounds."""
    if scenario.rules is not None and len(copy_N):
        return views_along(scenario.rules, agent, rollout.id_B, rollout.seed_B, rollout.dialogue, copy_N, round_N)
    said = rollout.dialogue.rows(copy_N).before(round_N)
    return scenario.observe(agent, rollout.id_B[copy_N], said, round_N, rollout.seed_B[copy_N])
