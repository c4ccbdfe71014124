"""Deep Q-learning: choices, targets, loss and target networks, under legal-action masks.

Sources: Mnih et al., "Human-level control through deep reinforcement learning", 2015 (algorithm 1: epsilon-greedy play,
targets, target network, clipped errors); van Hasselt et al., "Deep reinforcement learning with double Q-learning", 2016
(equation 4); Wang et al., "Dueling network architectures for deep reinforcement learning", 2016 (equation 9); Schaul et
al., "Prioritized experience replay", 2016 (section 3.4: weights of errors); Lillicrap et al., "Continuous control with
deep reinforcement learning", 2016 (moving target networks).

Decisions that matter here:
- an illegal action is never chosen, explored or bootstrapped from, and does not affect the values of legal ones;
- values after an end are left out, not multiplied by zero: they may be infinite;
- exploration draws two numbers a row for all masks and rates, so that equal seeds give equal draws on every path;
- the logits of a turn's one message are its values, so the most likely move is the greedy one.

Axes: N rows, K actions. Masks are bool, true for legal. A row without a legal action is one after an end: its value is
0.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn

from nip_ray.learning.policy import Policy
from nip_ray.settings.dqn import DQNRoleSettings, DQNSettings

FORBIDDEN = -1e9
"""The logit of an illegal symbol."""


def legal_moves(obs: Mapping[str, Tensor], logits_NK: Tensor) -> Tensor:
    """(N, K) bool: "legal" in the observation, else all symbols whose logits are not those of forbidden ones."""
    return obs["legal"].bool() if "legal" in obs else logits_NK > FORBIDDEN / 2


def only(action_N: Tensor, like_NK: Tensor) -> Tensor:
    """(N, K): logits under which each row's action is certain."""
    return torch.full_like(like_NK, FORBIDDEN).scatter_(-1, action_N[:, None], 0.0)


class GreedyPlayer(nn.Module):
    """A network of values as a player: its best move is certain, so sampled, greedy and exact play agree."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.training = network, network.training

    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        """The network's output, with the logits of all moves but the best at -1e9."""
        policy, value_N = self.network(obs, want_policy, want_value)
        if policy is not None:
            q_NK = policy.message[:, 0]
            policy = replace(policy, message=only(greedy(q_NK, legal_moves(obs, q_NK)), q_NK)[:, None])
        return policy, value_N


def greedy(q_NK: Tensor, legal_NK: Tensor) -> Tensor:
    """(N,) int64: the legal action of the highest value, the first among equals; 0 in a row without a legal action."""
    return q_NK.masked_fill(~legal_NK, float("-inf")).argmax(-1)


def epsilon_greedy(q_NK: Tensor, legal_NK: Tensor, epsilon: float | Tensor, generator: torch.Generator) -> Tensor:
    """(N,) int64: with probability `epsilon` (a number, or one per row) a uniform legal action, else the greedy one.

    Draws 2N numbers from `generator`, on its device.
    """
    return explored(
        q_NK, legal_NK, epsilon, torch.rand(len(q_NK), 2, generator=generator, device=generator.device).to(q_NK.device)
    )


def explored(q_NK: Tensor, legal_NK: Tensor, epsilon: float | Tensor, uniform_N2: Tensor) -> Tensor:
    """`epsilon_greedy` with given numbers (N, 2), uniform in [0, 1): whether to explore, and which action."""
    count_N = legal_NK.sum(-1)
    # index among the legal ones: a product may round up to their number
    place_N = (uniform_N2[:, 1] * count_N).long().minimum(count_N - 1)
    random_N = (legal_NK.cumsum(-1) > place_N[:, None]).to(torch.uint8).argmax(-1)
    return torch.where(uniform_N2[:, 0] < epsilon, random_N, greedy(q_NK, legal_NK))


def taken(q_NK: Tensor, action_N: Tensor) -> Tensor:
    """(N,): the values of the actions taken."""
    return q_NK.gather(-1, action_N.long()[:, None]).squeeze(-1)


def dueling(value_N: Tensor, advantage_NK: Tensor, legal_NK: Tensor) -> Tensor:
    """(N, K): Q = V + A - mean A, the mean over legal actions (Wang et al., equation 9). Illegal ones are undefined."""
    counted_NK = advantage_NK.masked_fill(~legal_NK, 0.0)
    mean_N1 = counted_NK.sum(-1, keepdim=True) / legal_NK.sum(-1, keepdim=True).clamp_min(1)
    return value_N[:, None] + advantage_NK - mean_N1


