"""Opponent shaping from rollouts: SPG, LOLA, SOS and their clipped variants.

The mathematics is in `nip_ray.learning.shaping`; this module has the config, the data flow and the update.

Decisions that matter here:
- an agent's objective depends on all actions, so its critic judges every round, not only its own turns, and its
  advantage weights the scores of the acting agents;
- an agent that does not learn in this iteration does not respond either: it is not treated as a follower;
- an agent's entropy bonus is part of the objective that its leaders see; critics add their plain gradients;
- first-order factors and Hessian-vector products are summed over learners before any multiplication, so several
  learners give the results of one.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner import Learner
from ray.rllib.utils.annotations import override
from torch import Tensor, nn

from nip_ray.learning.groups import ParameterGroup, learning_mode
from nip_ray.learning.policy import LogPolicy
from nip_ray.learning.policy_gradient import critic, entropy_weight, own_turn_advantages
from nip_ray.learning.published_shaping import published_directions, published_losses
from nip_ray.learning.shaping import Inverses, dice_losses, directions, leader_follower_map
from nip_ray.play.rollout import AgentRows, Rollout, live_rows
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from nip_ray.rllib.config import ProtocolAlgorithmConfig
from nip_ray.rllib.learner import JointMinibatch, Prepared, ProtocolLearner, Step, normalised_like, rewards_with_cuts
from nip_ray.seeding import generator
from nip_ray.settings.stackelberg import StackelbergSettings


class StackelbergPGConfig(ProtocolAlgorithmConfig):
    """Config of `StackelbergPG`; settings: `StackelbergSettings`."""

    settings_class = StackelbergSettings

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or StackelbergPG)

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Learner]:
        """Our opponent-shaping learner."""
        return StackelbergLearner


class StackelbergPG(ProtocolAlgorithm):
    """Leaders that anticipate the learning of followers; the update is `StackelbergLearner`'s."""

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> StackelbergPGConfig:
        """A `StackelbergPGConfig`."""
        return StackelbergPGConfig()


@dataclass(frozen=True)
class ShapedData:
    """One agent's rows of all rounds played. turn_N: its own turns; value_N, target_N: its critic's; advantage_BR: of
    every round."""

    rows: AgentRows
    turn_N: Tensor
    value_N: Tensor
    target_N: Tensor
    advantage_BR: Tensor


@dataclass(frozen=True)
class _Scores:
    """The outputs of the agents' networks on a minibatch of K copies: log-probabilities (K, R, A), now and at play; by
    agent the mean entropy and the critic's loss, both as this learner's share."""

    log_prob_KRA: Tensor
    old_log_prob_KRA: Tensor
    entropy: dict[str, Tensor]
    critic: dict[str, Tensor]


