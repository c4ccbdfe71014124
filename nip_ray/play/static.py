"""Play in fixed shapes: every copy in every round, whether it has ended or not, and nothing asked of the device on the way.

Decisions that matter here:
- an agent's rows are the turns that its protocol gives it, T in each copy, live or not; a weight of 0 or 1 says which were taken;
- who may have a turn in which round is read off the protocol once, so that nobody else is computed;
- noise is drawn as `play_rollout` draws it, so episodes are the same; what is chosen is kept as logits and judged once, at the end;
- networks run by themselves (`Apart`), or as one computation where a scenario has one (`Scenario.stacked`).
Axes: B copies, R rounds, T turns, A agents, Q factors of a turn (message factors, then the decision), S symbols, padded, D decisions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor, nn

from nip_ray.learning.captured import Captured
from nip_ray.learning.dqn import FORBIDDEN
from nip_ray.learning.policy import Policy
from nip_ray.play.core import BatchedPlay
from nip_ray.play.rollout import Dialogue, Rollout
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Protocol, step

Observations = Mapping[str, Mapping[str, Tensor]]


def static_misfit(scenario: Scenario, networks: Mapping[str, nn.Module]) -> str | None:
    """Why fixed shapes cannot be had; None where they can."""
    if scenario.linear_symbols or scenario.rules is not None:
        return "linear messages, and games with positions, are not among what is computed in fixed shapes"
    if any(isinstance(module, nn.BatchNorm1d) for network in networks.values() for module in network.modules()):
        return "batch norms would count turns that were not taken"
    return scenario.protocol.open_schedule()


class Apart:
    """Networks of several agents, each by itself; what `Scenario.stacked` gives has the same methods."""

    def __init__(self, networks: Mapping[str, nn.Module], value: bool) -> None:
        self.networks, self.value = networks, value

    def inputs(self, obs: Observations, turns: int, known: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """What `__call__` reads, the copies leading. obs: of (B * T, ...) rows each. known: `inputs` of the same copies a round before."""
        return {f"{agent} {name}": part.unflatten(0, (-1, turns)) for agent in self.networks for name, part in obs[agent].items()}

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, tuple[Policy, Tensor | None]]:
        """For each agent its policy, and its value where wanted, of (B * T) turns."""
        obs: dict[str, dict[str, Tensor]] = {agent: {} for agent in self.networks}
        for key, part in inputs.items():
            agent, _, name = key.partition(" ")
            obs[agent][name] = part.flatten(0, 1)
        return {agent: network(obs[agent], True, self.value) for agent, network in self.networks.items()}


def together(scenario: Scenario, networks: Mapping[str, nn.Module], value: bool) -> Any:
    """These networks as one computation if the scenario has one for them, else each by itself."""
    return scenario.stacked(networks, value) or Apart(networks, value)


@dataclass(frozen=True)
class Layout:
    """Where a turn's factors stand in tensors (..., A, Q, S) of all agents: message factors first, then the decision.

    factors: message factors of each agent; deciders: whether its turns carry a decision; symbols: of a message;
    decisions: verdicts, and one more for going on.
    """

    factors: tuple[int, ...]
    deciders: tuple[bool, ...]
    symbols: int
    decisions: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(A, Q, S)."""
        return len(self.factors), max(f + d for f, d in zip(self.factors, self.deciders, strict=True)), max(self.decisions, self.symbols)

    @property
    def widths(self) -> list[int]:
        """Of each agent's noise."""
        return [f * self.symbols + self.decisions * d for f, d in zip(self.factors, self.deciders, strict=True)]

    def parts(self, of_NAQS: Tensor, place: int) -> list[Tensor]:
        """Views of what is one agent's: message (N, F, S), and decision (N, D) if it decides."""
        count, own = self.factors[place], of_NAQS[:, place]
        return [own[:, :count, : self.symbols], *([own[:, count, : self.decisions]] if self.deciders[place] else [])]

    def put(self, into_NAQS: Tensor, place: int, policy: Policy) -> None:
        """Write one agent's logits."""
        message, *decision = self.parts(into_NAQS, place)
        message.copy_(policy.message)
        for part in decision:
            assert policy.decision is not None
            part.copy_(policy.decision)

    def put_masks(self, into_NAQ: Tensor, place: int, speaks_NF: Tensor, may_decide_N: Tensor | None) -> None:
        """Write which of one agent's factors are in play."""
        count = self.factors[place]
        into_NAQ[:, place, :count] = speaks_NF
        if self.deciders[place]:
            assert may_decide_N is not None
            into_NAQ[:, place, count] = may_decide_N