def next_value(target_q_NK: Tensor, legal_NK: Tensor, online_q_NK: Tensor | None = None) -> Tensor:
    """(N,): the value of the next state: the target network's value of the best legal action, 0 if there is none.

    online_q_NK: values by which the best one is chosen (double Q-learning: the trained network's, van Hasselt et al.,
    equation 4); None: the target network's own (Mnih et al.).
    """
    chosen_N = greedy(target_q_NK if online_q_NK is None else online_q_NK, legal_NK)
    return torch.where(legal_NK.any(-1), taken(target_q_NK, chosen_N), 0.0)


@torch.no_grad()
def td_target(
    reward_N: Tensor, discount_N: Tensor, target_q_NK: Tensor, legal_NK: Tensor, online_q_NK: Tensor | None = None
) -> Tensor:
    """(N,), without a gradient: reward + discount * value of the next state, the reward alone where the discount is 0.

    reward_N, discount_N: of one transition or of n (`transitions.n_step`); the discount is 0 after an end, and not
    after a cut. target_q_NK, legal_NK, online_q_NK: about the next observation; see `next_value`.
    """
    value_N = next_value(target_q_NK, legal_NK, online_q_NK)
    return torch.where(discount_N > 0, reward_N + discount_N * value_N, reward_N)


def td_loss(
    q_N: Tensor, target_N: Tensor, settings: DQNSettings, weight_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(loss, error_N): mean over N rows of weight * distance of value and target, and target - value without gradient.

    smooth_l1: error^2 / (2 beta) below beta, |error| - beta / 2 above (at beta 1 the clipped errors of Mnih et al.);
    l2: error^2 / 2. weight_N: importance weights of prioritised replay (None: all 1). The mean is over rows, not over
    weights, so small weights give small steps (Schaul et al., section 3.4).
    """
    error_N = target_N - q_N
    if settings.loss == "smooth_l1":
        distance_N = F.smooth_l1_loss(q_N, target_N, reduction="none", beta=settings.loss_beta)
    else:
        distance_N = 0.5 * error_N.square()
    loss = distance_N.mean() if weight_N is None else (weight_N * distance_N).mean()
    return loss, error_N.detach()


def target_is_due(settings: DQNRoleSettings, step: int) -> bool:
    """Return True if the target network moves before gradient step `step` (from 0, where it always does)."""
    return step % settings.target_interval == 0


@torch.no_grad()
def update_target(target: nn.Module, online: nn.Module, tau: float) -> None:
    """target <- (1 - tau) target + tau online, in place: a copy for tau 1, a Polyak average for small tau each step.

    Buffers of real numbers (running statistics of batch norms) move like parameters, others (counters, tables) are
    copied. Raises ValueError unless the two networks have the same parameters and buffers.
    """
    its = {**dict(online.named_parameters()), **dict(online.named_buffers())}
    mine = {**dict(target.named_parameters()), **dict(target.named_buffers())}
    if strangers := its.keys() ^ mine.keys():
        raise ValueError(f"target network: not the same network, they differ in {', '.join(sorted(strangers))}")
    moved = [name for name, value in mine.items() if tau < 1 and value.is_floating_point()]
    copied = [name for name in mine if name not in moved] if len(moved) < len(mine) else []
    if moved:
        get_ema_multi_avg_fn(1 - tau)([mine[name] for name in moved], [its[name] for name in moved], None)
    for name in copied:
        mine[name].copy_(its[name])


def build_optimizer(parameters: Iterable[Any], settings: DQNRoleSettings, lr: float) -> torch.optim.Optimizer:
    """A role's optimizer over `parameters` (or torch's groups of them), with the initial learning rate `lr`."""
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=lr, weight_decay=settings.weight_decay)
    return torch.optim.Adam(
        parameters, lr=lr, eps=settings.adam_epsilon, weight_decay=settings.weight_decay, fused=True
    )


@contextmanager
def low_products(wanted: bool) -> Iterator[None]:
    """Within it, matrix products of float32 round their factors to bfloat16, on processors with such instructions.

    Faster than autocast, which converts activations and gradients between layers; everything else is unchanged.
    """
    settings = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before = settings.fp32_precision
    if wanted:
        settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before
