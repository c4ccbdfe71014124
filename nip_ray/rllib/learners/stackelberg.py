"""Opponent shaping from rollouts: SPG, LOLA, SOS and their clipped variants.

The mathematics is in `nip_ray.learning.shaping`; here stands what is done with which rows.

Decisions that matter here:
- an agent's objective depends on everyone's actions, so every agent's critic judges every round, not only its own turns, and its
  advantage weighs the scores of whoever acted;
- an agent that does not learn in this iteration does not respond either: nobody counts on it as a follower;
- an agent's entropy bonus is part of the objective that its leaders see through; critics add their plain gradients;
- first-order factors and Hessian-vector products are summed over learners before anything is multiplied, so several learners give
  the numbers of one.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from nip_ray.learning.advantages import own_turn_advantages
from nip_ray.learning.groups import ParameterGroup
from nip_ray.learning.modes import learning_mode
from nip_ray.learning.policy import LogPolicy
from nip_ray.learning.ppo import critic
from nip_ray.learning.published_shaping import published_directions, published_losses
from nip_ray.learning.shaping import Inverses, dice_losses, directions, leader_follower_map
from nip_ray.play.batch import AgentRows, live_rows
from nip_ray.play.rollout import Rollout
from nip_ray.rllib.learners.base import JointMinibatch, ProtocolLearner
from nip_ray.rllib.learners.rows import normalised_like, rewards_with_cuts
from nip_ray.seeding import generator


@dataclass(frozen=True)
class ShapedData:
    """One agent's rows of all rounds played. turn_N: its own turns; value_N, target_N: its critic's; advantage_BR: of every round."""

    rows: AgentRows
    turn_N: Tensor
    value_N: Tensor
    target_N: Tensor
    advantage_BR: Tensor


@dataclass(frozen=True)
class _Scores:
    """What the agents' networks say of a minibatch of K copies: log-probabilities (K, R, A), now and when it was played; by agent the
    mean entropy and the critic's loss, both as this learner's share."""

    log_prob_KRA: Tensor
    old_log_prob_KRA: Tensor
    entropy: dict[str, Tensor]
    critic: dict[str, Tensor]


class StackelbergLearner(ProtocolLearner):
    """Joint updates of all agents by the variant that the settings name."""

    def build(self) -> None:
        """Also who leads whom, and each agent's actor parameters."""
        super().build()
        self.actors: dict[str, list[nn.Parameter]] = {}
        self.step_factors: dict[str, float] = {}
        for agent, network in self.networks.items():
            made: list[ParameterGroup] = cast(Any, network).groups()
            groups = [group for group in made if group.part == "actor" and group.lr_factor > 0]
            self.actors[agent] = [parameter for group in groups for parameter in group.parameters]
            self.step_factors[agent] = max((group.lr_factor for group in groups), default=0.0)
        self.rollout: Rollout | None = None
        self.minibatch_number = 0
        self.iteration_lr = self.settings.lr
        self.inverses: Inverses = {}

    def metric_names(self) -> tuple[str, ...]:
        """Means over minibatches; `direction_norm` is that of the actor's direction before the critic's gradient is added."""
        return ("entropy", "critic", "direction_norm")

    def set_learning_rates(self, lr: float) -> None:
        """Also remembered as the step that followers are supposed to take."""
        super().set_learning_rates(lr)
        self.iteration_lr = lr

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> dict[str, ShapedData]:
        """Rows, values and advantages of every agent that learns, in all rounds played."""
        settings, prepared = self.settings, {}
        self.rollout, self.minibatch_number = rollout, 0
        for index, agent in enumerate(self.scenario.protocol.agents):
            if agent not in self.updated:
                continue
            rows = live_rows(self.scenario, rollout, agent)
            network = self.networks[agent].eval()
            _, value_N = network(rows.obs, False, True)
            reward_BR = rewards_with_cuts(self.scenario, network, rollout, rows, value_N, settings.gamma)
            learning_mode(network)
            advantage_BR, target_BR = own_turn_advantages(reward_BR, rows.spread(value_N), rows.row_BR >= 0, settings.gamma, settings.lam)
            at = (rows.copy_N, rows.round_N)
            prepared[agent] = ShapedData(rows, rollout.turn_BRA[at][:, index], value_N, target_BR[at], advantage_BR)
        return prepared

    def minibatch_gradients(self, prepared: Mapping[str, ShapedData], minibatch: JointMinibatch) -> None:
        """Directions of all actors, and the plain gradients of critics on top."""
        agents = list(prepared)
        scores = self._scores(prepared, minibatch)
        self.stepping = {agent: self.optimizers[agent] for agent in agents}
        published = self.settings.estimator == "published"
        extra = {agent: scores.critic[agent] + self._bonus(scores, agent) if published else scores.critic[agent] for agent in agents}
        for agent, loss in self.similarity_losses(minibatch).items():
            extra[agent] = extra[agent] + loss
        plain = {agent: self._plain_gradient(agent, extra[agent]) for agent in agents}
        advantage_KRA = self._advantages(prepared, minibatch)
        shaped = (self._published if published else self._foreseeing)(prepared, scores, advantage_KRA, minibatch)
        for agent in agents:
            self._set_gradients(agent, shaped[agent], plain[agent])
        self._log(prepared, scores, shaped)
        self.minibatch_number += 1

    # ------------------------------------------------------------------------------------------------------ directions

    def _foreseeing(
        self, prepared: Mapping[str, ShapedData], scores: _Scores, advantage_KRA: Tensor, minibatch: JointMinibatch
    ) -> dict[str, Tensor]:
        """By automatic differentiation of per-sample surrogates."""
        total, live_KR = len(minibatch.all_copies), self._live(minibatch.own_copies)
        world, rank = self._world()
        place_K = torch.arange(rank, total, world, device=self._device)  # of the own copies among all: halves do not depend on learners
        first = total // 2 if self.settings.independent_halves and total > 1 else total

        def losses(of_K: Tensor, count: int) -> dict[str, Tensor]:
            shares = (scores.log_prob_KRA, advantage_KRA, live_KR & of_K[:, None], self.settings.gamma)
            found_A = dice_losses(*shares, *self._clipping(scores), copies=count)
            return {agent: found_A[self._index(agent)] + self._bonus(scores, agent) for agent in prepared}

        actors, followers, step_sizes, draw = self._rule(list(prepared))
        independent = losses(place_K >= first, total - first) if first < total else None
        rule = (actors, followers, self.settings, step_sizes, draw, self._sum_over_learners, self._inverses(), independent)
        return directions(losses(place_K < first, first), *rule)

    def _published(
        self, prepared: Mapping[str, ShapedData], scores: _Scores, advantage_KRA: Tensor, minibatch: JointMinibatch
    ) -> dict[str, Tensor]:
        """By the published products of batch means."""
        losses_A, score = published_losses(
            scores.log_prob_KRA,
            advantage_KRA,
            self._live(minibatch.own_copies),
            *self._clipping(scores),
            frames=self._live(minibatch.all_copies).sum(),
        )
        losses = {agent: losses_A[self._index(agent)] for agent in prepared}
        actors, followers, step_sizes, draw = self._rule(list(prepared))
        return published_directions(
            losses, score, actors, followers, self.settings, step_sizes, draw, self._sum_over_learners, self._inverses()
        )

    def _clipping(self, scores: _Scores) -> tuple[Tensor | None, float | None]:
        if self.settings.variant in ("pspg", "pola", "psos"):
            return scores.old_log_prob_KRA, self.settings.clip_epsilon
        return None, None

    def _rule(
        self, agents: list[str]
    ) -> tuple[dict[str, list[nn.Parameter]], dict[str, tuple[str, ...]], dict[str, float], torch.Generator]:
        """Parameters, followers, steps that followers are supposed to take, and the generator of this minibatch."""
        given, lr = self.settings.shaping_lr, self.iteration_lr
        step_sizes = {agent: given or self.own_lr(agent, lr) * self.step_factors[agent] for agent in agents}
        draw = generator(self.experiment["seed"], "inverse hessian", self.update_iteration, self.minibatch_number, device=self._device)
        return {agent: self.actors[agent] for agent in agents}, self._followers(agents), step_sizes, draw

    def _inverses(self) -> Inverses:
        """Products with inverse Hessians to be used again: nystrom's for some minibatches, the others' never."""
        if self.settings.ihvp != "nystrom" or self.minibatch_number % self.settings.ihvp_refresh == 0:
            self.inverses = {}
        return self.inverses

    def _followers(self, agents: list[str]) -> dict[str, tuple[str, ...]]:
        """Whom each agent leads, among those that learn now."""
        protocol = self.scenario.protocol
        sequence = self.settings.stackelberg_sequence or default_sequence(protocol.agents, protocol.deciders)
        led = leader_follower_map(protocol.agents, sequence, self.settings.mutual)
        return {agent: tuple(other for other in led[agent] if other in agents) for agent in agents}

    # --------------------------------------------------------------------------------------------------------- networks

    def _scores(self, prepared: Mapping[str, ShapedData], minibatch: JointMinibatch) -> _Scores:
        assert self.rollout is not None
        copies, num_rounds = minibatch.own_copies, self.rollout.num_rounds
        place_B = torch.full((self.rollout.num_copies,), -1, device=self._device)
        place_B[copies] = torch.arange(len(copies), device=self._device)
        empty = torch.zeros(len(copies), num_rounds, device=self._device)
        grids, old_grids = dict.fromkeys(self.scenario.protocol.agents, empty), dict.fromkeys(self.scenario.protocol.agents, empty)
        entropy, critics = {}, {}
        for agent, data in prepared.items():
            rows, all_rows = data.rows.of_copies(copies), data.rows.of_copies(minibatch.all_copies)
            turns = rows[data.turn_N[rows]]
            entropy[agent] = empty.sum()
            if len(turns):
                policy = self._log_policy(agent, data.rows, turns)
                at = (place_B[data.rows.copy_N[turns]], data.rows.round_N[turns])
                grids[agent] = empty.index_put(at, policy.log_prob(data.rows.action_of(turns)))
                old_grids[agent] = empty.index_put(at, data.rows.log_prob_N[turns])
                entropy[agent] = policy.entropy().sum() / data.turn_N[all_rows].sum()
            critics[agent] = empty.sum()
            if len(rows):
                _, value_N = self.networks[agent](data.rows.obs_of(rows), False, True)
                distance = critic(value_N, data.value_N[rows], data.target_N[rows], self.settings)
                critics[agent] = self.settings.critic_coefficient * distance * (len(rows) / len(all_rows))
        return _Scores(torch.stack(list(grids.values()), -1), torch.stack(list(old_grids.values()), -1), entropy, critics)

    def _log_policy(self, agent: str, rows: AgentRows, turns: Tensor) -> LogPolicy:
        policy, _ = self.networks[agent](rows.obs_of(turns), True, False)
        if self.settings.skip_silent_messages:
            policy = policy.silenced(rows.action_of(turns))
        return policy.normalised()

    def _plain_gradient(self, agent: str, loss: Tensor) -> Tensor:
        """The gradient of `loss`, flat over all that the agent's optimizer moves, of all learners."""
        parameters = self.optimizers[agent].parameters
        if not loss.requires_grad:  # none of its rows are this learner's
            return self._sum_over_learners(torch.cat([torch.zeros_like(p).reshape(-1) for p in parameters]))
        found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        parts = [torch.zeros_like(p).reshape(-1) if g is None else g.reshape(-1) for g, p in zip(found, parameters, strict=True)]
        return self._sum_over_learners(torch.cat(parts))

    def _advantages(self, prepared: Mapping[str, ShapedData], minibatch: JointMinibatch) -> Tensor:
        """(K, R, A): advantages of the own copies, normalised over the rounds played of all copies of the minibatch."""
        own_KR, all_KR = self._live(minibatch.own_copies), self._live(minibatch.all_copies)
        columns = []
        for agent in self.scenario.protocol.agents:
            column = torch.zeros(own_KR.shape, device=self._device)
            if agent in prepared:
                advantage_BR = prepared[agent].advantage_BR
                column = advantage_BR[minibatch.own_copies]
                if self.settings.normalize_advantage:
                    scaled = normalised_like(column[own_KR], advantage_BR[minibatch.all_copies][all_KR])
                    column = torch.zeros_like(column).masked_scatter(own_KR, scaled)
            columns.append(column)
        return torch.stack(columns, -1)

    def _live(self, copies: Tensor) -> Tensor:
        assert self.rollout is not None
        return torch.arange(self.rollout.num_rounds, device=self._device) < self.rollout.length_B[copies][:, None]

    def _set_gradients(self, agent: str, shaped: Tensor, plain: Tensor) -> None:
        """Actors move along `shaped`, and everything along `plain`."""
        gradients = dict(zip(self.optimizers[agent].parameters, plain.split([p.numel() for p in self.optimizers[agent].parameters])))
        for parameter, piece in zip(self.actors[agent], shaped.split([p.numel() for p in self.actors[agent]]), strict=True):
            gradients[parameter] = gradients[parameter] + piece
        self.optimizers[agent].set_gradients([gradients[parameter] for parameter in self.optimizers[agent].parameters])

    @torch.no_grad()
    def _log(self, prepared: Mapping[str, ShapedData], scores: _Scores, shaped: Mapping[str, Tensor]) -> None:
        for agent in prepared:
            parts = (scores.entropy[agent], scores.critic[agent], torch.linalg.vector_norm(shaped[agent]))
            self.sums.setdefault(agent, []).append(torch.stack([part.detach() for part in parts]))

    def _bonus(self, scores: _Scores, agent: str) -> Tensor:
        return -self.settings.entropy_coefficient * scores.entropy[agent]

    def _index(self, agent: str) -> int:
        return self.scenario.protocol.agents.index(agent)

    def _sum_over_learners(self, vector: Tensor) -> Tensor:
        if self.distributed:
            torch.distributed.all_reduce(vector)
        return vector


def default_sequence(agents: tuple[str, ...], deciders: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Verifiers lead, all others follow; without a verifier the first agent leads."""
    first = tuple(agent for agent in agents if agent in deciders) or agents[:1]
    rest = tuple(agent for agent in agents if agent not in first)
    return (first, rest) if rest else (first,)
