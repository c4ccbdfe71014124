"""Stackelberg and opponent-shaping learning rules: every agent's descent direction from the losses of all.

Decisions that matter here:
- a loss is one scalar graph whose derivatives of every order are right: an exact game value, or the sampled surrogate
  `dice_losses`. The rest is automatic differentiation: mixed products by differentiating a gradient again, never a full
  Jacobian;
- learners may each hold a share of the losses. Every gradient and product is linear in the local losses and is summed
  over the learners (`reduce`) before any multiplication. The order and sizes of these sums depend on arguments alone,
  never on values;
- a first gradient is differentiated again only if a rule needs it. That graph is dropped with its leader, or at the
  end; the losses' own graph is kept, so callers may differentiate other losses of the same networks afterwards. Beyond
  a plain gradient, spg holds one such graph for each follower's network, the other rules a second one, for one leader
  at a time. Wide layers need about 2.7 times the memory of plain gradients for spg and a leader's lola or sos, 3.5
  times if all agents shape each other.

Symbols: xi_a = grad_a L_a; H_ff = grad_f grad_f L_f; <u, v> is a dot product; eta_f is the assumed step of follower f.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import groupby

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.learning.inverse_hessian import Product, inverse_hessian
from nip_ray.settings.stackelberg import StackelbergSettings

_LARGEST_LOG_RATIO = 20.0

Reduce = Callable[[Tensor], Tensor]
Followers = Mapping[str, tuple[str, ...]]
Parameters = Mapping[str, Sequence[Tensor]]
Inverses = dict[str, Product]


def identity(vector: Tensor) -> Tensor:
    """The sum over one learner."""
    return vector


def check_sequence(agents: Collection[str], sequence: Sequence[Sequence[str]]) -> None:
    """Raise UserError, naming the agents, unless exactly each of `agents` is in the groups of `sequence` once."""
    named = [agent for group in sequence for agent in group]
    faults = {
        "misses": [agent for agent in agents if agent not in named],
        "repeats": [agent for agent in dict.fromkeys(named) if named.count(agent) > 1],
        "does not know": [agent for agent in dict.fromkeys(named) if agent not in agents],
    }
    found = [f"{fault} {', '.join(who)}" for fault, who in faults.items() if who]
    if not all(sequence):
        found.append("has an empty group")
    if found:
        raise UserError(
            f"stackelberg_sequence {'; it '.join(found)}: each of {', '.join(agents)} must be in exactly one group,"
            " leaders first"
        )


def leader_follower_map(
    agents: Sequence[str], sequence: Sequence[Sequence[str]], mutual: bool
) -> dict[str, tuple[str, ...]]:
    """All agents that each agent leads: those of later groups of `sequence`, or with `mutual` all others.

    Raises UserError as `check_sequence` does.
    """
    if mutual:
        return {agent: tuple(other for other in agents if other != agent) for agent in agents}
    check_sequence(agents, sequence)
    later = {
        agent: tuple(f for group in sequence[level + 1 :] for f in group)
        for level, own in enumerate(sequence)
        for agent in own
    }
    return {agent: later[agent] for agent in agents}


def dice_losses(
    log_prob_BRA: Tensor,
    advantage_BRA: Tensor,
    live_BR: Tensor,
    discount: float,
    old_log_prob_BRA: Tensor | None = None,
    clip_epsilon: float | None = None,
    copies: int | None = None,
) -> Tensor:
    """(A,): per agent i the loss L_i = - 1/B sum over copies and rounds of discount^t w_t (c_it - A_it), to be
    differentiated twice.

    log_prob_BRA: of each agent's action in each round, with graph, zero outside its turns. advantage_BRA: agent i's
    return from round t on, less a baseline that may depend on anything before the actions of round t, but not on them.
    live_BR: bool, false after the end. copies: the divisor, all learners' copies together (None: B). With s_t the
    round's log-probabilities summed over agents, S_t the sum of the earlier s, and | marking constants:

        w_t = exp(S_t - S_t|);  c_it = u_t A_it, u_t = exp(s_t - s_t|)                    without old_log_prob_BRA
        c_it = min(u_t A_it, clip(u_t, 1 - eps, 1 + eps) A_it), u_t = exp(s_t - old s_t)  with both optional arguments

    Sources: Foerster et al., "DiCE: The infinitely differentiable Monte Carlo estimator", ICML 2018, section 4 (the
    "magic box" exp(S - S|)); Farquhar, Whiteson and Foerster, "Loaded DiCE", NeurIPS 2019 (with advantages); Schulman
    et al., "Proximal policy optimization algorithms", 2017, equation 7 (clip).

    The first form is unbiased for samples of the current policies. Every derivative is a sum, over copies, of products
    of scores and advantages of the same copy: the first is A_t grad s_t, the second A_t (grad s_t grad s_t^T + grad
    grad s_t + grad S_t grad s_t^T + grad s_t grad S_t^T), and each has the expectation of the value's derivative, since
    a round's score has mean 0 given the past. An estimate that multiplies one batch mean with another estimates E[x]
    E[y] where E[x y] is meant. The clipped form has the same derivatives at the old policies; elsewhere it is biased,
    like PPO's.
    """
    round_BR = log_prob_BRA.sum(-1)
    past_BR = round_BR.cumsum(-1) - round_BR
    steps_R = torch.arange(round_BR.shape[1], device=round_BR.device, dtype=round_BR.dtype)
    weight_BR = live_BR * torch.pow(torch.full_like(steps_R, discount), steps_R)
    gain_BRA = torch.where(live_BR[..., None], advantage_BRA, 0.0) * weight_BR[..., None]
    past_BR = (past_BR - past_BR.detach()).exp()
    count = len(round_BR) if copies is None else copies
    if old_log_prob_BRA is None or clip_epsilon is None:
        factor_BR = past_BR * ((round_BR - round_BR.detach()).exp() - 1)
        return -(factor_BR[..., None] * gain_BRA).sum((0, 1)) / count
    log_ratio_BR = (round_BR - old_log_prob_BRA.sum(-1)).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    ratio_BRA = log_ratio_BR.exp()[..., None]
    # min(u A, clip(u) A) bounds u from above where A > 0 and from below elsewhere
    bounded_BRA = torch.where(
        gain_BRA > 0, ratio_BRA.clamp(max=1 + clip_epsilon), ratio_BRA.clamp(min=1 - clip_epsilon)
    )
    return -(past_BR[..., None] * (bounded_BRA - 1) * gain_BRA).sum((0, 1)) / count


def directions(
    losses: Mapping[str, Tensor],
    parameters: Parameters,
    followers: Followers,
    settings: StackelbergSettings,
    step_sizes: Mapping[str, float],
    generator: torch.Generator,
    reduce: Reduce = identity,
    inverses: Inverses | None = None,
    independent: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Each agent's flat descent direction (P_a,), laid out like torch.cat([p.reshape(-1) for p in parameters[a]]).

    losses: each agent's scalar. followers: all agents that each agent leads; parameters of different agents must not be
    shared. step_sizes: eta of each follower (not read by spg and pspg). generator: read by ihvp "nystrom", and in the
    same state on every learner. reduce: the sum of a detached flat vector over learners, each of which holds its share
    of the losses. inverses: for spg and pspg, by follower, products with its inverse Hessian from an earlier call;
    missing ones are added. independent: the same losses from other samples. A term of second order is a product of two
    expectations, grad_f L_l among them; both factors from the same samples would add their covariance to it, which for
    long episodes is larger than the term itself. So the factors without a graph come from here and those with one from
    `losses`; plain gradients are the mean of both. Exact losses need none.

    spg, pspg: D_l = xi_l - grad_l <xi_f, x_f> with x_f = (H_ff + rho I)^-1 v_f and v_f = grad_f L_l: the total
    derivative of L_l at followers who stay at their best response (implicit function theorem; Fiez, Chasnov and
    Ratliff, "Implicit learning dynamics in Stackelberg games", ICML 2020). Followers are processed from the last level
    up, and those that lead others pass on the effect of these: v_f = grad_f L_l - sum of grad_f <xi_g, x_g> over the g
    that f leads. This is an approximation with more than one follower: f's best response is to its own loss with all
    agents below or beside it held fixed, so H_ff is block by block.

    lola, pola: D_l = xi_l - sum over f of eta_f (grad_l <xi_f, grad_f L_l> + grad_l <grad_f L_l, D_f>): the derivative
    of L_l after one step of the followers, through that step (shaping) and at its result (lookahead, which
    `additional_lola_term` turns off for these two). D_f is the follower's own direction, xi_f if agents lead each other
    in a circle. Foerster et al., "Learning with opponent-learning awareness", AAMAS 2018, section 4; the full form is
    LOLA of Letcher et al. below, section 3.

    sos, psos: the same two terms, shaping scaled by p: see `stable_direction`; D_f as for lola.

    Raises UserError for spg and pspg if agents lead each other in a circle.
    """
    order, implicit = processing_order(followers, settings), settings.variant in ("spg", "pspg")
    led = {f for group in followers.values() for f in group}
    game = other = Game(losses, parameters, led, reduce)
    if independent is not None:
        other = Game(independent, parameters, led if implicit else (), reduce)
        factors = other.own
        game.own = {agent: (game.own[agent] + other.own[agent]) / 2 for agent in losses}
    else:
        factors = game.own
    if implicit:
        inverses = inverse_products(other, settings, generator, inverses)
        return {agent: _total_derivative(game, other, followers, agent, order or (), inverses) for agent in losses}
    stable = settings.variant in ("sos", "psos")
    lookahead = stable or settings.additional_lola_term
    found = dict(game.own)  # D, from the followers up
    terms: dict[str, list[Tensor]] = {}
    for agent in losses if order is None else order:
        ends = {f: factors[f] if order is None or not followers[f] else found[f] for f in followers[agent]}
        terms[agent] = _one_step(game, other, agent, followers[agent], ends, step_sizes, lookahead, apart=stable)
        found[agent] = game.own[agent] - sum(terms[agent])
    if not stable:
        return {agent: found[agent] for agent in losses}
    chi, ahead = ({agent: terms[agent][part] for agent in losses} for part in (0, 1))
    return stable_direction({agent: game.own[agent] for agent in losses}, ahead, chi, settings)


