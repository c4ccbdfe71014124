"""The published formulas against a slow copy of them, in numpy on dense derivatives."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.learning.published_shaping import published_directions, published_losses
from nip_ray.learning.shaping import Reduce, identity, leader_follower_map
from nip_ray.settings.stackelberg import StackelbergSettings
from tests.learning.test_shaping import VARIANTS, generator, lockstep, normal

SEQUENCES = {
    "two": (("a",), ("b",)),
    "one leads two": (("b",), ("a", "c")),
    "diamond": (("a",), ("b", "c"), ("d",)),
    "four levels": (("d",), ("c",), ("b",), ("a",)),
}
Followers = Mapping[str, tuple[str, ...]]


class Play:
    """One batch of 12 copies of 3 rounds of agents with a linear softmax policy each; losses and score of any share of
    it."""

    copies, rounds = 12, 3

    def __init__(self, agents: Sequence[str], seed: int = 0) -> None:
        self.agents, shape = list(agents), (self.copies, self.rounds)
        self.seen, self.acts = (
            normal(*shape, 2, seed=seed),
            torch.randint(0, 3, (*shape, len(agents)), generator=generator(seed + 1)),
        )
        self.advantage = normal(*shape, len(agents), seed=seed + 2)
        self.live = (torch.rand(shape, generator=generator(seed + 3)) < torch.tensor([1.0, 0.8, 0.8])).cummin(-1).values
        self.turn = torch.rand((*shape, len(agents)), generator=generator(seed + 4)) < 0.7
        self.values = normal(len(agents), 2, 3, seed=seed + 5)
        self.shift = 0.15 * normal(*shape, len(agents), seed=seed + 6)

    def log_prob(self, values: Tensor) -> Tensor:
        logs = torch.einsum("brx,axy->bray", self.seen, values).log_softmax(-1).gather(-1, self.acts[..., None])[..., 0]
        return logs * (self.turn & self.live[..., None])

    def losses(self, values: Tensor, clipped: bool, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        log_prob = self.log_prob(values)[rows]
        frames = int(self.live.sum())
        if not clipped:
            return published_losses(log_prob, self.advantage[rows], self.live[rows], frames=frames)
        old = (self.log_prob(self.values) + self.shift)[rows]
        return published_losses(log_prob, self.advantage[rows], self.live[rows], old, 0.2, frames)

    def directions(
        self,
        followers: Followers,
        settings: StackelbergSettings,
        eta: Mapping[str, float],
        reduce: Reduce = identity,
        rows: slice = slice(None),
    ) -> dict[str, Tensor]:
        parameters = {agent: [self.values[k].clone().requires_grad_()] for k, agent in enumerate(self.agents)}
        losses, score = self.losses(
            torch.stack([p for (p,) in parameters.values()]), settings.variant.startswith("p"), rows
        )
        named = dict(zip(self.agents, losses))
        return published_directions(named, score, parameters, followers, settings, eta, generator(), reduce)

    def derivatives(self, clipped: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gradients [owner, agent, P] of losses and [agent, P] of the score, and each loss's Hessian in its owner's
        parameters."""
        flat, count = self.values.flatten(), len(self.agents)

        def both(x: Tensor) -> Tensor:
            losses, score = self.losses(x.view_as(self.values), clipped)
            return torch.cat([losses, score[None]])

        first = torch.func.jacrev(both)(flat).view(count + 1, count, 6).numpy()
        second = torch.func.jacfwd(torch.func.jacrev(both))(flat).view(count + 1, count, 6, count, 6).numpy()
        return first[:-1], first[-1], np.stack([second[k, k, :, k] for k in range(count)])


