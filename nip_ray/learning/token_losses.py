"""Policy gradient on the tokens of language agents: advantages of turns, and the loss on sampled tokens.

N turns, padded to T tokens; `mask_NT` marks (1 or 0) the tokens that the agent itself sampled, the end of its reply
included. A turn's return is `nip_ray.learning.policy_gradient.returns_to_go` at its round: its agent's discounted
reward from there on, per protocol round.

Sources, by the names used below:
- PPO: Schulman et al., "Proximal policy optimization algorithms", 2017 (1707.06347);
- GRPO: Shao et al., "DeepSeekMath", 2024 (2402.03300); RLOO: Ahmadian et al., "Back to basics", 2024 (2402.14740);
- DAPO: Yu et al., 2025 (2503.14476); Dr. GRPO: Liu et al., "Understanding R1-Zero-like training", 2025 (2503.20783);
- GSPO: Zheng et al., "Group sequence policy optimization", 2025 (2507.18071); SPIRAL: Liu et al., 2025 (2506.24119);
- Schulman, "Approximating KL divergence", 2020 (joschu.net/blog/kl-approx.html): the estimators k2 and k3.
"""

import reprlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nip_ray.errors import TrainingError, UserError
from nip_ray.settings.policy_gradient import PolicyGradientSettings, RatioClipSettings, TokenTrainingSettings

_LARGEST_LOG_RATIO = 20.0  # an infinite ratio times zero advantage is NaN
MAXIMUM = "_max"
"""Suffix of metrics whose maximum counts, not the mean."""
_TAKEN = {"tokens", "loss", "entropy", "kl", "logprob_difference", "grad_norm", "steps", "staleness"}
"""Metrics of a step that do not come from the surrogate."""
_TAKEN |= {"return", "groups_equal", "groups_alone"}  # of an agent, and a group may have its agent's name
_EPSILON = 1e-6  # added to a group's deviation, by which its advantages are divided


@dataclass(frozen=True)
class Advantages:
    """advantage_N: of each turn. num_groups: groups of turns that are compared; of these num_alone have a single turn,
    and num_equal several turns with equal returns. The turns of both have no advantage. (All 0 without groups.)"""

    advantage_N: Tensor
    num_groups: int = 0
    num_alone: int = 0
    num_equal: int = 0

    @property
    def equal_share(self) -> float:
        """The share of groups whose returns are all equal, among those of more than one turn."""
        return self.num_equal / max(1, self.num_groups - self.num_alone)


@dataclass(frozen=True)
class AgentTurns:
    """N turns of one agent, as played. return_N: see the module. group_N: see `group_numbers`. dialogue_N: the dialogue
    of each; a dialogue's turns are adjacent or in the order of rounds. roles: the role that the agent knows of in each,
    None for none (empty: in none of them)."""

    agent: str
    return_N: Tensor
    group_N: Tensor
    dialogue_N: Tensor
    roles: Sequence[str | None] = ()


def turn_advantages(
    turns: AgentTurns, baselines: Mapping[str, float], settings: PolicyGradientSettings
) -> tuple[Advantages, dict[str, float]]:
    """(advantages, new baselines of agents) by `settings.advantage`; arguments that a kind does not need are not read.
    See `role_advantages`."""
    return_N = turns.return_N
    if settings.advantage == "none":
        return Advantages(return_N.clone()), dict(baselines)
    if settings.advantage == "role":
        known, dialogues = turns.roles or [None] * len(return_N), turns.dialogue_N.tolist()
        roles = [turns.agent if role is None else f"{turns.agent}/{role}" for role in known]
        advantage_N, new = role_advantages(return_N, roles, dialogues, baselines, settings.role_baseline_decay)
        return Advantages(advantage_N), new
    found = group_advantages(
        return_N, turns.group_N, settings.advantage == "leave_one_out", settings.normalise_advantage
    )
    return found, dict(baselines)


def group_numbers(*keys: Sequence[Hashable]) -> Tensor:
    """(N,): the number of each turn's group, from 0 in the order of first appearance; equal keys form a group.

    keys: a value for each turn. Turns of one agent are comparable if they answer the same item, in the same round,
    against the same opponents, with the same known role. A turn that only some dialogues of an item have is compared
    with those that have it.
    """
    numbers: dict[tuple[Hashable, ...], int] = {}
    return torch.tensor([numbers.setdefault(key, len(numbers)) for key in zip(*keys, strict=True)], dtype=torch.long)


