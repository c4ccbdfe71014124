"""Adversarial provers: provers trained against a frozen verifier, and scripts that need no training.

Decisions that matter here:
- attackers train in this process by PPO, with the losses and advantages of the PPO algorithm. Only the attackers learn;
  no other weights change;
- an attacker is paid the *probability* of the verdict that it wants at each of the verifier's turns whose decision
  counts, not the drawn verdict. The expectation is the same (an agent with further turns is paid again, with the chance
  of having them), the variance is smaller, and a nearly certain verifier still gives a signal;
- it trains against sampled decisions even if a greedy verifier is measured: greedy decisions give no such signal.
Source: Schulman et al., "Proximal policy optimization algorithms", 2017, equation 7.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.errors import TrainingError
from nip_ray.learning.groups import FlatOptimizer, learning_mode, refresh_norms
from nip_ray.learning.policy import FORBIDDEN_BELOW, Action, Policy
from nip_ray.learning.policy_gradient import PlayedTurns, normalise, own_turn_advantages, ppo_loss
from nip_ray.learning.supervised import fit
from nip_ray.play.core import BatchedPlay, Edit, Player, Turn, episode_seeds
from nip_ray.play.rollout import AgentRows, own_rows
from nip_ray.play.scenario import Scenario
from nip_ray.play.staged import stage
from nip_ray.seeding import generator, stable_seed
from nip_ray.settings.attack import AttackSettings
from nip_ray.settings.ppo import PPOSettings

_LAST_LR = 0.1  # of the first
_MAX_GRAD_NORM = 0.5

Report = Callable[[int, float], None]


@dataclass(frozen=True)
class Attacker:
    """An adversarial prover. networks: of the attacking agents. kind: fresh, continued, own, random, silent, manual or
    search. size, seed: of a trained one. greedy: plays its most likely messages. iterations: of training. curve: its
    mean pay in each. budget: with extensions, the results after each. start, search: of a searching attacker, the
    attacker it starts from and the results by number of tries."""

    name: str
    kind: str
    networks: Mapping[str, nn.Module]
    greedy: bool = False
    edit: Edit | None = None
    size: float | None = None
    seed: int | None = None
    iterations: int = 0
    curve: tuple[float, ...] = ()
    budget: tuple[dict[str, Any], ...] = ()
    start: str = ""
    search: tuple[dict[str, Any], ...] = ()

    def players(self, seed: int, device: torch.device) -> dict[str, Player]:
        """Its players; `seed`: of what they draw."""
        noise = None if self.greedy else generator(seed, "attacker", self.name, device=device)
        return {agent: Player(network, noise, edit=self.edit) for agent, network in self.networks.items()}


class Uniform(nn.Module):
    """Plays uniformly over the legal messages of `twin`, a network for the same seat."""

    def __init__(self, twin: nn.Module) -> None:
        super().__init__()
        self.twin = twin

    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy, None]:
        """A uniform policy, and no value."""
        policy, _ = self.twin(obs, True, False)
        level = [
            None if x is None else torch.where(x > FORBIDDEN_BELOW, 0.0, x)
            for x in (policy.message, policy.linear, policy.decision)
        ]
        return replace(policy, message=level[0], linear=level[1], decision=level[2]), None


def silence(turn: Turn) -> Action:
    """An action without a visible message."""
    return {name: part if name == "decision" else torch.full_like(part, -1) for name, part in turn.action.items()}


@dataclass(frozen=True)
class Target:
    """The target of an attack. others: all agents that do not attack, as trained. wanted: the verdict that attackers
    are paid for. ids: the training instances they learn on. roles: those drawn in these episodes, () where none are."""

    scenario: Scenario
    others: Mapping[str, nn.Module]
    wanted: int
    ids: Tensor
    roles: tuple[str, ...] = ()


def train_attacker(
    target: Target, networks: Mapping[str, nn.Module], settings: AttackSettings, seed: int, report: Report
) -> tuple[float, ...]:
    """Train `networks` (agent -> network, on the scenario's device) in place. Returns their mean pay in each iteration.

    report: called with (iterations done, mean pay) after each. The same seed gives the same attackers (CPU). Raises
    TrainingError if weights become non-finite.
    """
    rule = PPOSettings(
        lr=settings.lr,
        gamma=1.0,
        entropy_coefficient=settings.entropy_coefficient,
        skip_silent_messages=False,
        max_grad_norm=_MAX_GRAD_NORM,
    )
    play = BatchedPlay(target.scenario, str(target.scenario.label_I.device))
    optimizers = {agent: FlatOptimizer(network.groups(), settings.lr) for agent, network in networks.items()}  # type: ignore[operator]
    for network in target.others.values():
        network.eval()
    curve = []
    for iteration in range(settings.iterations):
        for optimizer in optimizers.values():
            optimizer.set_learning_rate(settings.lr * (1 - (1 - _LAST_LR) * iteration / settings.iterations))
        noise = generator(seed, "play", iteration, device=play.device)
        for network in networks.values():
            network.eval()
        players = {agent: Player(network, noise) for agent, network in {**target.others, **networks}.items()}
        chosen = torch.randint(len(target.ids), (settings.copies,), generator=generator(seed, "instances", iteration))
        drawn_B = episode_seeds(stable_seed(seed, "episodes"), iteration, settings.copies)
        seed_B = target.scenario.protocol.seeds_within(target.roles, drawn_B, tuple(networks))
        played = stage(play, players, target.ids[chosen.to(target.ids.device)], seed_B)
        pay_BR = played.towards_BR(target.wanted)
        for agent, network in networks.items():
            rows = own_rows(target.scenario, played.rollout, agent)
            if len(rows.copy_N):
                _learn(
                    network,
                    optimizers[agent],
                    rows,
                    pay_BR,
                    settings,
                    rule,
                    stable_seed(seed, "learn", agent, iteration),
                )
        curve.append(float(pay_BR.sum(1).mean()))
        report(iteration + 1, curve[-1])
    for agent, network in networks.items():
        network.eval()
        if not all(bool(torch.isfinite(part).all()) for part in network.parameters()):
            raise TrainingError(f"attack: the weights of {agent!r} are not finite any more; lower evaluation.attack.lr")
    return tuple(curve)


@torch.enable_grad()
def _learn(
    network: nn.Module,
    optimizer: FlatOptimizer,
    rows: AgentRows,
    pay_BR: Tensor,
    settings: AttackSettings,
    rule: PPOSettings,
    seed: int,
) -> None:
    """Update one agent over its turns of an iteration, for several epochs."""
    with torch.no_grad():
        _, value_N = network(rows.obs, False, True)
        advantage_BR, target_BR = own_turn_advantages(
            pay_BR, rows.spread(value_N), rows.row_BR >= 0, rule.gamma, rule.lam
        )
        at = (rows.copy_N, rows.round_N)
        advantage_N, target_N = advantage_BR[at], target_BR[at]
    permute, beta = generator(seed, "minibatches"), torch.zeros((), device=value_N.device)

    def loss(row_K: Tensor) -> Tensor:
        policy, new_K = network(rows.obs_of(row_K))
        log_policy = policy.normalised()
        played = PlayedTurns(rows.log_prob_N[row_K], value_N[row_K], normalise(advantage_N[row_K]), target_N[row_K])
        log_prob_K, entropy = log_policy.log_prob(rows.action_of(row_K)), log_policy.entropy().mean()
        return ppo_loss(log_prob_K, entropy, new_K, played, rule, beta, rule.entropy_coefficient).value

    learning_mode(network)
    with torch.random.fork_rng(devices=[value_N.device] if value_N.device.type == "cuda" else []):
        torch.manual_seed(stable_seed(seed, "noise"))
        for _ in range(settings.num_epochs):
            order_N = torch.randperm(len(value_N), generator=permute).to(value_N.device)
            fit(
                loss,
                optimizer,
                order_N.tensor_split(max(1, len(order_N) // settings.minibatch_size)),
                rule.max_grad_norm,
            )
    refresh_norms(network, rows.obs)
