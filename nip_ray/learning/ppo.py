"""Proximal policy optimisation for independent learners: the losses.

Source: Schulman et al., "Proximal policy optimization algorithms", 2017: equation 7 (clip), equation 8 and section 4 (KL penalty).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from nip_ray.settings.ppo import PolicyGradientSettings, PPOSettings
from nip_ray.settings.solo import SupervisedSettings

_LARGEST_LOG_RATIO = 20.0
_DEFAULT_CLIP = 0.2  # of the value's change, under rules that clip no ratios


def base_lr(settings: PolicyGradientSettings | SupervisedSettings, iteration: int, total_iterations: int) -> float:
    """The learning rate of an iteration (from 0): constant, or falling linearly to 0 over `total_iterations` and staying there."""
    return settings.lr * max(0.0, 1 - iteration / total_iterations) if settings.anneal_lr else settings.lr


def mean(x_N: Tensor, weight_N: Tensor | None) -> Tensor:
    """Mean over rows, or over those rows whose weight is 1."""
    return x_N.mean() if weight_N is None else (x_N * weight_N).sum() / weight_N.sum().clamp_min(1)


def objective(
    log_prob_N: Tensor, old_log_prob_N: Tensor, advantage_N: Tensor, settings: PPOSettings, beta: Tensor, weight_N: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, kl, clip_share). clip: -mean min(rho A, clip(rho, 1 - eps, 1 + eps) A); kl_penalty: -mean rho A + beta KL.

    KL is estimated by -mean log rho, as the published library does; clip_share is the share of rows with |rho - 1| > eps.
    """
    log_ratio_N = log_prob_N - old_log_prob_N
    ratio_N = log_ratio_N.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()  # an infinite ratio times no advantage is not a number
    kl = -mean(log_ratio_N, weight_N)
    epsilon = settings.clip_epsilon
    clip_share = mean(((ratio_N.detach() - 1).abs() > epsilon).to(ratio_N.dtype), weight_N)
    if settings.loss == "clip":
        clipped_N = ratio_N.clamp(1 - epsilon, 1 + epsilon)
        return -mean(torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N), weight_N), kl.detach(), clip_share
    return -mean(ratio_N * advantage_N, weight_N) + beta * kl, kl.detach(), clip_share


def critic(
    value_N: Tensor, old_value_N: Tensor, target_N: Tensor, settings: PolicyGradientSettings, weight_N: Tensor | None = None
) -> Tensor:
    """Distance of value and target, the larger of plain and clipped where `clip_value` is set (scalar, without its coefficient)."""
    loss_N = _distance(value_N, target_N, settings)
    if settings.clip_value is not False:
        width = getattr(settings, "clip_epsilon", _DEFAULT_CLIP) if settings.clip_value is True else settings.clip_value
        clipped_N = old_value_N + (value_N - old_value_N).clamp(-width, width)
        loss_N = torch.maximum(loss_N, _distance(clipped_N, target_N, settings))
    return mean(loss_N, weight_N)


def next_beta(beta: Tensor, kl: Tensor, settings: PPOSettings) -> Tensor:
    """The KL coefficient after a minibatch with divergence `kl` (scalar tensors)."""
    grown = torch.where(kl > 1.5 * settings.kl_target, beta * settings.kl_increment, beta)
    return torch.where(kl < settings.kl_target / 1.5, beta * settings.kl_decrement, grown)


def next_lr(lr: float, kl: float, settings: PPOSettings) -> float:
    """The adaptive learning rate after an update whose policies moved by `kl` (mean over its minibatches)."""
    if kl > 2 * settings.kl_target:
        lr = lr / settings.adaptive_lr_factor
    elif kl < settings.kl_target / 2:
        lr = lr * settings.adaptive_lr_factor
    return min(max(lr, settings.adaptive_lr_min), settings.adaptive_lr_max)


def _distance(value_N: Tensor, target_N: Tensor, settings: PolicyGradientSettings) -> Tensor:
    kinds = {"smooth_l1": F.smooth_l1_loss, "l1": F.l1_loss, "l2": F.mse_loss}
    return kinds[settings.critic_loss](value_N, target_N, reduction="none")