def slow(
    play: Play, sequence: Sequence[Sequence[str]], settings: StackelbergSettings, eta: Mapping[str, float]
) -> dict[str, np.ndarray]:
    """Section by section as the formulas are written; `sequence` is empty where everybody follows everybody."""
    gradient, score, hessian = play.derivatives(settings.variant.startswith("p"))
    number, implicit = {agent: k for k, agent in enumerate(play.agents)}, settings.variant in ("spg", "pspg")
    levels = [[number[agent] for agent in group] for group in sequence] or [list(number.values())]
    mutual = not sequence

    def coefficients(level: int, g: int, f_level: int, f: int) -> tuple[np.ndarray, np.ndarray]:
        if f_level == level + 1 or mutual:
            return gradient[f, g], score[g]
        by_score, by_gradient = np.zeros(6), np.zeros(6)
        for h in levels[f_level - 1]:
            cs, cp = coefficients(level, g, f_level - 1, h)
            by_score += (gradient[f, h] @ score[h]) * cs + (gradient[f, h] @ gradient[h, h]) * cp
            by_gradient += (score[h] @ score[h]) * cs + (score[h] @ gradient[h, h]) * cp
        return by_score, by_gradient

    total, chi, ahead = ({k: np.zeros(6) for k in number.values()} for _ in range(3))
    for level in reversed(range(len(levels))):
        for g in levels[level]:
            below = (
                [(0, f) for f in levels[0] if f != g]
                if mutual
                else [(k, f) for k in range(level + 1, len(levels)) for f in levels[k]]
            )
            for f_level, f in below:
                step = 1.0 if implicit else eta[play.agents[f]]
                m = gradient[g, f]
                if implicit:
                    m = np.linalg.solve(hessian[f] + settings.ihvp_damping * np.eye(6), m)
                cs, cp = coefficients(level, g, f_level, f)
                chi[g] += step * ((m @ score[f]) * cs + (m @ gradient[f, f]) * cp)
                if settings.variant in ("sos", "psos") or (
                    settings.variant in ("lola", "pola") and settings.additional_lola_term
                ):
                    d = gradient[f, f] if mutual else total[f]
                    ahead[g] += step * ((score[f] @ d) * gradient[g, g] + (gradient[g, f] @ d) * score[g])
            total[g] = gradient[g, g] - chi[g] - ahead[g]
    if settings.variant not in ("sos", "psos"):
        return {agent: total[k] for agent, k in number.items()}
    xi = np.concatenate([gradient[k, k] for k in number.values()])
    xi0 = xi - np.concatenate([ahead[k] for k in number.values()])
    shaping = np.concatenate([chi[k] for k in number.values()])
    den = -shaping @ xi0
    p1 = 1.0 if den >= 0 else min(1.0, -settings.sos_scaling_factor * (xi0 @ xi0) / den)
    p2 = xi @ xi if xi @ xi < settings.sos_threshold_factor**2 else 1.0
    return dict(zip(number, (xi0 - min(p1, p2) * shaping).reshape(-1, 6)))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", [*SEQUENCES, "mutual"])
def test_the_formulas(name: str, variant: str) -> None:
    mutual = name == "mutual"
    if mutual and variant in ("spg", "pspg"):
        with pytest.raises(UserError, match="mutual"):
            Play("ab").directions(leader_follower_map("ab", (), True), StackelbergSettings(variant=variant), {})  # type: ignore[arg-type]
        return
    sequence = SEQUENCES.get(name, ())
    agents = sorted(agent for group in sequence for agent in group) or ["a", "b", "c"]
    followers = leader_follower_map(agents, sequence, mutual)
    eta = {agent: 0.02 + 0.01 * k for k, agent in enumerate(agents)}
    for additional in (True, False):
        settings = StackelbergSettings(
            variant=variant,  # type: ignore[arg-type]
            additional_lola_term=additional,
            mutual=mutual,
            ihvp="conjugate_gradient",
            ihvp_num_iterations=30,
            ihvp_damping=2.0,
            sos_threshold_factor=0.5,
        )
        for seed in (0, 100, 200):
            play = Play(agents, seed)
            found, expected = play.directions(followers, settings, eta), slow(play, sequence, settings, eta)
            assert list(found) == agents
            for agent in agents:
                torch.testing.assert_close(found[agent], torch.from_numpy(expected[agent]), rtol=1e-7, atol=1e-9)


def test_losses_against_loops() -> None:
    play = Play("abc")
    log_prob, old = play.log_prob(play.values), play.log_prob(play.values) + play.shift
    plain, clipped, score = np.zeros(3), np.zeros(3), 0.0
    for copy in range(play.copies):
        for t in range(play.rounds):
            if play.live[copy, t]:
                for j in range(3):
                    score += float(log_prob[copy, t, j])
                    ratio = float((log_prob[copy, t, j] - old[copy, t, j]).exp())
                    for i in range(3):
                        a = float(play.advantage[copy, t, i])
                        plain[i] -= float(log_prob[copy, t, j].exp()) * a / int(play.live.sum())
                        clipped[i] -= min(ratio * a, min(max(ratio, 0.8), 1.2) * a) / int(play.live.sum())
    play.advantage[~play.live] = float("nan")
    for found, expected in (
        (published_losses(log_prob, play.advantage, play.live), plain),
        (published_losses(log_prob, play.advantage, play.live, old, 0.2), clipped),
    ):
        torch.testing.assert_close(found[0], torch.from_numpy(expected))
        assert abs(float(found[1]) - score) < 1e-9


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["one leads two", "diamond"])
def test_two_learners_are_one(name: str, variant: str) -> None:
    agents = sorted(agent for group in SEQUENCES[name] for agent in group)
    followers = leader_follower_map(agents, SEQUENCES[name], mutual=False)
    settings, eta = StackelbergSettings(variant=variant), dict.fromkeys(agents, 0.05)  # type: ignore[arg-type]
    alone = Play(agents).directions(followers, settings, eta)

    def learner(rows: slice) -> Callable[[Reduce], dict[str, Tensor]]:
        return lambda reduce: Play(agents).directions(followers, settings, eta, reduce, rows)

    for together in lockstep([learner(slice(0, 5)), learner(slice(5, 12))]):
        for agent in agents:
            torch.testing.assert_close(together[agent], alone[agent], rtol=1e-6, atol=1e-9)