def group_advantages(
    return_N: Tensor, group_N: Tensor, leave_one_out: bool = False, normalise: bool = False
) -> Advantages:
    """Returns less those of the other turns of the group. group_N: group numbers, each from 0 to the largest occurring.

    R_i - mean(R), divided by std(R) + 1e-6 if `normalise` (GRPO, section 4.1.2; std over the group's G turns, not
    G - 1). leave_one_out: R_i - the mean of the others, which is G / (G - 1) (R_i - mean(R)) (RLOO), without a
    deviation. A group with equal returns, or with one turn, has advantage 0 exactly: rounding of the mean must not be
    divided by a zero deviation.
    """
    if not len(return_N):
        return Advantages(return_N.clone())
    zero_G = return_N.new_zeros(int(group_N.max()) + 1)
    count_G = zero_G.index_add(0, group_N, torch.ones_like(return_N))
    mean_G = zero_G.index_add(0, group_N, return_N) / count_G
    low_G, high_G = (zero_G.scatter_reduce(0, group_N, return_N, how, include_self=False) for how in ("amin", "amax"))
    equal_G, alone_G = low_G == high_G, count_G == 1
    advantage_N = return_N - mean_G[group_N]
    if leave_one_out:
        advantage_N = advantage_N * (count_G / (count_G - 1).clamp_min(1))[group_N]
    elif normalise:
        deviation_G = (zero_G.index_add(0, group_N, advantage_N.square()) / count_G).sqrt()
        advantage_N = advantage_N / (deviation_G + _EPSILON)[group_N]
    advantage_N = torch.where(equal_G[group_N], torch.zeros_like(advantage_N), advantage_N)
    return Advantages(advantage_N, len(zero_G), int(alone_G.sum()), int((equal_G & ~alone_G).sum()))


def role_advantages(
    return_N: Tensor, roles: Sequence[str], dialogues: Sequence[int], baselines: Mapping[str, float], decay: float
) -> tuple[Tensor, dict[str, float]]:
    """(advantage_N, new baselines): role-conditioned advantage estimation (SPIRAL, section on RAE).

    roles: of each turn (an agent, and the role that it knows of). dialogues: of each turn; a role's are processed in
    order of appearance. baselines: role -> moving average of its returns; a new role starts at 0, as published.

        A = R - b for every turn of a dialogue, then b <- decay b + (1 - decay) (mean R over the role's turns in this
        dialogue)

    SPIRAL moves b before it is subtracted, which only multiplies every advantage by `decay`; so b here is independent
    of the turn itself.
    """
    rows: dict[tuple[int, str], list[int]] = {}
    for row, key in enumerate(zip(dialogues, roles, strict=True)):
        rows.setdefault(key, []).append(row)
    returns, new, advantages = return_N.tolist(), dict(baselines), [0.0] * len(roles)
    for (_, role), turns in rows.items():
        baseline = new.get(role, 0.0)
        for row in turns:
            advantages[row] = returns[row] - baseline
        new[role] = decay * baseline + (1 - decay) * sum(returns[row] for row in turns) / len(turns)
    return torch.tensor(advantages, dtype=return_N.dtype), new


@dataclass(frozen=True)
class LossFigures:
    """A part's figures of a step on a minibatch. sums: name -> sum over its tokens (`tokens`: their number; `loss`: its
    share of the loss). maxima: name -> largest over its tokens. Scalars without gradients; those of parts and of
    learners are combined by `join`."""

    sums: Mapping[str, Tensor]
    maxima: Mapping[str, Tensor]

    def metrics(self) -> dict[str, float]:
        """loss; means over tokens (the surrogate's, entropy, kl to a start model); maxima (also logprob_difference). Of
        no tokens: 0."""
        tokens = self.sums["tokens"].clamp_min(1)
        maxima = {name: 0.0 if value == -torch.inf else float(value) for name, value in self.maxima.items()}
        means = {name: float(value / tokens) for name, value in self.sums.items() if name not in ("tokens", "loss")}
        return {"loss": float(self.sums["loss"]), **means, **maxima}


def join(parts: Iterable[LossFigures]) -> LossFigures:
    """The figures of several parts (at least one), combined."""
    first, *rest = parts
    sums, maxima = dict(first.sums), dict(first.maxima)
    for part in rest:
        sums = {name: value + part.sums[name] for name, value in sums.items()}
        maxima = {name: torch.maximum(value, part.maxima[name]) for name, value in maxima.items()}
    return LossFigures(sums, maxima)


