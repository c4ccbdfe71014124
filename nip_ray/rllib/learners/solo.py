"""One agent alone on the labels: it plays the derived protocol in which it decides at once, and learns from what was right.

The loss is in `nip_ray.learning.supervised`.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nip_ray.learning.supervised import accuracy, decision_loss
from nip_ray.play.batch import AgentRows, own_rows
from nip_ray.play.rollout import Rollout
from nip_ray.rllib.learners.base import ProtocolLearner


@dataclass(frozen=True)
class LabelledRows:
    """The rows of round 0, when nothing has been said, with their labels (N,)."""

    rows: AgentRows
    y_N: Tensor


class SoloLearner(ProtocolLearner):
    """Supervised learning of the agent's decision, through its whole network."""

    def metric_names(self) -> tuple[str, ...]:
        """Means over minibatches, of the training instances."""
        return ("loss", "accuracy")

    def rounds_per_copy(self, rollout: Rollout) -> int:
        """An instance is one frame."""
        return 1

    def prepare(self, rollout: Rollout) -> dict[str, LabelledRows]:
        """The first turns of all copies."""
        turn_BRA = rollout.turn_BRA.clone()
        turn_BRA[:, 1:] = False
        (agent,) = self.scenario.protocol.agents
        if agent not in self.updated:
            return {}
        rows = own_rows(self.scenario, replace(rollout, turn_BRA=turn_BRA), agent)
        return {agent: LabelledRows(rows, rollout.y_B[rows.copy_N])}

    def agent_loss(self, agent: str, data: LabelledRows, own: Tensor, all_rows: Tensor) -> Tensor:
        """Cross-entropy of the decision and the label."""
        policy, _ = self.networks[agent](data.rows.obs_of(own), True, False)
        loss = decision_loss(policy, data.y_N[own])
        self.sums.setdefault(agent, []).append(torch.stack([loss.detach(), accuracy(policy, data.y_N[own])]))
        return loss
