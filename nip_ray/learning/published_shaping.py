"""The Stackelberg and opponent-shaping rules of the published library: second derivatives by products of batch means.

They are here for comparison; `nip_ray.learning.shaping` has the rules that are unbiased. Differences:
- a mixed second derivative is estimated by products of two first derivatives, each a mean (or sum) over the whole
  batch;
- the score S is a sum over the batch but losses are means, so the corrections grow with the size of the minibatch;
- spg, lola and sos differentiate probabilities, not log-probabilities (`published_losses`);
- a round in which two agents act counts in both products, so twice.

Three of its defects are not repeated. The inverse Hessian is that of the follower's whole loss and is applied to the
gradient of the leader's loss, not to a gradient that is identically zero. D, xi and the plain gradients are separate
objects, never changed in place. And the lookahead term is left out, not undefined, where `additional_lola_term` turns
it off.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nip_ray.learning.shaping import (
    Followers,
    Game,
    Inverses,
    Parameters,
    Reduce,
    identity,
    inverse_products,
    processing_order,
    stable_direction,
)
from nip_ray.settings.stackelberg import StackelbergSettings

_LARGEST_LOG_RATIO = 20.0

# of the owner's loss, by the agent whose parameters it is taken with respect to
Gradients = Mapping[str, Mapping[str, Tensor]]


def published_losses(
    log_prob_BRA: Tensor,
    advantage_BRA: Tensor,
    live_BR: Tensor,
    old_log_prob_BRA: Tensor | None = None,
    clip_epsilon: float | None = None,
    frames: Tensor | int | None = None,
) -> tuple[Tensor, Tensor]:
    """(A,) the agents' losses L_i = - sum over j of g_ij, and () the score S: the sum of all log-probabilities.

    Arguments as for `dice_losses`. frames: the divisor of means, all learners' live frames together (None: those of
    live_BR). g_ij is the mean over live frames of pi_j A_i, pi_j = exp(log_prob_j); with both optional arguments, of
    min(rho_j A_i, clip(rho_j, 1 - eps, 1 + eps) A_i), rho_j = exp(log_prob_j - old log_prob_j).
    """
    live_BR1 = live_BR[..., None]
    count = live_BR.sum().clamp_min(1) if frames is None else frames
    log_prob_BRA = torch.where(live_BR1, log_prob_BRA, 0.0)
    advantage_BRA = torch.where(live_BR1, advantage_BRA, 0.0)
    if old_log_prob_BRA is None or clip_epsilon is None:
        return -torch.einsum("brj,bri->i", log_prob_BRA.exp(), advantage_BRA) / count, log_prob_BRA.sum()
    log_ratio_BRA = (log_prob_BRA - old_log_prob_BRA).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    ratio_BRA = log_ratio_BRA.exp()
    low_BR, high_BR = (
        ratio_BRA.clamp(**bound).sum(-1) for bound in ({"min": 1 - clip_epsilon}, {"max": 1 + clip_epsilon})
    )
    factor_BRA = torch.where(advantage_BRA > 0, high_BR[..., None], low_BR[..., None])
    return -(factor_BRA * advantage_BRA).sum((0, 1)) / count, log_prob_BRA.sum()


def published_directions(
    losses: Mapping[str, Tensor],
    score: Tensor,
    parameters: Parameters,
    followers: Followers,
    settings: StackelbergSettings,
    step_sizes: Mapping[str, float],
    generator: torch.Generator,
    reduce: Reduce = identity,
    inverses: Inverses | None = None,
) -> dict[str, Tensor]:
    """Each agent's flat descent direction (P_a,); arguments of `directions`, and the score S (this learner's share).

    With S_k = grad_k S, for agent g and each follower f of it (eta_f = 1 for spg and pspg):

        M = (H_ff + rho I)^-1 grad_f L_g for spg and pspg, else grad_f L_g
        OS = <M, S_f> C_S + <M, grad_f L_f> C_P          (`_coefficients`: grad_g L_f and S_g where f follows g at once)
        HG = <S_f, D_f> grad_g L_g + <grad_f L_g, D_f> S_g   (lola and pola with additional_lola_term; not spg and pspg)
        chi_g = sum of eta_f OS;  H_g = sum of eta_f HG;  D_g = xi_g - chi_g - H_g

    spg, pspg, lola, pola: D. sos, psos: xi - H - p chi, see `stable_direction`. If agents lead each other in a circle,
    all agents follow each other at once and xi_f replaces D_f. Source: Hammond and Adam-Day, "Neural interactive
    proofs", ICLR 2025, as their library computes it. Raises UserError for spg and pspg if agents lead each other in a
    circle.
    """
    order, implicit = processing_order(followers, settings), settings.variant in ("spg", "pspg")
    stable = settings.variant in ("sos", "psos")
    ahead = stable or (not implicit and settings.additional_lola_term)
    game = Game(losses, parameters, {f for led in followers.values() for f in led} if implicit else (), reduce)
    inverses = inverse_products(game, settings, generator, inverses)
    scores = game.cross(score, list(losses))[0]
    above = {f: _immediate_leaders(f, followers, circular=order is None) for f in losses}
    gradients: dict[str, dict[str, Tensor]] = {}
    for owner in losses:
        others = [agent for agent in losses if agent in followers[owner] or agent in above[owner]]
        gradients[owner] = {owner: game.own[owner], **game.cross(losses[owner], others)[0]}
    found = dict(game.own)
    chi, lookahead = ({agent: torch.zeros_like(xi) for agent, xi in game.own.items()} for _ in range(2))
    for g in losses if order is None else order:
        for f in followers[g]:
            eta = 1.0 if implicit else step_sizes[f]
            through = inverses[f](gradients[g][f]) if implicit else gradients[g][f]
            by_score, by_gradient = _coefficients(g, f, gradients, scores, above)
            chi[g] = chi[g] + eta * ((through @ scores[f]) * by_score + (through @ gradients[f][f]) * by_gradient)
            if ahead:
                follower = game.own[f] if order is None else found[f]
                along = (scores[f] @ follower) * gradients[g][g] + (gradients[g][f] @ follower) * scores[g]
                lookahead[g] = lookahead[g] + eta * along
        found[g] = game.own[g] - chi[g] - lookahead[g]
    if stable:
        return stable_direction({agent: game.own[agent] for agent in losses}, lookahead, chi, settings)
    return {agent: found[agent] for agent in losses}


def _coefficients(
    g: str, f: str, gradients: Gradients, scores: Mapping[str, Tensor], above: Mapping[str, Sequence[str]]
) -> tuple[Tensor, Tensor]:
    """C_S(g, f) and C_P(g, f), (P_g,): grad_g L_f and S_g, or with others between g and f, through the h just above f:

    C_S = sum over h of <grad_h L_f, S_h> C_S(g, h) + <grad_h L_f, grad_h L_h> C_P(g, h) C_P = sum over h of <S_h, S_h>
    C_S(g, h) + <S_h, grad_h L_h> C_P(g, h)
    """
    if g in above[f]:
        return gradients[f][g], scores[g]
    by_score, by_gradient = torch.zeros_like(scores[g]), torch.zeros_like(scores[g])
    for h in above[f]:
        upper_score, upper_gradient = _coefficients(g, h, gradients, scores, above)
        own, cross = gradients[h][h], gradients[f][h]
        by_score = by_score + (cross @ scores[h]) * upper_score + (cross @ own) * upper_gradient
        by_gradient = by_gradient + (scores[h] @ scores[h]) * upper_score + (scores[h] @ own) * upper_gradient
    return by_score, by_gradient


def _immediate_leaders(f: str, followers: Followers, circular: bool) -> list[str]:
    """The agents that lead f directly."""
    leaders = [agent for agent, led in followers.items() if f in led]
    if circular:
        return leaders
    return [agent for agent in leaders if not any(other in followers[agent] for other in leaders)]