def stable_direction(
    xi: Mapping[str, Tensor], lookahead: Mapping[str, Tensor], chi: Mapping[str, Tensor], settings: StackelbergSettings
) -> dict[str, Tensor]:
    """xi0 - p chi with xi0 = xi - lookahead, per agent (P_a,); `lookahead` and `chi` (shaping) include step sizes.

    Over all agents' vectors together, p = min(p1, p2): p1 = 1 if <-chi, xi0> >= 0, else min(1, -a |xi0|^2 / <-chi,
    xi0>), so shaping never turns xi0 around; p2 = |xi|^2 if |xi| < b, else 1, so it fades near fixed points. a is
    sos_scaling_factor, b sos_threshold_factor. Source: Letcher et al., "Stable opponent shaping in differentiable
    games", ICLR 2019, algorithm 1.
    """
    plain = {agent: xi[agent] - lookahead[agent] for agent in xi}
    xi_P, plain_P, chi_P = (torch.cat([part[agent] for agent in xi]) for part in (xi, plain, chi))
    along = -(chi_P @ plain_P)
    p1 = torch.where(along >= 0, 1.0, (-settings.sos_scaling_factor * (plain_P @ plain_P) / along).clamp(max=1.0))
    size = xi_P @ xi_P
    p = torch.minimum(p1, torch.where(size < settings.sos_threshold_factor**2, size, 1.0))
    return {agent: plain[agent] - p * chi[agent] for agent in xi}


