"""PPO's update in fixed shapes: all agents' losses at once, their gradients written out, and nothing asked of the device on the way.

Decisions that matter here:
- the mathematics is that of `learning.policy_gradient`; rows that were not played have weight 0, so means are over the same turns;
- what minibatches need is prepared once an update and laid in their order once an epoch: a minibatch is then a slice;
- the loss is differentiated by hand down to logits and values, which takes a third of the kernels; autograd continues from there;
- figures are taken from what the steps found, once an update.
Axes: B copies of an iteration, C of a minibatch, T turns, N = C * T, A agents, Q factors, S symbols, R rounds; see `play.static`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nip_ray.learning.captured import Captured
from nip_ray.learning.dqn import FORBIDDEN
from nip_ray.learning.groups import FlatOptimizer, clip_gradients, learning_mode
from nip_ray.learning.policy_gradient import entropy_weight, next_beta
from nip_ray.play.rollout import Rollout
from nip_ray.play.scenario import Scenario, columns
from nip_ray.play.static import Layout, Observations, layout_of, together, turn_rounds
from nip_ray.settings.ppo import PPOSettings

METRICS = (
    "objective", "entropy_loss", "critic", "entropy", "message_entropy", "decision_entropy", "kl", "clip_share", "value_error"
)  # fmt: skip
_LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Found:
    """What an update of `agents` found, by agent (A,). metrics: means over minibatches; norm: of gradients before clipping, mean;
    explained: the share of the targets' variance that old values explain; beta: of the KL penalty afterwards; divergence: mean of the k3
    estimate of KL.
    """

    agents: Sequence[str]
    metrics: Mapping[str, Tensor]
    norm: Tensor
    explained: Tensor
    beta: Tensor
    divergence: Tensor


class StaticUpdate:
    """All minibatches of an update of `agents`, whose networks and optimizers these are."""

    def __init__(
        self,
        scenario: Scenario,
        agents: Sequence[str],
        networks: Mapping[str, nn.Module],
        optimizers: Mapping[str, FlatOptimizer],
        settings: PPOSettings,
    ) -> None:
        protocol, device = scenario.protocol, scenario.label_I.device
        self.scenario, self.settings, self.agents = scenario, settings, list(agents)
        self.networks = [networks[agent] for agent in agents]
        self.optimizers = [optimizers[agent] for agent in agents]
        if device.type == "cuda":
            for optimizer in self.optimizers:
                optimizer.work_in_graphs()
        self.parameters = [parameter for optimizer in self.optimizers for parameter in optimizer.parameters]
        self.computed = together(scenario, {agent: networks[agent] for agent in agents}, True)
        places = [protocol.agents.index(agent) for agent in agents]
        whole = layout_of(scenario)
        self.layout = Layout(
            tuple(whole.factors[a] for a in places), tuple(whole.deciders[a] for a in places), whole.symbols, whole.decisions
        )
        self.place_A = torch.tensor(places, device=device)
        self.round_SAT = turn_rounds(protocol)[:, :, places].transpose(1, 2).contiguous().to(device)
        self.entropy_A = torch.tensor([entropy_weight(settings, agent) for agent in agents], device=device)
        self.powers_SATR, self.next_SAT = self._powers().to(device), self._between().to(device)
        self._captured = Captured(self._learned, device)
        self.decision_AQ = torch.zeros(self.layout.shape[:2], dtype=torch.bool, device=device)
        for i, count in enumerate(self.layout.factors):
            self.decision_AQ[i, count : count + 1] = self.layout.deciders[i]
        self.columns = [columns(protocol.writes[agent]) for agent in agents]

    def _powers(self) -> Tensor:
        """(S, A, T, R): the discount of what is paid in a round, from each turn until the next one."""
        begin = self.round_SAT.cpu()
        rounds = torch.arange(self.scenario.protocol.max_rounds)
        end = torch.cat([begin[..., 1:], torch.full_like(begin[..., :1], -1)], -1)
        end = torch.where(end < 0, len(rounds), end)
        since = rounds - begin[..., None]
        inside = (since >= 0) & (rounds < end[..., None]) & (begin >= 0)[..., None]
        return torch.where(inside, self.settings.gamma ** since.clamp_min(0).double(), 0.0).float()

    def _between(self) -> Tensor:
        """(S, A, T): the discount from each turn to the next, 0 after the last."""
        begin = self.round_SAT.cpu()
        gap = begin[..., 1:] - begin[..., :-1]
        found = torch.where(begin[..., 1:] >= 0, self.settings.gamma ** gap.clamp_min(0).double(), 0.0).float()
        return torch.cat([found, torch.zeros(*begin.shape[:2], 1)], -1)

    def __call__(self, rollout: Rollout, order_EB: Tensor, beta_A: Tensor) -> Found:
        """Learn. order_EB: the copies in each epoch's order; beta_A: coefficients of the KL penalty."""
        found = self._captured(order_EB, beta_A, *(getattr(rollout, part.name) for part in fields(rollout)))
        metric_A, norm_A, explained_A, beta_A, divergence_A = cast(tuple[Tensor, ...], found)
        return Found(self.agents, dict(zip(METRICS, metric_A.unbind(0), strict=True)), norm_A, explained_A, beta_A, divergence_A)

    def bounds(self, copies: int, rounds: int) -> list[tuple[int, int]]:
        """Where minibatches begin and end among so many copies: as many whole ones as there are, a remainder joins the last."""
        size = max(1, min(copies, self.settings.minibatch_copies or self.settings.minibatch_size // rounds))
        count = copies // size
        return [(i * size, copies if i == count - 1 else (i + 1) * size) for i in range(count)]

    def _learned(self, order_EB: Tensor, beta_A: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        rollout = Rollout(*parts)
        bounds = self.bounds(rollout.num_copies, rollout.num_rounds)
        rows, inputs, explained_A = self._prepared(rollout)
        seen: list[dict[str, Tensor]] = []
        norms: list[list[Tensor]] = []
        for order_B in order_EB.unbind(0):
            own, given = ({name: part.index_select(0, order_B) for name, part in parts.items()} for parts in (rows, inputs))
            own |= _weighed(own, bounds, self.entropy_A, self.settings.normalize_advantage)
            for first, last in bounds:
                batch = {name: part[first:last].flatten(0, 1) for name, part in own.items()}
                found, norm = self._step(batch, {name: part[first:last] for name, part in given.items()}, beta_A)
                kept = {"log_ratio": found[0], "minus_entropy": found[1], "value": found[2], "old_value": batch["value"]}
                if self.settings.loss == "kl_penalty":
                    kept["beta"] = beta_A.expand_as(found[0])
                    beta_A = next_beta(beta_A, -(found[0] * batch["share"]).sum(0), self.settings)
                seen.append(kept | {name: batch[name] for name in ("share", "advantage", "target", "in_play")})
                norms.append(norm)
        return self._found(seen, norms, explained_A, beta_A)

    # ---------------------------------------------------------------------------------------------- once an update

    @torch.no_grad()
    def _prepared(self, rollout: Rollout) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """Data of all turns (B, T, A, ...), what the networks read (B, ...), and the variance that old values explain (A,)."""
        class_B = rollout.seed_B % len(self.round_SAT)
        round_BAT = self.round_SAT[class_B]
        copies, _, turns = round_BAT.shape
        where = torch.arange(copies, device=round_BAT.device)[:, None, None], round_BAT.clamp_min(0), self.place_A[:, None]
        live_BAT = rollout.turn_BRA[where] & (round_BAT >= 0)
        copy_N = where[0].expand(-1, 1, turns).reshape(-1)
        id_N, seed_N, said = rollout.id_B[copy_N], rollout.seed_B[copy_N], rollout.dialogue.rows(copy_N)
        obs = {}
        for i, agent in enumerate(self.agents):
            round_N = where[1][:, i].reshape(-1)
            obs[agent] = self.scenario.observe(agent, id_N, said.before(round_N), round_N, seed_N)
        inputs = self.computed.inputs(obs, turns)
        for network in self.networks:
            network.eval()
        found = self.computed(inputs)
        for network in self.networks:
            learning_mode(network)
        value_BAT = torch.stack([found[agent][1].view(copies, turns) for agent in self.agents], 1)
        decision_BAT = rollout.decision_BRA[where]
        reward_BAR = rollout.reward_BRA.index_select(2, self.place_A).transpose(1, 2)
        paid_BAT = (self.powers_SATR[class_B] * reward_BAR[:, :, None]).sum(-1)
        advantage_BAT = _advantages(paid_BAT, self.next_SAT[class_B], value_BAT, live_BAT, self.settings.lam)
        target_BAT = advantage_BAT + value_BAT
        rows = {
            "action": self._actions(rollout.main_BRACM[where], decision_BAT),
            "in_play": self._in_play(obs, decision_BAT),
            "old": rollout.log_prob_BRA[where],
            "value": value_BAT,
            "target": target_BAT,
            "advantage": advantage_BAT,
            "live": live_BAT.to(value_BAT.dtype),
        }
        rows = {name: part.transpose(1, 2).contiguous() for name, part in rows.items()}
        return rows, inputs, _explained(value_BAT, target_BAT, live_BAT)

    def _actions(self, said_BATCM: Tensor, decision_BAT: Tensor) -> Tensor:
        factors = self.layout.shape[1]
        action = torch.zeros(*decision_BAT.shape, factors, dtype=torch.int64, device=decision_BAT.device)
        for i, own in enumerate(self.columns):
            action[:, i, :, : self.layout.factors[i]] = said_BATCM[:, i, :, own].flatten(2).clamp_min(0)
            if self.layout.deciders[i]:
                action[:, i, :, self.layout.factors[i]] = decision_BAT[:, i]
        return action

    def _in_play(self, obs: Observations, decision_BAT: Tensor) -> Tensor:
        """(B, A, T, Q) float: which factors count in each turn."""
        copies, agents, turns = decision_BAT.shape
        found_NAQ = torch.zeros(copies * turns, agents, self.layout.shape[1], device=decision_BAT.device)
        for i, agent in enumerate(self.agents):
            self.layout.put_masks(found_NAQ, i, obs[agent]["speaks"], obs[agent]["may_decide"])
        found = found_NAQ.view(copies, turns, agents, -1).transpose(1, 2)
        if self.settings.skip_silent_messages:  # see `Policy.silenced`
            speaks = (decision_BAT == self.scenario.protocol.undecided)[..., None] | self.decision_AQ[:, None]
            found = found * speaks
        return found

    # ---------------------------------------------------------------------------------------------- every minibatch

    def _step(self, batch: Mapping[str, Tensor], inputs: Mapping[str, Tensor], beta_A: Tensor) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """One step of everyone. Returns log ratios (N, A), entropies (N, A, Q), values (N, A), and norms of gradients."""
        outputs = self.computed(inputs)
        with torch.no_grad():
            logits = batch["in_play"].new_full((len(batch["live"]), *self.layout.shape), FORBIDDEN)
            for i, agent in enumerate(self.agents):
                policy = outputs[agent][0]
                self.layout.put(logits, i, policy)
            value_NA = torch.stack([outputs[agent][1] for agent in self.agents], 1)
            log_NAQS = torch.log_softmax(logits, -1)
            p_NAQS = log_NAQS.exp()
            minus_entropy_NAQ = (p_NAQS * log_NAQS).sum(-1)
            action = batch["action"].unsqueeze(-1)
            log_ratio_NA = (log_NAQS.gather(-1, action).squeeze(-1) * batch["in_play"]).sum(-1) - batch["old"]
            slope_NAQ = self._policy_slope(log_ratio_NA, batch, beta_A)[..., None] * batch["in_play"]
            d_NAQS = (log_NAQS - minus_entropy_NAQ[..., None]) * batch["entropy"][..., None]
            d_NAQS = (d_NAQS - slope_NAQ[..., None]) * p_NAQS
            d_NAQS.scatter_add_(-1, action, slope_NAQ[..., None])
            d_value_NA = self._value_slope(value_NA, batch)
        along, given = [], []
        for i, agent in enumerate(self.agents):
            policy, value_N = outputs[agent]
            along += [policy.message, *([] if policy.decision is None else [policy.decision]), value_N]
            given += [*self.layout.parts(d_NAQS, i), d_value_NA[:, i]]
        learned = [(output, slope) for output, slope in zip(along, given, strict=True) if output.requires_grad]
        gradients = iter(torch.autograd.grad(*([x[0] for x in learned], self.parameters, [x[1] for x in learned]), allow_unused=True))
        for optimizer in self.optimizers:
            optimizer.set_gradients([next(gradients) for _ in optimizer.parameters])
        limit, joint = self.settings.max_grad_norm, self.settings.clip_gradients == "joint"
        norms = [clip_gradients(group, limit, False) for group in ([self.optimizers] if joint else [[own] for own in self.optimizers])]
        for optimizer in self.optimizers:
            optimizer.step()
        return (log_ratio_NA, minus_entropy_NAQ, value_NA), norms

    def _policy_slope(self, log_ratio_NA: Tensor, batch: Mapping[str, Tensor], beta_A: Tensor) -> Tensor:
        """(N, A): the derivative of the policy's loss by the log-probability of what was done; see `objective`."""
        bounded_NA = log_ratio_NA.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
        ratio_NA = bounded_NA.exp()
        gain_NA = ratio_NA * batch["advantage"]
        counts_NA = bounded_NA == log_ratio_NA
        if self.settings.loss == "clip":
            epsilon = self.settings.clip_epsilon
            counts_NA &= gain_NA <= ratio_NA.clamp(1 - epsilon, 1 + epsilon) * batch["advantage"]
            return gain_NA * counts_NA * batch["minus_share"]
        return (gain_NA * counts_NA + beta_A) * batch["minus_share"]

    def _value_slope(self, value_NA: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """(N, A): the derivative of the critic's loss by the value; see `critic`."""
        settings = self.settings
        error_NA = value_NA - batch["target"]
        slope_NA = _slope(error_NA, settings.critic_loss)
        if settings.clip_value is not False:
            width = settings.clip_epsilon if settings.clip_value is True else settings.clip_value
            moved_NA = value_NA - batch["value"]
            clipped_NA = batch["value"] + moved_NA.clamp(-width, width) - batch["target"]
            inside_NA = _slope(clipped_NA, settings.critic_loss) * (moved_NA.abs() <= width)
            slope_NA = torch.where(
                _distance(clipped_NA, settings.critic_loss) > _distance(error_NA, settings.critic_loss), inside_NA, slope_NA
            )
        return slope_NA * batch["minus_share"] * -settings.critic_coefficient

    # ---------------------------------------------------------------------------------------------- afterwards

    @torch.no_grad()
    def _found(self, seen: list[dict[str, Tensor]], norms: list[list[Tensor]], explained_A: Tensor, beta_A: Tensor) -> tuple[Tensor, ...]:
        settings, steps = self.settings, len(norms)
        every = {name: torch.cat([step[name] for step in seen]) for name in seen[0]}  # (X, A, ...)
        share_XA, ratio_XA = every["share"], every["log_ratio"].clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()

        def mean(x_XA: Tensor) -> Tensor:
            return (x_XA * share_XA).sum(0) / steps

        gain_XA, epsilon = ratio_XA * every["advantage"], settings.clip_epsilon
        if settings.loss == "clip":
            actor_A = -mean(torch.minimum(gain_XA, ratio_XA.clamp(1 - epsilon, 1 + epsilon) * every["advantage"]))
        else:
            actor_A = -mean(gain_XA + every["beta"] * every["log_ratio"])
        error_XA = every["value"] - every["target"]
        loss_XA = _distance(error_XA, settings.critic_loss)
        if settings.clip_value is not False:
            width = epsilon if settings.clip_value is True else settings.clip_value
            moved_XA = every["old_value"] + (every["value"] - every["old_value"]).clamp(-width, width) - every["target"]
            loss_XA = torch.maximum(loss_XA, _distance(moved_XA, settings.critic_loss))
        entropy_XAQ = -every["minus_entropy"] * every["in_play"]
        decision_XA = (entropy_XAQ * self.decision_AQ).sum(-1)
        message_A, decision_A = mean(entropy_XAQ.sum(-1) - decision_XA), mean(decision_XA)
        metrics = (
            actor_A,
            -self.entropy_A * (message_A + decision_A),
            settings.critic_coefficient * mean(loss_XA),
            message_A + decision_A,
            message_A,
            decision_A,
            -mean(every["log_ratio"]),
            mean(((ratio_XA - 1).abs() > epsilon).to(ratio_XA.dtype)),
            mean(error_XA.abs()),
        )
        # as the adaptive learning rate sums it: over all turns of all minibatches
        live_XA = (share_XA > 0).to(share_XA.dtype)
        divergence_A = ((every["log_ratio"].exp() - 1 - every["log_ratio"]) * live_XA).sum(0) / live_XA.sum(0)
        norm_A = torch.stack([norm for own in norms for norm in own]).view(steps, -1).double().mean(0).expand(len(self.agents))
        return torch.stack(metrics), norm_A, explained_A, beta_A, divergence_A


def _advantages(paid_BAT: Tensor, next_BAT: Tensor, value_BAT: Tensor, live_BAT: Tensor, lam: float) -> Tensor:
    """`own_turn_advantages` where turns stand one after the other. paid_BAT: until the next one; next_BAT: the discount of what follows."""
    live = live_BAT.to(value_BAT.dtype)
    next_BAT = next_BAT * live.roll(-1, -1)  # nothing follows the last turn: its discount is 0
    surprise_TBA = (paid_BAT + next_BAT * value_BAT.roll(-1, -1) - value_BAT).unbind(-1)
    fades_TBA = (lam * next_BAT).unbind(-1)
    found = [surprise_TBA[-1]]
    for t in range(len(surprise_TBA) - 2, -1, -1):
        found.append(torch.addcmul(surprise_TBA[t], fades_TBA[t], found[-1]))
    return torch.stack(found[::-1], -1) * live


def _explained(value_BAT: Tensor, target_BAT: Tensor, live_BAT: Tensor) -> Tensor:
    """(A,): 1 - Var(target - value) / Var(target), over turns that were taken."""
    live = live_BAT.to(value_BAT.dtype)
    both = torch.stack([target_BAT - value_BAT, target_BAT]) * live
    count_A = live.sum((0, 2))
    mean_2A = both.sum((1, 3)) / count_A
    variance_2A = ((both - mean_2A[:, None, :, None]) * live).square().sum((1, 3)) / count_A
    return 1 - variance_2A[0] / variance_2A[1].clamp_min(1e-6)


def _weighed(own: Mapping[str, Tensor], bounds: Sequence[tuple[int, int]], entropy_A: Tensor, normalised: bool) -> dict[str, Tensor]:
    """What an epoch adds to its rows (B, T, A): advantages normalised over each minibatch, each turn's share in its means (0 where it was
    not taken), minus that, and the weight of the entropy of each factor."""
    size = bounds[0][1] - bounds[0][0]
    equal = len(bounds) if bounds[-1][1] - bounds[-1][0] == size else len(bounds) - 1  # the last may be larger
    parts = []
    for first, last, count in ((0, equal * size, equal), (equal * size, bounds[-1][1], 1)):
        if last > first:
            live, advantage = (own[name][first:last].unflatten(0, (count, -1)) for name in ("live", "advantage"))
            turns = live.sum((1, 2), keepdim=True)
            share = live / turns.clamp_min(1)
            if normalised:
                mean = (advantage * share).sum((1, 2), keepdim=True)
                apart = advantage - mean
                deviation = (apart.square() * share).sum((1, 2), keepdim=True).sqrt().clamp_min(1e-6)
                advantage = torch.where(turns > 1, apart / deviation, advantage)
            parts.append((advantage.flatten(0, 1), share.flatten(0, 1)))
    advantage, share = (part[0] if len(part) == 1 else torch.cat(part) for part in zip(*parts, strict=True))
    entropy = (share * entropy_A)[..., None] * own["in_play"]
    return {"advantage": advantage, "share": share, "minus_share": -share, "entropy": entropy}


def _distance(error: Tensor, kind: str) -> Tensor:
    return {"smooth_l1": F.smooth_l1_loss, "l1": F.l1_loss, "l2": F.mse_loss}[kind](error, torch.zeros_like(error), reduction="none")


def _slope(error: Tensor, kind: str) -> Tensor:
    """The derivative of `_distance`."""
    return {"smooth_l1": lambda: error.clamp(-1, 1), "l1": error.sign, "l2": lambda: 2 * error}[kind]()