class StaticPlay:
    """`play_rollout` of one scenario in fixed shapes."""

    def __init__(self, play: BatchedPlay, networks: Mapping[str, nn.Module], skip_silent_messages: bool = False) -> None:
        self.play, self.skip = play, skip_silent_messages
        protocol, scenario = play.protocol, play.scenario
        self.layout = layout_of(scenario)
        ever_RA = protocol.turn_table_SKAC.any(0).any(-1).tolist()
        self.rounds = [[agent for agent, has in zip(protocol.agents, row, strict=True) if has] for row in ever_RA]
        self.computed = {
            tuple(names): together(scenario, {name: networks[name] for name in names}, False) for names in self.rounds if names
        }
        self.table_SRAC = protocol.turn_table_SKAC.to(play.device)
        self.verifier = protocol.verifier_index
        self.decides = [r >= protocol.min_rounds - 1 and protocol.agents[self.verifier] in names for r, names in enumerate(self.rounds)]
        self.silence, self.undecided = (torch.tensor(value, device=play.device) for value in (-1, protocol.undecided))
        self._captured = Captured(self._played, play.device)

    def __call__(self, id_B: Tensor, seed_B: Tensor, noise: torch.Generator | None) -> Rollout:
        """As `play_rollout`."""
        uniform = None if noise is None else self._uniform(noise, len(id_B))
        return Rollout(*cast(Any, self._captured(id_B.to(self.play.device), seed_B.to(self.play.device), uniform)))

    def _uniform(self, generator: torch.Generator, copies: int) -> Tensor:
        """(n,) numbers: all that `play_rollout` would draw, in its order."""
        protocol = self.play.protocol
        width = sum(self.layout.widths[protocol.agents.index(agent)] for names in self.rounds for agent in names)
        return torch.rand(width * copies, generator=generator, device=generator.device)

    @torch.no_grad()
    def _played(self, id_B: Tensor, seed_B: Tensor, uniform: Tensor | None) -> tuple[Tensor | None, ...]:
        """The parts of the rollout. uniform: see `_uniform`; None for the most likely actions."""
        play, layout = self.play, self.layout
        protocol, device = play.protocol, play.device
        play.reset(id_B, seed_B)
        copies, rounds, (agents, factors, symbols) = len(id_B), protocol.max_rounds, layout.shape
        active_BRAC = self.table_SRAC[play.state.seed_B % len(self.table_SRAC)]
        noise = None if uniform is None else self._noise(uniform, copies)
        logits_BRAQS = torch.full((copies, rounds, agents, factors, symbols), FORBIDDEN, device=device)
        chosen_BAQS = torch.full((copies, agents, factors, symbols), FORBIDDEN, device=device)
        action_BRAQ = torch.zeros(copies, rounds, agents, factors, dtype=torch.int64, device=device)
        in_play_BRAQ = torch.zeros(copies, rounds, agents, factors, dtype=torch.bool, device=device)
        turn_BRA = torch.zeros(copies, rounds, agents, dtype=torch.bool, device=device)
        rewards, v, known = [], self.verifier, {}
        for r, names in enumerate(self.rounds):
            active_BAC = active_BRAC[:, r] & ~(play.state.ended_B[:, None] | play.state.agent_done_BA)[..., None]
            torch.any(active_BAC, -1, out=turn_BRA[:, r])
            decision_BA = play.decision_BRA[:, r]
            if names:
                computed = self.computed[tuple(names)]
                said = Dialogue(play.main_BRACM, play.linear_BRACM)
                obs = {name: play.scenario.observe(name, play.id_B, said, play.state.round_B, play.state.seed_B) for name in names}
                known = computed.inputs(obs, 1, known)
                found = computed(known)
                for name, drawn in zip(names, [None] * len(names) if noise is None else noise[r], strict=True):
                    a, policy = protocol.agents.index(name), found[name][0]
                    layout.put(logits_BRAQS[:, r], a, policy)
                    layout.put_masks(in_play_BRAQ[:, r], a, policy.speaks, policy.may_decide)
                    if drawn is not None:
                        for logits, own, into in zip((policy.message, policy.decision), drawn, layout.parts(chosen_BAQS, a), strict=False):
                            torch.add(logits, own, out=into)
                torch.argmax(logits_BRAQS[:, r] if noise is None else chosen_BAQS, -1, out=action_BRAQ[:, r])
                self._write(r, names, action_BRAQ[:, r], active_BAC)
                if self.decides[r]:
                    counts_B = turn_BRA[:, r, v] & in_play_BRAQ[:, r, v, layout.factors[v]]
                    torch.where(counts_B, action_BRAQ[:, r, v, layout.factors[v]], self.undecided, out=decision_BA[:, v])
            play.state, outcome = step(protocol, play.state, decision_BA, turn_BA=turn_BRA[:, r])
            if self.decides[r]:
                play.decision_B = torch.where(outcome.decided_B, outcome.decision_B, play.decision_B)
            rewards.append(outcome.reward_BA)
            play.round += 1
        log_prob_BRAQ = torch.log_softmax(logits_BRAQS, -1).gather(-1, action_BRAQ.unsqueeze(-1)).squeeze(-1)
        if self.skip:  # see `Policy.silenced`
            in_play_BRAQ[:, :, v, : layout.factors[v]] &= (play.decision_BRA[:, :, v] == protocol.undecided)[..., None]
        log_prob_BRA = (log_prob_BRAQ * (in_play_BRAQ & turn_BRA[..., None])).sum(-1)
        rollout = play.rollout(turn_BRA, torch.stack(rewards, 1), log_prob_BRA)
        return tuple(getattr(rollout, part.name) for part in fields(rollout))

    def _write(self, r: int, names: list[str], action_BAQ: Tensor, active_BAC: Tensor) -> None:
        play, size = self.play, self.play.scenario.message_size
        for name in names:
            a = play.protocol.agents.index(name)
            for i, channel in enumerate(play.protocol.writes[name]):
                said_BM, into_BM = action_BAQ[:, a, i * size : (i + 1) * size], play.main_BRACM[:, r, a, channel]
                torch.where(active_BAC[:, a, channel, None], said_BM, self.silence, out=into_BM)

    def _noise(self, uniform: Tensor, copies: int) -> list[list[list[Tensor]]]:
        """For each round and whoever may have the turn, Gumbel noise of the message (B, F, S) and of a decision; see `gumbel_noise`."""
        drawn = -torch.log((-torch.log(uniform.clamp_min(1e-20))).clamp_min(1e-20))
        places = [[self.play.protocol.agents.index(name) for name in names] for names in self.rounds]
        own = iter(drawn.split([copies * self.layout.widths[a] for names in places for a in names]))
        return [[self._parted(next(own).view(copies, -1), a) for a in names] for names in places]

    def _parted(self, own_BW: Tensor, place: int) -> list[Tensor]:
        count, symbols = self.layout.factors[place], self.layout.symbols
        return [own_BW[:, : count * symbols].unflatten(1, (count, symbols)), own_BW[:, count * symbols :]]


def layout_of(scenario: Scenario) -> Layout:
    """The layout of a scenario's turns."""
    protocol = scenario.protocol
    factors = tuple(len(protocol.writes[agent]) * scenario.message_size for agent in protocol.agents)
    return Layout(factors, tuple(agent in protocol.deciders for agent in protocol.agents), scenario.num_symbols, protocol.undecided + 1)


def turn_rounds(protocol: Protocol) -> Tensor:
    """(seed classes, T, A) int64: the round of each agent's turn number t, -1 where it has fewer."""
    has_SRA = protocol.turn_table_SKAC.any(-1)
    most = int(has_SRA.sum(1).max())
    order = torch.where(has_SRA, torch.arange(has_SRA.shape[1])[:, None], protocol.max_rounds).sort(1).values[:, :most]
    return torch.where(order < protocol.max_rounds, order, -1)
