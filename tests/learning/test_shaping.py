"""Directions against dense matrices and brute-force differentiation, on one learner and on two; the sampled losses
against loops."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nip_ray.errors import UserError
from nip_ray.learning.shaping import (
    Reduce,
    check_sequence,
    dice_losses,
    directions,
    leader_follower_map,
    stable_direction,
)
from nip_ray.settings.stackelberg import StackelbergSettings

VARIANTS = ("spg", "pspg", "lola", "pola", "sos", "psos")
METHODS = ("conjugate_gradient", "neumann", "nystrom")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def lockstep(learners: Sequence[Callable[[Reduce], Any]]) -> list[Any]:
    """Runs each learner in a thread of its own; `reduce` sums over them. A call that one learner does not make breaks
    the barrier."""
    barrier, given, results = (
        threading.Barrier(len(learners), timeout=120),
        [torch.zeros(0)] * len(learners),
        [None] * len(learners),
    )

    def run(rank: int) -> None:
        def reduce(x: Tensor) -> Tensor:
            assert not x.requires_grad
            assert x.dim() == 1
            given[rank] = x
            barrier.wait()
            total = torch.stack(given).sum(0)
            barrier.wait()
            return total

        results[rank] = learners[rank](reduce)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(learners))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not barrier.broken
    return results


def test_leader_follower_map() -> None:
    agents = ("a", "b", "c", "d")
    sequence = (("c",), ("a", "d"), ("b",))
    assert leader_follower_map(agents, sequence, mutual=False) == {
        "a": ("b",),
        "b": (),
        "c": ("a", "d", "b"),
        "d": ("b",),
    }
    assert leader_follower_map(("a", "b", "c"), (), mutual=True) == {"a": ("b", "c"), "b": ("a", "c"), "c": ("a", "b")}
    assert leader_follower_map(("a",), (("a",),), mutual=False) == {"a": ()}


@pytest.mark.parametrize(
    ("sequence", "words"),
    [
        ((("a",), ("b",)), ["misses c"]),
        ((("a",), ("b", "a"), ("c",)), ["repeats a"]),
        ((("a", "x"), ("b", "c", "y")), ["does not know x, y"]),
        ((("a", "b", "b"), ("x",)), ["misses c", "repeats b", "does not know x"]),
        ((("a", "b"), (), ("c",)), ["empty group"]),
        ((), ["misses a, b, c"]),
    ],
)
def test_a_wrong_sequence_names_the_agents(sequence: tuple[tuple[str, ...], ...], words: list[str]) -> None:
    for call in (
        lambda: check_sequence(("a", "b", "c"), sequence),
        lambda: leader_follower_map(("a", "b", "c"), sequence, mutual=False),
    ):
        with pytest.raises(UserError) as caught:
            call()
        for word in words:
            assert word in str(caught.value)


class Smooth:
    """Random smooth losses of several agents, with every second derivative alive; an agent's parameters are two
    tensors."""

    def __init__(self, agents: Sequence[str], seed: int) -> None:
        self.agents = list(agents)
        self.parameters = {
            agent: [
                normal(*shape, seed=seed + 10 * k + part).requires_grad_()
                for part, shape in enumerate(((2, 1 + k % 2), (2,)))
            ]
            for k, agent in enumerate(agents)
        }
        self.sizes = [sum(p.numel() for p in self.parameters[agent]) for agent in agents]
        size = sum(self.sizes)
        self.quadratics, self.linears = (
            normal(len(agents), size, size, seed=seed + 500) * 0.3,
            normal(len(agents), size, seed=seed + 600),
        )
        self.mixes = normal(len(agents), size, size, seed=seed + 700) * 0.3
        for k in range(len(agents)):
            block = self.block(k)
            self.quadratics[k, block, block] += 2 * torch.eye(self.sizes[k])

    def block(self, k: int) -> slice:
        return slice(sum(self.sizes[:k]), sum(self.sizes[: k + 1]))

    def flat(self) -> Tensor:
        return torch.cat([p.reshape(-1) for agent in self.agents for p in self.parameters[agent]])

    def loss(self, k: int, flat: Tensor) -> Tensor:
        return (
            flat @ self.quadratics[k] @ flat / 2 + self.linears[k] @ flat + (self.mixes[k] @ flat).tanh().pow(3).sum()
        )

    def losses(self) -> dict[str, Tensor]:
        flat = self.flat()
        return {agent: self.loss(k, flat) for k, agent in enumerate(self.agents)}

    def directions(
        self, followers: Mapping[str, tuple[str, ...]], settings: StackelbergSettings, eta: Mapping[str, float]
    ) -> dict[str, Tensor]:
        return directions(self.losses(), self.parameters, followers, settings, eta, generator())

    def derivatives(self) -> tuple[list[Tensor], list[Tensor]]:
        """Dense gradients (P,) and Hessians (P, P) of every loss."""
        flat = self.flat().detach()
        gradients = [torch.func.grad(lambda x, k=k: self.loss(k, x))(flat) for k in range(len(self.agents))]
        return gradients, [torch.func.hessian(lambda x, k=k: self.loss(k, x))(flat) for k in range(len(self.agents))]


def dense_implicit(game: Smooth, followers: Mapping[str, tuple[str, ...]], damping: float) -> dict[str, Tensor]:
    gradients, hessians = game.derivatives()
    number = {agent: k for k, agent in enumerate(game.agents)}
    found = {}
    for leader in game.agents:
        total = gradients[number[leader]].clone()
        for f in sorted(followers[leader], key=lambda f: len(followers[f])):
            block = game.block(number[f])
            own = hessians[number[f]][block, block] + damping * torch.eye(block.stop - block.start)
            x = torch.linalg.solve(own, total[block])
            for u in (leader, *followers[leader]):
                if f in followers[u]:
                    total[game.block(number[u])] -= hessians[number[f]][game.block(number[u]), block] @ x
        found[leader] = total[game.block(number[leader])]
    return found


def dense_one_step(
    game: Smooth,
    followers: Mapping[str, tuple[str, ...]],
    settings: StackelbergSettings,
    eta: Mapping[str, float],
    mutual: bool,
) -> dict[str, Tensor]:
    gradients, hessians = game.derivatives()
    block = {agent: game.block(k) for k, agent in enumerate(game.agents)}
    number = {agent: k for k, agent in enumerate(game.agents)}
    xi = {agent: gradients[k][block[agent]] for agent, k in number.items()}
    found, xi0, chi = dict(xi), {}, {}
    for g in sorted(game.agents, key=lambda agent: len(followers[agent])):
        shaping, lookahead = torch.zeros_like(xi[g]), torch.zeros_like(xi[g])
        for f in followers[g]:
            shaping += eta[f] * hessians[number[f]][block[g], block[f]] @ gradients[number[g]][block[f]]
            step = xi[f] if mutual else found[f]
            lookahead += eta[f] * hessians[number[g]][block[g], block[f]] @ step
        if settings.variant in ("lola", "pola") and not settings.additional_lola_term:
            lookahead = torch.zeros_like(lookahead)
        found[g], xi0[g], chi[g] = xi[g] - shaping - lookahead, xi[g] - lookahead, shaping
    if settings.variant in ("lola", "pola"):
        return found
    all_xi, all_xi0, all_chi = (torch.cat([part[agent] for agent in game.agents]) for part in (xi, xi0, chi))
    against = -float(all_chi @ all_xi0)
    p1 = 1.0 if against >= 0 else min(1.0, -settings.sos_scaling_factor * float(all_xi0 @ all_xi0) / against)
    norm = math.sqrt(float(all_xi @ all_xi))
    p = min(p1, norm**2 if norm < settings.sos_threshold_factor else 1.0)
    return {agent: xi0[agent] - p * chi[agent] for agent in game.agents}


SEQUENCES = {
    "two": (("a",), ("b",)),
    "one leads two": (("a",), ("b", "c")),
    "two lead one": (("a", "b"), ("c",)),
    "three levels": (("a",), ("b",), ("c",)),
    "wide": (("b",), ("a", "d"), ("c", "e")),
}


@pytest.mark.parametrize("ihvp", METHODS)
@pytest.mark.parametrize("name", SEQUENCES)
def test_spg_is_the_dense_formula(name: str, ihvp: str) -> None:
    sequence = SEQUENCES[name]
    agents = sorted(agent for group in sequence for agent in group)
    inverse: Any = dict(ihvp=ihvp, ihvp_num_iterations=300 if ihvp == "neumann" else 30, ihvp_rank=9, ihvp_damping=0.5)
    settings = StackelbergSettings(variant="spg", **inverse, ihvp_neumann_scale=0.2)
    followers = leader_follower_map(agents, sequence, mutual=False)
    for seed in range(1):
        game = Smooth(agents, 1000 * seed)
        found, expected = game.directions(followers, settings, {}), dense_implicit(game, followers, 0.5)
        assert list(found) == agents
        for agent in agents:
            torch.testing.assert_close(found[agent], expected[agent], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-3])
@pytest.mark.parametrize("variant", ["lola", "pola", "sos", "psos"])
@pytest.mark.parametrize("name", [*SEQUENCES, "mutual"])
def test_one_step_rules_are_the_dense_formulas(name: str, variant: str, scale: float) -> None:
    """With gradients large and small, so that both of the two factors of stable opponent shaping come to bear."""
    sequence = SEQUENCES.get(name, (("a", "b", "c"),))
    agents = sorted(agent for group in sequence for agent in group)
    followers = leader_follower_map(agents, sequence, mutual=name == "mutual")
    eta = {agent: 0.2 + 0.3 * k for k, agent in enumerate(agents)}
    for additional in (True, False):
        settings = StackelbergSettings(variant=variant, additional_lola_term=additional, mutual=name == "mutual")  # type: ignore[arg-type]
        for seed in range(1):
            game = Smooth(agents, 1000 * seed)
            for part in (game.quadratics, game.linears, game.mixes):
                part *= scale
            found = game.directions(followers, settings, eta)
            expected = dense_one_step(game, followers, settings, eta, mutual=name == "mutual")
            for agent in agents:
                torch.testing.assert_close(found[agent], expected[agent], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_influence_is_zero(variant: str) -> None:
    """Parameters that a loss does not read, losses linear in them, frozen parameters, agents without any, and a
    constant loss."""
    leader, follower, frozen = (normal(3, seed=k).requires_grad_() for k in range(3))
    unused = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    frozen.requires_grad_(False)
    parameters = {
        "leader": [leader, unused],
        "follower": [unused.detach().requires_grad_(), follower, frozen],
        "none": [],
    }
    parameters["idle"] = [leader * 0]
    losses = {
        "leader": leader.square().sum() + follower.sum(),
        "follower": follower @ torch.ones(3, dtype=torch.float64),
        "none": leader.sum(),
        "idle": torch.zeros((), dtype=torch.float64),
    }
    followers = {"leader": ("follower", "none", "idle"), "follower": ("none",), "none": (), "idle": ()}
    settings = StackelbergSettings(variant=variant)  # type: ignore[arg-type]
    found = directions(losses, parameters, followers, settings, dict.fromkeys(parameters, 1.0), generator())
    assert {agent: len(v) for agent, v in found.items()} == {"leader": 7, "follower": 10, "none": 0, "idle": 3}
    torch.testing.assert_close(found["leader"], torch.cat([2 * leader.detach(), torch.zeros(4)]).double())
    torch.testing.assert_close(found["follower"], torch.cat([torch.zeros(4), torch.ones(3), torch.zeros(3)]).double())
    assert not found["idle"].any()


def slow_dice(data: dict[str, Tensor], discount: float, epsilon: float | None, copies: int) -> Tensor:
    """The value at parameters other than the old ones; w = 1."""
    log_prob, old, advantage, live = data["log_prob"].detach(), data["old"], data["advantage"], data["live"]
    total = torch.zeros(advantage.shape[-1], dtype=torch.float64)
    for copy in range(len(live)):
        for t in range(live.shape[1]):
            for i in range(advantage.shape[-1]):
                if bool(live[copy, t]) and epsilon is not None:
                    ratio = math.exp(float((log_prob[copy, t] - old[copy, t]).sum()))
                    value = float(advantage[copy, t, i])
                    clipped = min(max(ratio, 1 - epsilon), 1 + epsilon)
                    total[i] -= discount**t * (min(ratio * value, clipped * value) - value) / copies
    return total


def test_dice_losses_of_both_forms_against_loops() -> None:
    live = torch.rand(30, 3, generator=generator(9)) < torch.tensor([1.0, 0.7, 0.5])
    live &= live.cummin(-1).values
    data = {"old": -normal(30, 3, 2, seed=1).abs(), "advantage": normal(30, 3, 2, seed=2), "live": live}
    data["log_prob"] = (data["old"] + 0.2 * normal(30, 3, 2, seed=3)).requires_grad_()
    data["advantage"][~live] = float("nan")  # whatever stands after the end
    for copies in (None, 90):
        found = dice_losses(data["log_prob"], data["advantage"], live, 0.8, data["old"], 0.2, copies)
        torch.testing.assert_close(found, slow_dice(data, 0.8, 0.2, copies or 30))
        plain = dice_losses(data["log_prob"], data["advantage"], live, 0.8, copies=copies)
        assert not plain.any()
        gradient = torch.autograd.grad(plain[1], data["log_prob"])[0]  # of a policy gradient: - discount^t A_t
        weights = torch.where(live, 0.8 ** torch.arange(3), 0.0) / (copies or 30)
        torch.testing.assert_close(
            gradient, (-weights * data["advantage"][..., 1].nan_to_num())[..., None].expand(-1, -1, 2)
        )


def network_losses(rows: slice, networks: Mapping[str, nn.Module], clipped: bool) -> dict[str, Tensor]:
    """Losses of three agents with small networks on some of 40 copies of 3 rounds; agents take turns."""
    seen, advantage = normal(40, 3, 4, seed=41)[rows], normal(40, 3, 3, seed=43)
    acts = torch.randint(0, 3, (40, 3), generator=generator(42))[rows]
    live = (torch.rand(40, 3, generator=generator(44)) < torch.tensor([1.0, 0.8, 0.8])).cummin(-1).values[rows]
    parts = []
    for k, agent in enumerate(networks):
        log_prob = networks[agent](seen).log_softmax(-1).gather(-1, acts[..., None])[..., 0]
        turn = live & ((torch.arange(3) == k) | (torch.arange(3) == 0))
        parts.append(log_prob * turn)
    log_prob = torch.stack(parts, -1)
    old = log_prob.detach() + 0.15 * normal(40, 3, 3, seed=45)[rows] if clipped else None
    losses = dice_losses(log_prob, advantage[rows], live, 0.9, old, 0.2 if clipped else None, copies=40)
    return dict(zip(networks, losses))


def made_networks() -> dict[str, nn.Module]:
    torch.manual_seed(3)
    return {agent: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double() for agent in "abc"}


IMPLICIT = [
    (name, variant, ihvp)
    for name in ("one leads two", "three levels")
    for variant in ("spg", "pspg")
    for ihvp in METHODS
]
ONE_STEP = [
    (name, variant, "nystrom") for name in ("one leads two", "three levels", "mutual") for variant in VARIANTS[2:]
]


@pytest.mark.parametrize(("name", "variant", "ihvp"), IMPLICIT + ONE_STEP)
def test_two_learners_are_one(name: str, variant: str, ihvp: str) -> None:
    mutual = name == "mutual"
    settings = StackelbergSettings(variant=variant, ihvp=ihvp, mutual=mutual)  # type: ignore[arg-type]
    followers = leader_follower_map("abc", SEQUENCES.get(name, ()), mutual)

    def learner(rows: slice) -> Callable[[Reduce], dict[str, Tensor]]:
        networks = made_networks()

        def run(reduce: Reduce) -> dict[str, Tensor]:
            losses = network_losses(rows, networks, variant.startswith("p"))
            parameters = {agent: list(net.parameters()) for agent, net in networks.items()}
            return directions(losses, parameters, followers, settings, dict.fromkeys("abc", 0.7), generator(8), reduce)

        return run

    alone = learner(slice(0, 40))(lambda x: x)
    for together in lockstep([learner(slice(0, 13)), learner(slice(13, 40))]):
        for agent in "abc":
            torch.testing.assert_close(together[agent], alone[agent], rtol=1e-6, atol=1e-9)
    assert (
        relative_error(alone["b" if mutual else "a"], learner(slice(0, 13))(lambda x: x)["b" if mutual else "a"]) > 1e-2
    )


@pytest.mark.parametrize(("norm", "share"), [(0.05, 0.0025), (0.0999, 0.0999**2), (0.2, 1.0), (0.5, 1.0)])
def test_shaping_fades_below_the_threshold_of_the_norm_and_not_of_its_square(norm: float, share: float) -> None:
    """p2 is |xi|^2 where |xi| < 0.1, else 1; between 0.1 and the root of 0.1 the two readings differ."""
    one_P, none_P = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    settings = StackelbergSettings(variant="sos", sos_threshold_factor=0.1)
    found = stable_direction({"first": norm * one_P}, {"first": none_P}, {"first": -one_P}, settings)
    assert float(found["first"][0]) == pytest.approx(norm + share)
