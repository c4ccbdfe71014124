"""Mathematics of policy gradients for independent learners: advantages over own turns, losses of PPO and REINFORCE.

Sources: Schulman et al., "Proximal policy optimization algorithms", 2017: equation 7 (clip), equation 8 and section 4
(KL penalty); Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning",
1992, equation 4.

An agent's transition goes from one of its turns to its next. Its reward is the discounted sum in between; its bootstrap
factor is gamma^(rounds between); the end of the episode cuts both. If the agent acts in every round this is generalised
advantage estimation (Schulman et al., "High-dimensional continuous control using generalized advantage estimation",
2016, equation 16). One factor lambda is applied per own turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from nip_ray.settings.ppo import OnPolicySettings, PPOSettings
from nip_ray.settings.solo import SupervisedSettings


def own_turn_advantages(
    reward_BR: Tensor, value_BR: Tensor, turn_BR: Tensor, gamma: float | Tensor, lam: float
) -> tuple[Tensor, Tensor]:
    """(advantage_BR, target_BR) of one agent in B complete episodes of R rounds.

    reward_BR: its reward in each round (zero after the end). value_BR: its value estimate before acting, read only at
    its turns. turn_BR: bool, its turns (none after the end). Both results are zero outside its turns;
    target = advantage + value.

    gamma: discount per round. Where a row is a stretch in which episodes end, a tensor (B, R) that is 0 in each
    episode's last round; where one is cut off instead of ending, the reward of that round includes the discounted value
    of the next state.
    """
    discounts = gamma.unbind(1) if isinstance(gamma, Tensor) else [gamma] * reward_BR.shape[1]
    rewards, values, turns = reward_BR.unbind(1), value_BR.unbind(1), turn_BR.unbind(1)
    advantage_BR = torch.zeros_like(reward_BR)
    zero_B = torch.zeros_like(reward_BR[:, 0])
    paid_B, bootstrap_B, next_value_B, next_advantage_B = zero_B, zero_B, zero_B, zero_B
    one_B = torch.ones_like(zero_B)
    for r in range(reward_BR.shape[1] - 1, -1, -1):
        turn_B, value_B = turns[r], values[r]
        paid_B = rewards[r] + discounts[r] * paid_B
        bootstrap_B = discounts[r] * bootstrap_B
        here_B = paid_B + bootstrap_B * next_value_B - value_B + lam * bootstrap_B * next_advantage_B
        advantage_BR[:, r] = torch.where(turn_B, here_B, zero_B)
        paid_B = torch.where(turn_B, zero_B, paid_B)
        bootstrap_B = torch.where(turn_B, one_B, bootstrap_B)
        next_value_B = torch.where(turn_B, value_B, next_value_B)
        next_advantage_B = torch.where(turn_B, here_B, next_advantage_B)
    return advantage_BR, torch.where(turn_BR, advantage_BR + value_BR, zero_B[:, None])


def returns_to_go(reward_BR: Tensor, gamma: float) -> Tensor:
    """(B, R): discounted reward from each round to the end of the episode."""
    result_BR = torch.zeros_like(reward_BR)
    running_B = torch.zeros_like(reward_BR[:, 0])
    for r in range(reward_BR.shape[1] - 1, -1, -1):
        running_B = reward_BR[:, r] + gamma * running_B
        result_BR[:, r] = running_B
    return result_BR


def normalise(advantage_N: Tensor) -> Tensor:
    """(A - mean) / max(std, 1e-6). A single row is unchanged."""
    mean, deviation = mean_and_deviation(advantage_N)
    return (advantage_N - mean) / deviation


def mean_and_deviation(advantage_N: Tensor) -> tuple[Tensor | float, Tensor | float]:
    """The scales of `normalise`: the mean, and the standard deviation of all rows, at least 1e-6; 0 and 1 for less than
    two rows."""
    if advantage_N.numel() < 2:
        return 0.0, 1.0
    return advantage_N.mean(), advantage_N.std(unbiased=False).clamp_min(1e-6)


_LARGEST_LOG_RATIO = 20.0
_DEFAULT_CLIP = 0.2  # of the value's change, for algorithms that clip no ratios
_LR_FACTOR = 1.5  # a step of the adaptive learning rate


def base_lr(settings: OnPolicySettings | SupervisedSettings, iteration: int, total_iterations: int) -> float:
    """Learning rate of an iteration (from 0): constant or falling to 0 over `total_iterations` and staying there."""
    left = max(0.0, 1 - iteration / total_iterations)
    factor = {False: 1.0, True: left, "quadratic": left**2}[settings.anneal_lr]
    return settings.lr * factor


def entropy_weight(settings: OnPolicySettings, agent: str) -> float:
    """The weight of this agent's entropy bonus."""
    own = settings.agents.get(agent, settings.agents.get("_default"))
    return settings.entropy_coefficient if own is None or own.entropy_coefficient is None else own.entropy_coefficient