def log_probs_and_entropy(
    logits_NTV: Tensor, token_NT: Tensor, temperature: float | Tensor = 1.0, entropy_gradient: bool = True
) -> tuple[Tensor, Tensor]:
    """(log_prob_NT, entropy_NT) of tokens drawn at `temperature` (> 0; a number, or a tensor that broadcasts to the
    logits), in float32.

    log_prob = z_token - log sum exp z and entropy = log sum exp z - sum softmax(z) z, with z = logits / temperature: of
    the sampling distribution. A logit of minus infinity is an impossible token. entropy_gradient: if False the entropy
    has none, and costs no memory.
    """
    scaled_NTV = logits_NTV.float() / temperature
    log_total_NT = scaled_NTV.logsumexp(-1)
    log_prob_NT = scaled_NTV.gather(-1, token_NT[..., None]).squeeze(-1) - log_total_NT
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        prob_NTV = (scaled_NTV - log_total_NT[..., None]).exp()
        finite_NTV = scaled_NTV.masked_fill(scaled_NTV == -torch.inf, 0.0)
        entropy_NT = log_total_NT - (prob_NTV * finite_NTV).sum(-1)
    return log_prob_NT, entropy_NT


def token_weights(
    mask_NT: Tensor,
    aggregation: Literal["token", "turn", "turn_mean"],
    num_tokens: int,
    num_turns: int,
    max_tokens: int,
) -> Tensor:
    """(N, T): the weight of each token in the loss; zero outside the mask.

    num_tokens, num_turns: of the whole minibatch, over its parts and over all learners, so that their losses add up.
    max_tokens: maximum length of a reply.

    token: 1 / num_tokens (DAPO, section 3.3). turn: 1 / (num_turns max_tokens), sums over turns without their own
    lengths (Dr. GRPO). turn_mean: 1 / (num_turns length), the mean of the turns' means (GRPO, equation 3).
    """
    if aggregation == "token":
        return mask_NT / max(1, num_tokens)
    if aggregation == "turn":
        return mask_NT / max(1, num_turns * max_tokens)
    return mask_NT / (mask_NT.sum(1, keepdim=True).clamp_min(1) * max(1, num_turns))


Surrogate = Callable[[Tensor, Tensor, Tensor, Tensor, Any], tuple[Tensor, dict[str, Tensor]]]
"""(log_prob_NT, old_log_prob_NT, advantage_N, mask_NT, settings) -> (loss_NT, figures): the loss of each token, and
name -> value_NT, whose mean over tokens is a metric, or whose maximum where the name ends in ``_max``. See
`clipped_surrogate`, `token_loss`."""


def clipped_surrogate(
    log_prob_NT: Tensor, old_log_prob_NT: Tensor, advantage_N: Tensor, mask_NT: Tensor, settings: RatioClipSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) (PPO, equation 7; the two bounds apart: DAPO, section 3.1).

    rho is exp(log_prob - old_log_prob) for each token, or for the whole turn exp of the mean of these differences
    (GSPO, equation 7), which is then used at each of its tokens. At rho = 1 both have the gradient of REINFORCE, weight
    A grad log_prob.
    """
    log_ratio_NT = log_prob_NT - old_log_prob_NT
    if settings.ratio == "sequence":
        mean_N1 = log_ratio_NT.sum(1, keepdim=True) / mask_NT.sum(1, keepdim=True).clamp_min(1)
        log_ratio_NT = torch.where(mask_NT > 0, mean_N1, 0.0)
    ratio_NT = log_ratio_NT.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()
    low = 0.0 if settings.clip_low is None else 1 - settings.clip_low
    high = torch.inf if settings.clip_high is None else 1 + settings.clip_high
    advantage_N1 = advantage_N[:, None]
    loss_NT = -torch.minimum(ratio_NT * advantage_N1, ratio_NT.clamp(low, high) * advantage_N1)
    clipped_NT = ((advantage_N1 > 0) & (ratio_NT > high)) | ((advantage_N1 < 0) & (ratio_NT < low))
    return loss_NT, {"clip_share": clipped_NT.to(ratio_NT.dtype), "ratio_max": ratio_NT}


def is_ppo(settings: TokenTrainingSettings, surrogate: Surrogate) -> bool:
    """Return True if the loss on sampled tokens is exactly that of PPO with a ratio per token."""
    ratio = settings.ratio if surrogate is clipped_surrogate and isinstance(settings, RatioClipSettings) else None
    return ratio == "token" and not settings.kl_coefficient


def loss_of(
    surrogate: Surrogate,
    log_prob_NT: Tensor,
    old_log_prob_NT: Tensor,
    advantage_N: Tensor,
    mask_NT: Tensor,
    settings: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The result of `surrogate`. Raises UserError unless it is a loss with a gradient, and metrics with new names."""
    given = surrogate(log_prob_NT, old_log_prob_NT, advantage_N, mask_NT, settings)
    place = f"algorithm {settings.name!r}: loss"
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)):
        raise UserError(f"{place} returned {reprlib.repr(given)}, expected (loss_NT, metrics by name)")
    if any(
        not isinstance(value_NT, Tensor) or value_NT.shape != mask_NT.shape
        for value_NT in (given[0], *given[1].values())
    ):
        raise UserError(f"{place} and its metrics must have the shape of mask_NT, one number for each token")
    if taken := sorted(given[1].keys() & _TAKEN):
        raise UserError(f"{place} returned a metric {taken[0]}, which the run itself has, use another name")
    if log_prob_NT.requires_grad and not given[0].requires_grad:
        raise UserError(f"{place} has no gradient with respect to log_prob_NT, compute it from that without detach")
    return given[0], dict(given[1])