def processing_order(followers: Followers, settings: StackelbergSettings) -> list[str] | None:
    """All agents, each after those it leads; None if they lead each other in a circle (UserError for spg and pspg)."""
    try:
        return list(TopologicalSorter(followers).static_order())
    except CycleError:
        if settings.variant in ("spg", "pspg"):
            message = (
                f"variant {settings.variant} needs leaders and followers: mutual shaping is for lola, pola, sos and"
                " psos"
            )
            raise UserError(message) from None
        return None


class Game:
    """Gradients of all agents' losses and products with their second derivatives, summed over learners.

    own: xi of every agent, (P_a,). graphs: for the agents in `again`, this learner's share of xi by tensor,
    differentiable.
    """

    def __init__(
        self, losses: Mapping[str, Tensor], parameters: Parameters, again: Collection[str], reduce: Reduce
    ) -> None:
        """Compute every agent's gradient of its own loss; one sum over learners."""
        self.losses, self.parameters, self.reduce = losses, parameters, reduce
        self.empty = next(iter(losses.values())).detach().new_zeros(0)
        parts = {agent: _gradients([loss], [None], parameters[agent], agent in again) for agent, loss in losses.items()}
        self.own = dict(zip(losses, self.sums([self.flat(parts[agent], agent) for agent in losses])))
        self.graphs = {agent: parts[agent] for agent in losses if agent in again}

    def flat(self, parts: Sequence[Tensor | None], agent: str) -> Tensor:
        """(P_a,), detached, zero where missing."""
        filled = [
            torch.zeros_like(p) if part is None else part for part, p in zip(parts, self.parameters[agent], strict=True)
        ]
        return torch.cat([self.empty, *(part.detach().reshape(-1) for part in filled)])

    def sums(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Each vector summed over learners, in one call."""
        return list(self.reduce(torch.cat([self.empty, *vectors])).split([len(vector) for vector in vectors]))

    def cross(
        self, loss: Tensor, agents: Sequence[str], again: bool = False
    ) -> tuple[dict[str, Tensor], dict[str, list[Tensor | None]]]:
        """grad_a of a loss per agent: (P_a,) summed, and this learner's share by tensors, with graph if `again`."""
        parts = self.by_agent(
            _gradients([loss], [None], [p for agent in agents for p in self.parameters[agent]], again), agents
        )
        return dict(zip(agents, self.sums([self.flat(parts[agent], agent) for agent in agents]))), parts

    def by_agent(self, parts: Sequence[Tensor | None], agents: Sequence[str]) -> dict[str, list[Tensor | None]]:
        """A list over the agents' parameters, cut into one list per agent."""
        rest = iter(parts)
        return {agent: [next(rest) for _ in self.parameters[agent]] for agent in agents}

    def product(
        self, terms: Sequence[tuple[str, Sequence[Tensor | None], Tensor]], agents: Sequence[str]
    ) -> list[Tensor]:
        """This learner's grad_a of the sum of <u, x> for each of `agents`: terms are (f, u by tensors of f with graph,
        x (P_f,))."""
        outputs: list[Tensor] = []
        weights: list[Tensor | None] = []
        for follower, graph, x in terms:
            like = self.parameters[follower]
            for part, weight, p in zip(graph, x.split([p.numel() for p in like]), like, strict=True):
                if part is not None:
                    outputs.append(part)
                    weights.append(weight.view_as(p))
        inputs = [p for agent in agents for p in self.parameters[agent]]
        return [
            self.flat(parts, agent)
            for agent, parts in self.by_agent(_gradients(outputs, weights, inputs, False), agents).items()
        ]

    def hessian_product(self, agent: str) -> Product:
        """x (P_a,) -> H_aa x (P_a,), for an agent in `again`."""
        return lambda x: self.reduce(self.product([(agent, self.graphs[agent], x)], [agent])[0])


def inverse_products(
    game: Game, settings: StackelbergSettings, generator: torch.Generator, kept: Inverses | None
) -> Inverses:
    """Products with the inverse Hessian of every follower: those in `kept`, and new ones, which are added to it."""
    found = {} if kept is None else kept
    for follower in game.graphs:
        if follower not in found:
            found[follower] = inverse_hessian(settings, game.hessian_product(follower), game.own[follower], generator)
    return found


def _total_derivative(
    game: Game, other: Game, followers: Followers, leader: str, order: Sequence[str], inverses: Mapping[str, Product]
) -> Tensor:
    """(P,): the leader's direction under spg, from the last followers up; equal leaders share one product."""
    led = followers[leader]
    if not led:
        return game.own[leader]
    total = {leader: game.own[leader], **other.cross(other.losses[leader], led)[0]}

    def leaders(follower: str) -> list[str]:
        return [agent for agent in total if follower in followers[agent]]

    for above, group in groupby((f for f in order if f in led), leaders):
        terms = [(f, game.graphs[f], inverses[f](total[f])) for f in group]
        for agent, through in zip(above, game.sums(game.product(terms, above))):
            total[agent] = total[agent] - through
    return total[leader]


def _one_step(
    game: Game,
    other: Game,
    leader: str,
    led: Sequence[str],
    found: Mapping[str, Tensor],
    step_sizes: Mapping[str, float],
    lookahead: bool,
    apart: bool,
) -> list[Tensor]:
    """The leader's shaping and lookahead (P,) with their step sizes, separate or added."""
    if not led:
        return [torch.zeros_like(game.own[leader])] * (2 if apart else 1)
    if other is game:
        values, graphs = game.cross(game.losses[leader], led, again=lookahead)
    else:
        values, _ = other.cross(other.losses[leader], led)
        graphs = game.cross(game.losses[leader], led, again=True)[1] if lookahead else {}
    shaping = [(f, game.graphs[f], step_sizes[f] * values[f]) for f in led]
    ahead = [(f, graphs[f], step_sizes[f] * found[f]) for f in led] if lookahead else []
    parts = [shaping, ahead] if apart else [shaping + ahead]
    return game.sums([game.product(terms, [leader])[0] for terms in parts])


def _gradients(
    outputs: Sequence[Tensor], weights: Sequence[Tensor | None], inputs: Sequence[Tensor], create_graph: bool
) -> list[Tensor | None]:
    """Gradients of the weighted sum of outputs, None where an input has no influence or is frozen. Keeps the graph."""
    pairs = [(output, weight) for output, weight in zip(outputs, weights, strict=True) if output.requires_grad]
    trained = [x for x in inputs if x.requires_grad]
    if not pairs or not trained:
        return [None] * len(inputs)
    ys, gs = zip(*pairs)
    found = iter(torch.autograd.grad(ys, trained, gs, retain_graph=True, create_graph=create_graph, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in inputs]