def mean(x_N: Tensor, weight_N: Tensor | None) -> Tensor:
    """Mean over rows, or over those rows whose weight is 1."""
    return x_N.mean() if weight_N is None else (x_N * weight_N).sum() / weight_N.sum().clamp_min(1)


def part(term: Tensor, weight_N: Tensor | None) -> Tensor:
    """The mean over the rows of weight 1, as their part of the mean over all rows."""
    return term if weight_N is None else term * weight_N.mean()


_OF_DRAWN = ("entropy", "message_entropy", "decision_entropy", "value_error", "kl", "clip_share")
_DRAWN, _TAUGHT = "turns/drawn", "turns/taught"


def turn_counts(drawn_N: Tensor | None) -> dict[str, Tensor]:
    """Numbers of turns of weight 1 (drawn) and 0 (from a search), for `mean_over_steps`; none where all are drawn."""
    return {} if drawn_N is None else {_DRAWN: drawn_N.sum(), _TAUGHT: (1 - drawn_N).sum()}


def mean_over_steps(steps: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Means of metrics over optimizer steps; those that a step took over its drawn turns are weighted by their number.

    A metric about turns that there are none of is left out.
    """
    names = [name for name in steps[0] if name not in (_DRAWN, _TAUGHT)]
    rows_SM = torch.stack([torch.stack([step[name] for name in names]) for step in steps]).double()
    means = dict(zip(names, rows_SM.mean(0).tolist(), strict=True))
    if _DRAWN in steps[0]:
        drawn_S, taught_S = (torch.stack([step[name] for step in steps]).double() for name in (_DRAWN, _TAUGHT))
        for name in set(_OF_DRAWN) & means.keys():
            means[name] = float(drawn_S @ rows_SM[:, names.index(name)] / drawn_S.sum().clamp_min(1))
        left_out = [*(_OF_DRAWN if not drawn_S.any() else ()), *(("imitation",) if not taught_S.any() else ())]
        means = {name: value for name, value in means.items() if name not in left_out}
    return means


@dataclass(frozen=True)
class PlayedTurns:
    """Turns that PPO learns from, each (N,): log-probability and value at play, scaled advantage, value target.

    drawn_N: 1 for turns over which entropy, critic and divergence are averaged; sampled_N: for those of the surrogate
    (None: all).
    """

    log_prob_N: Tensor
    value_N: Tensor
    advantage_N: Tensor
    target_N: Tensor
    drawn_N: Tensor | None = None
    sampled_N: Tensor | None = None


@dataclass(frozen=True)
class PPOLoss:
    """The three terms of PPO's loss, whose sum is minimised, and three metrics of it; all scalars. distance: the
    critic's without its coefficient."""

    objective: Tensor
    entropy: Tensor
    critic: Tensor
    distance: Tensor
    kl: Tensor
    clip_share: Tensor

    @property
    def value(self) -> Tensor:
        """The sum of the terms."""
        return self.objective + self.entropy + self.critic


def ppo_loss(
    log_prob_N: Tensor,
    entropy: Tensor,
    value_N: Tensor,
    played: PlayedTurns,
    settings: PPOSettings,
    beta: Tensor,
    bonus: float,
) -> PPOLoss:
    """PPO's loss on N turns: the policy objective, the entropy bonus and the critic.

    log_prob_N, entropy (the mean over turns, scalar), value_N: of the learning networks. beta: the coefficient of the
    KL penalty, only for the loss "kl_penalty". bonus: the weight of the entropy.
    """
    log_probs = (log_prob_N, played.log_prob_N)
    surrogate, kl, clip_share = objective(*log_probs, played.advantage_N, settings, played.sampled_N, played.drawn_N)
    actor = part(surrogate, played.sampled_N)
    if settings.loss == "kl_penalty":
        actor = actor + part(beta * kl, played.drawn_N)
    distance = critic(value_N, played.value_N, played.target_N, settings, played.drawn_N)
    return PPOLoss(
        objective=actor,
        entropy=part(-bonus * entropy, played.drawn_N),
        critic=part(settings.critic_coefficient * distance, played.drawn_N),
        distance=distance,
        kl=kl.detach(),
        clip_share=clip_share,
    )


def objective(
    log_prob_N: Tensor,
    old_log_prob_N: Tensor,
    advantage_N: Tensor,
    settings: PPOSettings,
    sampled_N: Tensor | None = None,
    drawn_N: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(surrogate, kl, clip_share). clip: -mean min(rho A, clip(rho, 1 - eps, 1 + eps) A); kl_penalty: -mean rho A.

    sampled_N, drawn_N: see `PlayedTurns`; the surrogate is a mean over the former, the other two over the latter. KL is
    estimated by -mean log rho, as the published library does; clip_share is the share of rows with |rho - 1| > eps.
    """
    log_ratio_N = log_prob_N - old_log_prob_N
    # an infinite ratio times zero advantage is NaN
    ratio_N = log_ratio_N.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()
    kl = -mean(log_ratio_N, drawn_N)
    epsilon = settings.clip_epsilon
    clip_share = mean(((ratio_N.detach() - 1).abs() > epsilon).to(ratio_N.dtype), drawn_N)
    if settings.loss == "clip":
        clipped_N = ratio_N.clamp(1 - epsilon, 1 + epsilon)
        return -mean(torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N), sampled_N), kl, clip_share
    return -mean(ratio_N * advantage_N, sampled_N), kl, clip_share


def critic(
    value_N: Tensor, old_value_N: Tensor, target_N: Tensor, settings: OnPolicySettings, weight_N: Tensor | None = None
) -> Tensor:
    """Distance of value and target, the larger of plain and clipped if `clip_value` is set (scalar, no coefficient)."""
    loss_N = _distance(value_N, target_N, settings)
    if settings.clip_value is not False:
        width = getattr(settings, "clip_epsilon", _DEFAULT_CLIP) if settings.clip_value is True else settings.clip_value
        clipped_N = old_value_N + (value_N - old_value_N).clamp(-width, width)
        loss_N = torch.maximum(loss_N, _distance(clipped_N, target_N, settings))
    return mean(loss_N, weight_N)


def next_beta(beta: Tensor, kl: Tensor, settings: PPOSettings) -> Tensor:
    """The KL coefficient after a minibatch with divergence `kl` (scalar tensors)."""
    grown = torch.where(kl > 1.5 * settings.kl_target, 2 * beta, beta)
    return torch.where(kl < settings.kl_target / 1.5, beta / 2, grown)


def next_lr(lr: float, kl: float, settings: PPOSettings) -> float:
    """The adaptive learning rate after an update that moved policies by `kl` (mean over its minibatches)."""
    if kl > 2 * settings.kl_target:
        lr = lr / _LR_FACTOR
    elif kl < settings.kl_target / 2:
        lr = lr * _LR_FACTOR
    return min(max(lr, settings.adaptive_lr_min), settings.adaptive_lr_max)


def _distance(value_N: Tensor, target_N: Tensor, settings: OnPolicySettings) -> Tensor:
    kinds = {"smooth_l1": F.smooth_l1_loss, "l1": F.l1_loss, "l2": F.mse_loss}
    return kinds[settings.critic_loss](value_N, target_N, reduction="none")


def score_loss(
    log_prob_N: Tensor, old_log_prob_N: Tensor, weight_N: Tensor, max_importance_weight: float | None
) -> Tensor:
    """-mean rho * log pi * weight over N turns, a scalar whose gradient is minus the policy gradient.

    weight_N: reward to go or advantage. rho is the ratio of the learning policy to the playing one, at most
    `max_importance_weight` and without a gradient; it is 1 in the first step on a rollout and left out if that is None.
    """
    score_N = log_prob_N * weight_N
    if max_importance_weight is not None:
        with torch.no_grad():
            ratio_N = (log_prob_N - old_log_prob_N).clamp(max=20.0).exp().clamp(max=max_importance_weight)
        score_N = score_N * ratio_N
    return -score_N.mean()