def token_loss(
    log_prob_NT: Tensor,
    entropy_NT: Tensor,
    old_log_prob_NT: Tensor,
    advantage_N: Tensor,
    mask_NT: Tensor,
    weight_NT: Tensor,
    settings: TokenTrainingSettings,
    start_log_prob_NT: Tensor | None = None,
    surrogate: Surrogate = clipped_surrogate,
) -> tuple[Tensor, LossFigures]:
    """(loss, figures): sum over tokens of weight (surrogate + kl_coefficient KL - entropy_coefficient entropy).

    Values outside the mask are not read. log_prob_NT, entropy_NT: of the learning policy, see `log_probs_and_entropy`.
    old_log_prob_NT: as recorded at sampling, also by an earlier policy. start_log_prob_NT: of the start model; None for
    no KL. surrogate: the loss of the rule; it receives zeros outside the mask.

    KL, with d = start_log_prob - log_prob, on the drawn tokens: k3 = exp(d) - 1 - d (GRPO, equation 4), never negative,
    unbiased for KL(policy || start) on the policy's own tokens; its gradient (1 - exp(d)) grad log_prob is in
    expectation that of KL(start || policy). k2 = d^2 / 2 is biased; its gradient -d grad log_prob is in expectation
    that of KL(policy || start).
    """
    drawn_NT = mask_NT > 0
    new_NT, old_NT = (torch.where(drawn_NT, value_NT, 0.0) for value_NT in (log_prob_NT, old_log_prob_NT))
    loss_NT, told = loss_of(surrogate, new_NT, old_NT, advantage_N, mask_NT, settings)
    loss_NT = torch.where(drawn_NT, loss_NT, 0.0)
    entropy_NT = torch.where(drawn_NT, entropy_NT, 0.0)
    if settings.entropy_coefficient:
        loss_NT = loss_NT - settings.entropy_coefficient * entropy_NT
    counted = {**told, "entropy": entropy_NT}
    if start_log_prob_NT is not None:
        distance_NT = torch.where(drawn_NT, start_log_prob_NT - log_prob_NT, 0.0)
        # beyond it, the tangent: a gradient that stays large, of the right sign
        near_NT = distance_NT.clamp(max=_LARGEST_LOG_RATIO)
        k3_NT = near_NT.expm1() + near_NT.exp() * (distance_NT - near_NT) - distance_NT
        counted["kl"] = k3_NT
        loss_NT = loss_NT + settings.kl_coefficient * (
            k3_NT if settings.kl_estimator == "k3" else distance_NT.square() / 2
        )
    loss = (weight_NT * loss_NT).sum()
    sums, maxima = dict[str, Tensor](), dict[str, Tensor]()
    for name, value_NT in counted.items():
        largest = name.endswith(MAXIMUM)
        own_NT = torch.where(drawn_NT, value_NT.detach(), -torch.inf if largest else 0.0)
        (maxima if largest else sums)[name] = own_NT.max() if largest else own_NT.sum()
    maxima["logprob_difference"] = (new_NT - old_NT).detach().abs().max()
    return loss, LossFigures({"tokens": mask_NT.sum(), **sums, "loss": loss.detach()}, maxima)


def no_figures(settings: TokenTrainingSettings, kl: bool, surrogate: Surrogate, device: torch.device) -> LossFigures:
    """The figures of no turns, under the usual names. kl: of a loss with a start model."""
    zero_NT = torch.zeros(1, 1, device=device)
    rows = (zero_NT, zero_NT, zero_NT, zero_NT[0], zero_NT, zero_NT)
    return token_loss(*rows, settings, zero_NT if kl else None, surrogate)[1]


def not_finite(what: str) -> TrainingError:
    """The error that ends a run whose next step would spoil its weights."""
    return TrainingError(
        f"learning broke off: {what}; begin a run with a lower algorithm.learning_rate (warm-up: warmup_learning_rate)"
    )
