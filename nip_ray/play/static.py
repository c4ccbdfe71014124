"""Play in fixed shapes: every copy in every round, whether it has ended or not, and nothing asked of the device on the way.

Decisions that matter here:
- an agent's rows are the turns that its protocol gives it, T in each copy, live or not; a weight of 0 or 1 says which were taken;
- who may have a turn in which round is read off the protocol once, so that nobody else is computed;
- noise is drawn as `play_rollout` draws it, so episodes are the same; what is chosen is kept as logits and judged once, at the end;
- networks run by themselves (`Apart`), or as one computation where a scenario has one (`Scenario.stacked`).
Axes: B copies, R rounds, T turns, A agents, Q factors of a turn (message factors, then the decision), S symbols, padded.
"""

from collections.abc import Mapping, Sequence
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
from nip_ray.protocols import CONTINUE, Protocol, step

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
    """Where a turn's factors stand in tensors (..., A, Q, S) of all agents: message factors first, then the decision."""

    factors: tuple[int, ...]
    deciders: tuple[bool, ...]
    symbols: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(A, Q, S)."""
        return len(self.factors), max(f + d for f, d in zip(self.factors, self.deciders, strict=True)), self.symbols

    @property
    def widths(self) -> list[int]:
        """Of each agent's noise."""
        return [f * self.symbols + 3 * d for f, d in zip(self.factors, self.deciders, strict=True)]

    def put(self, into_NAQS: Tensor, place: int, message_NFS: Tensor, decision_N3: Tensor | None) -> None:
        """Write one agent's logits, or what belongs to them."""
        into_NAQS[:, place, : self.factors[place]] = message_NFS
        if decision_N3 is not None:
            into_NAQS[:, place, self.factors[place], :3] = decision_N3

    def parts(self, of_NAQS: Tensor, place: int) -> list[Tensor]:
        """Views of one agent's: message (N, F, S), and decision (N, 3) if it decides."""
        count = self.factors[place]
        return [of_NAQS[:, place, :count], *([of_NAQS[:, place, count, :3]] if self.deciders[place] else [])]