class StackelbergLearner(ProtocolLearner[StackelbergSettings]):
    """Joint updates of all agents by the configured variant."""

    def build(self) -> None:
        """Also the leaders and followers, and each agent's actor parameters."""
        super().build()
        self.actors: dict[str, list[nn.Parameter]] = {}
        self.step_factors: dict[str, float] = {}
        for agent, network in self.networks.items():
            made: list[ParameterGroup] = cast(Any, network).groups()
            groups = [group for group in made if group.part == "actor" and group.lr_factor > 0]
            self.actors[agent] = [parameter for group in groups for parameter in group.parameters]
            self.step_factors[agent] = max((group.lr_factor for group in groups), default=0.0)
        self.iteration_lr = self.settings.lr
        self.inverses: Inverses = {}

    def set_learning_rates(self, lr: float) -> None:
        """Also stored as the assumed step of followers."""
        super().set_learning_rates(lr)
        self.iteration_lr = lr

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> Prepared:
        """Rows, values and advantages of every learning agent, in all rounds played."""
        settings, agents = self.settings, {}
        for index, agent in enumerate(self.scenario.protocol.agents):
            if agent not in self.updated:
                continue
            rows = live_rows(self.scenario, rollout, agent)
            network = self.networks[agent].eval()
            _, value_N = network(rows.obs, False, True)
            reward_BR = rewards_with_cuts(self.scenario, network, rollout, rows, value_N, settings.gamma)
            learning_mode(network)
            advantage_BR, target_BR = own_turn_advantages(
                reward_BR, rows.spread(value_N), rows.row_BR >= 0, settings.gamma, settings.lam
            )
            at = (rows.copy_N, rows.round_N)
            agents[agent] = ShapedData(rows, rollout.turn_BRA[at][:, index], value_N, target_BR[at], advantage_BR)
        return Prepared(agents)

    def minibatch_step(self, prepared: Prepared, minibatch: JointMinibatch) -> dict[str, Step]:
        """A step of all agents: actors along their directions, plus the plain gradients of critics.

        direction_norm is that of the actor's direction before the critic's gradient is added.
        """
        data: Mapping[str, ShapedData] = prepared.agents
        scores = self._scores(data, minibatch)
        published = self.settings.estimator == "published"
        extra = {
            agent: scores.critic[agent] + self._bonus(scores, agent) if published else scores.critic[agent]
            for agent in data
        }
        if prepared.compared is not None:
            for agent, loss in self.similarity_losses(prepared.compared, minibatch).items():
                extra[agent] = extra[agent] + loss
        plain = {agent: self._plain_gradient(agent, extra[agent]) for agent in data}
        advantage_KRA = self._advantages(data, minibatch)
        shaped = (self._published if published else self._foreseeing)(data, scores, advantage_KRA, minibatch)
        for agent in data:
            self._set_gradients(agent, shaped[agent], plain[agent])
        norms, steps = self._step(data), {}
        for agent in data:
            metrics = {"entropy": scores.entropy[agent].detach(), "critic": scores.critic[agent].detach()}
            steps[agent] = Step(
                {**metrics, "direction_norm": torch.linalg.vector_norm(shaped[agent].detach())}, norms[agent]
            )
        return steps

    def _foreseeing(
        self, data: Mapping[str, ShapedData], scores: _Scores, advantage_KRA: Tensor, minibatch: JointMinibatch
    ) -> dict[str, Tensor]:
        """By automatic differentiation of per-sample surrogates."""
        total, live_KR = len(minibatch.all_copies), _live(data, minibatch.own_copies)
        world, rank = self._world()
        # of the own copies among all: halves do not depend on learners
        place_K = torch.arange(rank, total, world, device=self.device)
        first = total // 2 if self.settings.independent_halves and total > 1 else total

        def losses(of_K: Tensor, count: int) -> dict[str, Tensor]:
            shares = (scores.log_prob_KRA, advantage_KRA, live_KR & of_K[:, None], self.settings.gamma)
            found_A = dice_losses(*shares, *self._clipping(scores), copies=count)
            return {agent: found_A[self._index(agent)] + self._bonus(scores, agent) for agent in data}

        independent = losses(place_K >= first, total - first) if first < total else None
        shared = self._shared(list(data), minibatch)
        return directions(losses(place_K < first, first), **shared, independent=independent)

    def _published(
        self, data: Mapping[str, ShapedData], scores: _Scores, advantage_KRA: Tensor, minibatch: JointMinibatch
    ) -> dict[str, Tensor]:
        """By the published products of batch means."""
        losses_A, score = published_losses(
            scores.log_prob_KRA,
            advantage_KRA,
            _live(data, minibatch.own_copies),
            *self._clipping(scores),
            frames=_live(data, minibatch.all_copies).sum(),
        )
        losses = {agent: losses_A[self._index(agent)] for agent in data}
        return published_directions(losses, score, **self._shared(list(data), minibatch))

    def _clipping(self, scores: _Scores) -> tuple[Tensor | None, float | None]:
        if self.settings.variant in ("pspg", "pola", "psos"):
            return scores.old_log_prob_KRA, self.settings.clip_epsilon
        return None, None

    def _shared(self, agents: list[str], minibatch: JointMinibatch) -> dict[str, Any]:
        """The arguments of this minibatch that `directions` and `published_directions` share, by name."""
        given, lr = self.settings.shaping_lr, self.iteration_lr
        step_sizes = {agent: given or self.own_lr(agent, lr) * self.step_factors[agent] for agent in agents}
        draw = generator(self.seed, "inverse hessian", minibatch.iteration, minibatch.number, device=self.device)
        protocol = self.scenario.protocol
        deciders = [agent for agent in protocol.deciders if agent != protocol.chooser]
        sequence = self.settings.stackelberg_sequence or default_sequence(protocol.agents, deciders)
        led = leader_follower_map(protocol.agents, sequence, self.settings.mutual)
        # the learners of this update
        followers = {agent: tuple(other for other in led[agent] if other in agents) for agent in agents}
        return {
            "parameters": {agent: self.actors[agent] for agent in agents},
            "followers": followers,
            "settings": self.settings,
            "step_sizes": step_sizes,
            "generator": draw,
            "reduce": self._sum_over_learners,
            "inverses": self._inverses(minibatch),
        }

    def _inverses(self, minibatch: JointMinibatch) -> Inverses:
        """Products with inverse Hessians to reuse: nystrom's for some minibatches, the others' never."""
        if self.settings.ihvp != "nystrom" or minibatch.number % self.settings.ihvp_refresh == 0:
            self.inverses = {}
        return self.inverses

    def _scores(self, data: Mapping[str, ShapedData], minibatch: JointMinibatch) -> _Scores:
        copies, (num_copies, num_rounds) = minibatch.own_copies, _row_grid(data).shape
        place_B = torch.full((num_copies,), -1, device=self.device)
        place_B[copies] = torch.arange(len(copies), device=self.device)
        empty = torch.zeros(len(copies), num_rounds, device=self.device)
        grids, old_grids = (
            dict.fromkeys(self.scenario.protocol.agents, empty),
            dict.fromkeys(self.scenario.protocol.agents, empty),
        )
        entropy, critics = {}, {}
        for agent, own in data.items():
            rows, all_rows = own.rows.of_copies(copies), own.rows.of_copies(minibatch.all_copies)
            turns = rows[own.turn_N[rows]]
            entropy[agent] = empty.sum()
            if len(turns):
                drawn, action = self.networks[agent](own.rows.obs_of(turns), True, False)[0], own.rows.action_of(turns)
                policy: LogPolicy = (
                    drawn.silenced(action) if self.settings.skip_silent_messages else drawn
                ).normalised()
                at = (place_B[own.rows.copy_N[turns]], own.rows.round_N[turns])
                grids[agent] = empty.index_put(at, policy.log_prob(action))
                old_grids[agent] = empty.index_put(at, own.rows.log_prob_N[turns])
                entropy[agent] = policy.entropy().sum() / own.turn_N[all_rows].sum()
            critics[agent] = empty.sum()
            if len(rows):
                _, value_N = self.networks[agent](own.rows.obs_of(rows), False, True)
                distance = critic(value_N, own.value_N[rows], own.target_N[rows], self.settings)
                critics[agent] = self.settings.critic_coefficient * distance * (len(rows) / len(all_rows))
        return _Scores(
            torch.stack(list(grids.values()), -1), torch.stack(list(old_grids.values()), -1), entropy, critics
        )

    def _plain_gradient(self, agent: str, loss: Tensor) -> Tensor:
        """The gradient of `loss`, flat over all parameters of the agent's optimizer, over all learners."""
        parameters = self.optimizers[agent].parameters
        if not loss.requires_grad:  # this learner has none of its rows
            return self._sum_over_learners(torch.cat([torch.zeros_like(p).reshape(-1) for p in parameters]))
        found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        parts = [
            torch.zeros_like(p).reshape(-1) if g is None else g.reshape(-1)
            for g, p in zip(found, parameters, strict=True)
        ]
        return self._sum_over_learners(torch.cat(parts))

    def _advantages(self, data: Mapping[str, ShapedData], minibatch: JointMinibatch) -> Tensor:
        """(K, R, A): advantages of the own copies, normalised over the rounds played of all copies of the minibatch."""
        own_KR, all_KR = _live(data, minibatch.own_copies), _live(data, minibatch.all_copies)
        columns = []
        for agent in self.scenario.protocol.agents:
            column = torch.zeros(own_KR.shape, device=self.device)
            if agent in data:
                advantage_BR = data[agent].advantage_BR
                column = advantage_BR[minibatch.own_copies]
                if self.settings.normalize_advantage:
                    scaled = normalised_like(column[own_KR], advantage_BR[minibatch.all_copies][all_KR])
                    column = torch.zeros_like(column).masked_scatter(own_KR, scaled)
            columns.append(column)
        return torch.stack(columns, -1)

    def _set_gradients(self, agent: str, shaped: Tensor, plain: Tensor) -> None:
        """Move actors along `shaped`, and all parameters along `plain`."""
        gradients = dict(
            zip(self.optimizers[agent].parameters, plain.split([p.numel() for p in self.optimizers[agent].parameters]))
        )
        for parameter, piece in zip(
            self.actors[agent], shaped.split([p.numel() for p in self.actors[agent]]), strict=True
        ):
            gradients[parameter] = gradients[parameter] + piece
        self.optimizers[agent].set_gradients([gradients[parameter] for parameter in self.optimizers[agent].parameters])

    def _bonus(self, scores: _Scores, agent: str) -> Tensor:
        return -entropy_weight(self.settings, agent) * scores.entropy[agent]

    def _index(self, agent: str) -> int:
        return self.scenario.protocol.agents.index(agent)

    def _sum_over_learners(self, vector: Tensor) -> Tensor:
        if self.distributed:
            torch.distributed.all_reduce(vector)
        return vector


def _row_grid(data: Mapping[str, ShapedData]) -> Tensor:
    """(B, R): the rows of any agent, since all have one for every round that was played; -1 elsewhere."""
    return next(iter(data.values())).rows.row_BR


def _live(data: Mapping[str, ShapedData], copies: Tensor) -> Tensor:
    """(K, R): the rounds that were played in these copies."""
    return _row_grid(data)[copies] >= 0


def default_sequence(agents: tuple[str, ...], deciders: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Verifiers lead, all others follow; without a verifier the first agent leads."""
    first = tuple(agent for agent in agents if agent in deciders) or agents[:1]
    rest = tuple(agent for agent in agents if agent not in first)
    return (first, rest) if rest else (first,)