class Factors:
    """Which factors of the turns of some agents (numbers in the protocol) are in play."""

    def __init__(self, scenario: Scenario, places: Sequence[int]) -> None:
        protocol, layout = scenario.protocol, layout_of(scenario)
        shape = len(places), max(layout.factors[a] + layout.deciders[a] for a in places)
        self.channel_AQ, self.said_AQ = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.bool)
        self.decision_AQ = torch.zeros(shape, dtype=torch.bool)
        for i, a in enumerate(places):
            own = [channel for channel in protocol.writes[protocol.agents[a]] for _ in range(scenario.message_size)]
            self.channel_AQ[i, : len(own)], self.said_AQ[i, : len(own)] = torch.tensor(own, dtype=torch.int64), True
            self.decision_AQ[i, len(own) : len(own) + 1] = layout.deciders[a]
        for name in ("channel_AQ", "said_AQ", "decision_AQ"):
            setattr(self, name, getattr(self, name).to(scenario.label_I.device))

    def in_play(self, active_XAC: Tensor, decides_XA: Tensor, silent_XA: Tensor | None) -> Tensor:
        """(..., A, Q) bool. active_XAC: who may write where; decides_XA: whether decisions count; silent_XA: who decided, where the message
        of such a turn does not count (see `Policy.silenced`)."""
        speaks = active_XAC.gather(-1, self.channel_AQ.expand(*active_XAC.shape[:-2], -1, -1)) & self.said_AQ
        speaks = speaks if silent_XA is None else speaks & ~silent_XA[..., None]
        return speaks | (decides_XA[..., None] & self.decision_AQ)


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
        self.decides_R1 = torch.tensor(self.decides, device=play.device)[:, None]
        self._captured = Captured(self._played, play.device)
        self.factors = Factors(scenario, range(len(protocol.agents)))

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
        gumbel = None if uniform is None else self._gumbel(uniform, copies)
        logits_BRAQS = torch.full((copies, rounds, agents, factors, symbols), FORBIDDEN, device=device)
        action_BRAQ = torch.zeros(copies, rounds, agents, factors, dtype=torch.int64, device=device)
        turn_BRA = torch.zeros(copies, rounds, agents, dtype=torch.bool, device=device)
        reward_BRA = torch.zeros(copies, rounds, agents, device=device)
        silence, known = torch.full((), -1, device=device), {}
        undecided = torch.full((), CONTINUE, device=device)
        for r, names in enumerate(self.rounds):
            active_BAC = active_BRAC[:, r] & ~(play.state.ended_B[:, None] | play.state.agent_done_BA)[..., None]
            torch.any(active_BAC, -1, out=turn_BRA[:, r])
            if names:
                computed = self.computed[tuple(names)]
                said = Dialogue(play.main_BRACM, play.linear_BRACM)
                obs = {name: play.scenario.observe(name, play.id_B, said, play.state.round_B, play.state.seed_B) for name in names}
                known = computed.inputs(obs, 1, known)
                for name, (policy, _) in computed(known).items():
                    layout.put(logits_BRAQS[:, r], protocol.agents.index(name), policy.message, policy.decision)
                chosen = logits_BRAQS[:, r] if gumbel is None else logits_BRAQS[:, r] + gumbel[:, r]
                torch.argmax(chosen, -1, out=action_BRAQ[:, r])
                self._write(r, names, action_BRAQ[:, r], active_BAC, silence)
            decision_BA, v = play.decision_BRA[:, r], self.verifier
            if self.decides[r]:
                torch.where(turn_BRA[:, r, v], action_BRAQ[:, r, v, layout.factors[v]], undecided, out=decision_BA[:, v])
            play.state, outcome = step(protocol, play.state, decision_BA, turn_BA=turn_BRA[:, r])
            if self.decides[r]:
                play.decision_B = torch.where(outcome.decided_B, outcome.decision_B, play.decision_B)
            reward_BRA[:, r] = outcome.reward_BA
            play.round += 1
        log_prob_BRA = self._judged(logits_BRAQS, action_BRAQ, active_BRAC, turn_BRA)
        rollout = play.rollout(turn_BRA, reward_BRA, log_prob_BRA)
        return tuple(getattr(rollout, part.name) for part in fields(rollout))

    def _write(self, r: int, names: list[str], action_BAQ: Tensor, active_BAC: Tensor, silence: Tensor) -> None:
        play, size = self.play, self.play.scenario.message_size
        for name in names:
            a = play.protocol.agents.index(name)
            for i, channel in enumerate(play.protocol.writes[name]):
                said_BM, into_BM = action_BAQ[:, a, i * size : (i + 1) * size], play.main_BRACM[:, r, a, channel]
                torch.where(active_BAC[:, a, channel, None], said_BM, silence, out=into_BM)

    def _judged(self, logits: Tensor, action: Tensor, active_BRAC: Tensor, turn_BRA: Tensor) -> Tensor:
        """(B, R, A): the log-probabilities of what was done, 0 outside turns."""
        log_prob_BRAQ = torch.log_softmax(logits, -1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        silent_BRA = (self.play.decision_BRA != CONTINUE) if self.skip else None
        in_play = self.factors.in_play(active_BRAC, self.decides_R1, silent_BRA)
        return (log_prob_BRAQ * (in_play & turn_BRA[..., None])).sum(-1)

    def _gumbel(self, uniform: Tensor, copies: int) -> Tensor:
        """(B, R, A, Q, S) from uniform numbers that are in the order of rounds, agents, copies; see `policy.gumbel_noise`."""
        drawn = -torch.log((-torch.log(uniform.clamp_min(1e-20))).clamp_min(1e-20))
        agents, factors, symbols = self.layout.shape
        noise = drawn.new_zeros(copies, len(self.rounds), agents, factors, symbols)
        taken = 0
        for r, names in enumerate(self.rounds):
            for name in names:
                a = self.play.protocol.agents.index(name)
                width, spoken = self.layout.widths[a], self.layout.factors[a] * symbols
                own = drawn[taken : taken + copies * width].view(copies, width)
                said = own[:, :spoken].view(copies, -1, symbols)
                self.layout.put(noise[:, r], a, said, own[:, spoken:] if self.layout.deciders[a] else None)
                taken += copies * width
        return noise


def layout_of(scenario: Scenario) -> Layout:
    """The layout of a scenario's turns."""
    protocol = scenario.protocol
    factors = tuple(len(protocol.writes[agent]) * scenario.message_size for agent in protocol.agents)
    return Layout(factors, tuple(agent in protocol.deciders for agent in protocol.agents), max(3, scenario.num_symbols))


def turn_rounds(protocol: Protocol) -> Tensor:
    """(seed classes, T, A) int64: the round of each agent's turn number t, -1 where it has fewer."""
    has_SRA = protocol.turn_table_SKAC.any(-1)
    most = int(has_SRA.sum(1).max())
    order = torch.where(has_SRA, torch.arange(has_SRA.shape[1])[:, None], protocol.max_rounds).sort(1).values[:, :most]
    return torch.where(order < protocol.max_rounds, order, -1)
