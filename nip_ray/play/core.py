"""The batched core: B copies of a protocol as tensors on one device, in lock-step, no Python loop over copies.

Decisions that matter here:
- copies that end early are masked; play continues until all have ended or the rounds run out, so rollouts hold only
  complete episodes;
- only agents whose turn it is, in copies that are still open, are observed and computed;
- the core draws no random numbers itself: ids, episode seeds and sampling noise come from generators that the caller
  seeds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.learning.policy import Action, Policy, joined
from nip_ray.learning.similarity import choice_distances, similarity
from nip_ray.play.rollout import Dialogue, Rollout
from nip_ray.play.scenario import Scenario, columns
from nip_ray.protocols import (
    ACCEPT,
    NUM_SEEDS,
    REJECT,
    Protocol,
    ProtocolState,
    StepOutcome,
    ZeroKnowledge,
    start,
    step,
)  # fmt: skip
from nip_ray.protocols.batched_step import verdict_of
from nip_ray.seeding import generator, stable_seed


class BatchedPlay:
    """B copies of `scenario.protocol`, played round by round.

    round: the current round of all copies. rows: index of all copies, in front of `round`.
    """

    rows: Any = slice(None)

    def __init__(self, scenario: Scenario, device: str = "cpu") -> None:
        self.scenario, self.protocol, self.device = scenario, scenario.protocol, torch.device(device)
        self.writes = {
            agent: torch.tensor(writes, device=self.device) for agent, writes in self.protocol.writes.items()
        }

    def reset(self, id_B: Tensor, seed_B: Tensor) -> None:
        """Start copies on the instances `id_B` with the episode seeds `seed_B` (both (B,) int64)."""
        protocol, scenario = self.protocol, self.scenario
        self.id_B = id_B.to(self.device)
        y_B = scenario.label_I[self.id_B]
        self.state: ProtocolState = start(protocol, y_B, seed_B.to(self.device))
        self.round: Any = 0
        shape = (len(id_B), protocol.max_rounds, len(protocol.agents), len(protocol.channels), scenario.message_size)
        self.main_BRACM = torch.full(shape, -1, device=self.device)
        self.linear_BRACM = torch.full(shape, -1, device=self.device) if scenario.linear_symbols else None
        self.decision_BRA = torch.full(shape[:3], protocol.undecided, device=self.device)
        self.decision_B = torch.full(shape[:1], protocol.undecided, device=self.device)
        self.position = None if scenario.rules is None else scenario.rules.start(self.id_B)
        self.active_BAC = self._active()

    def go_on(self, id_B: Tensor, seed_B: Tensor, main_BRACM: Tensor, round_: int) -> None:
        """Like `reset`, but at the beginning of a later round, after these messages and without a decision. Not for
        games with positions."""
        self.reset(id_B, seed_B)
        self.main_BRACM, self.round = main_BRACM.clone(), round_
        self.state = replace(self.state, round_B=torch.full_like(self.state.round_B, round_))
        self.active_BAC = self._active()

    @property
    def finished(self) -> bool:
        """True if every copy has ended."""
        return self.round >= self.protocol.max_rounds or bool(self.state.ended_B.all())

    def turn_B(self, agent: str) -> Tensor:
        """(B,) bool: the copies in which it is this agent's turn."""
        return self.active_BAC[:, self.protocol.agents.index(agent)].any(-1)

    def observe(self, agent: str, copy_N: Tensor) -> dict[str, Tensor]:
        """The observation of `agent` in the copies `copy_N` (indices)."""
        round_N, seed_N = self.state.round_B[copy_N], self.state.seed_B[copy_N]
        rules = self.scenario.rules
        if rules is not None:
            return rules.view(agent, rules.select(self.position, copy_N), round_N, seed_N)
        said = Dialogue(self.main_BRACM, self.linear_BRACM).rows(copy_N)
        return self.scenario.observe(agent, self.id_B[copy_N], said, round_N, seed_N)

    def step(
        self,
        actions: Mapping[str, tuple[Tensor, Action]],
        similarity_B: Tensor | None = None,
        grade_BM: Tensor | None = None,
        drawn: bool = False,
        pay_BMD: Tensor | None = None,
    ) -> StepOutcome:
        """Play one round. actions: agent -> (copies N, action of those N turns); an agent without a turn is left out.

        similarity_B: under zero knowledge, of the round, from `compared`. grade_BM, drawn: where verdicts are graded,
        each decider's probability of acceptance, and True if its decision was drawn from it. pay_BMD: filled with each
        decider's pay for each of its decisions (see `Rollout.pay_BRMD`).
        """
        decision_BA = torch.full(self.active_BAC.shape[:2], self.protocol.undecided, device=self.device)
        for agent, (copy_N, action) in actions.items():
            self._write(agent, copy_N, action)
            if agent in self.protocol.deciders:
                decision_BA[copy_N, self.protocol.agents.index(agent)] = action["decision"].to(self.device)
        self.decision_BRA[self.rows, self.round] = decision_BA
        judged, error_B, said = None, None, Dialogue(self.main_BRACM, self.linear_BRACM)
        if self.protocol.verifier is None and self.scenario.rules is not None:
            self.position, judged = self.scenario.rules.advance(self.position, self.main_BRACM[self.rows, self.round])
        elif self.protocol.verifier is None:
            judged = self.scenario.judge(self.id_B, said, self.state.round_B, self.state.seed_B)
        if self.protocol.payment.per_error and self._may_end():
            error_B = self.scenario.estimate_error(self.id_B, said)
        rest = judged, similarity_B, grade_BM, drawn, error_B
        if pay_BMD is not None and self._may_end():
            self._pay_of_each(decision_BA, pay_BMD, *rest)
        self.state, outcome = step(self.protocol, self.state, decision_BA, *rest)
        self.decision_B = torch.where(outcome.decided_B, outcome.decision_B, self.decision_B)
        self._to_next_round()
        self.active_BAC = self._active()
        return outcome

    def _may_end(self) -> bool:
        """True if this round may be a copy's last."""
        return self.round >= self.protocol.min_rounds - 1

    def _to_next_round(self) -> None:
        self.round += 1

    def _pay_of_each(self, decision_BA: Tensor, pay_BMD: Tensor, *rest: Any) -> None:
        """Step once for each decision of each decider, with all else fixed, and record its pay if it ends its part."""
        protocol = self.protocol
        for place, index in enumerate(protocol.verifier_indices):
            counts_B = self.active_BAC[:, index].any(-1) & protocol.decides_in(
                protocol.agents[index], self.state.round_B
            )
            for code in range(protocol.undecided + 1):
                instead_BA = decision_BA.clone()
                instead_BA[:, index] = code
                after, outcome = step(protocol, self.state, instead_BA, *rest)
                # a panel pays a vote once the last one is cast
                known_B = after.ended_B if protocol.panel else after.ended_B | after.agent_done_BA[:, index]
                pay_BMD[:, place, code] = torch.where(counts_B & known_B, outcome.reward_BA[:, index], torch.nan)

    def rollout(self, turn_BRA: Tensor, reward_BRA: Tensor, log_prob_BRA: Tensor, **more: Tensor | None) -> Rollout:
        """The rollout, with the caller's records; see `Rollout`."""
        return Rollout(
            id_B=self.id_B,
            seed_B=self.state.seed_B,
            y_B=self.state.y_B,
            main_BRACM=self.main_BRACM,
            linear_BRACM=self.linear_BRACM,
            decision_BRA=self.decision_BRA,
            turn_BRA=turn_BRA,
            reward_BRA=reward_BRA,
            log_prob_BRA=log_prob_BRA,
            length_B=self.state.round_B,
            verdict_B=self.decision_B,
            cut_B=self.state.exhausted_B if self.protocol.cuts else None,
            vote_BM=verdict_of(self.state.vote_BM) if self.protocol.panel else None,
            **more,
        )

    def _active(self) -> Tensor:
        closed_BA = self.state.ended_B[:, None] | self.state.agent_done_BA
        return self.protocol.active(self.state.round_B, self.state.seed_B) & ~closed_BA[..., None]

    def _write(self, agent: str, copy_N: Tensor, action: Action) -> None:
        writes, index = self.writes[agent], self.protocol.agents.index(agent)
        active_NC = self.active_BAC[copy_N[:, None], index, writes]
        round_ = self.round if isinstance(self.round, int) else self.round[copy_N[:, None]]
        for target, name in ((self.main_BRACM, "message"), (self.linear_BRACM, "linear")):
            if target is not None:
                said = action[name].to(self.device).view(len(copy_N), len(writes), self.scenario.message_size)
                target[copy_N[:, None], round_, index, writes] = torch.where(active_NC[..., None], said, -1)


def turn_masks(protocol: Protocol, agent: str, message_size: int, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
    """Masks of a turn: "round" (N,), "speaks" (N, F): the message factors in play; "may_decide" (N,): a decision would
    count now; and for an agent in `told` "told" (N, roles), the episode's role, one-hot."""
    writes, index = protocol.writes[agent], protocol.agents.index(agent)
    active_NC = protocol.active(round_N, seed_N)[:, index]
    if len(writes) < len(protocol.channels):
        active_NC = active_NC[:, columns(writes)]
    speaks_NF = active_NC if message_size == 1 else active_NC.repeat_interleave(message_size, 1)
    if agent in protocol.deciders:
        may_decide_N = active_NC.any(1) & protocol.decides_in(agent, round_N)
    else:
        may_decide_N = torch.zeros_like(active_NC[:, 0])
    masks = {"round": round_N, "speaks": speaks_NF, "may_decide": may_decide_N}
    return {**masks, "told": protocol.told_NW(round_N, seed_N)} if agent in protocol.told else masks


@dataclass(frozen=True)
class Turn:
    """An agent's choices in a round, in N copies. copy_N: the copies. policy: the distribution. action: the sample."""

    agent: str
    round: int
    copy_N: Tensor
    policy: Policy
    action: Action


Edit = Callable[[Turn], Action]
"""Replacement of a message: an action like the turn's, -1 for a symbol that is not sent."""


@dataclass(frozen=True)
class Player:
    """The player of an agent.

    network: its policy. noise: of sampled actions, None for the most likely ones. shown_B: the instances it observes
    (None: the judged ones). edit: replaces its message before it is sent. scenario: the one that makes its observations
    (None: the play's own). version_B, past: (B,) int64 and networks by number: they play in copies whose version is not
    -1 (None: in none).
    """

    network: nn.Module
    noise: torch.Generator | None = None
    shown_B: Tensor | None = None
    edit: Edit | None = None
    scenario: Scenario | None = None
    version_B: Tensor | None = None
    past: Mapping[int, nn.Module] = field(default_factory=dict)

    def policy(self, play: BatchedPlay, agent: str, copy_N: Tensor) -> Policy:
        """The player's policy in its turns as `agent`."""
        obs = self.observe(play, agent, copy_N)
        if self.version_B is None:
            return self.network(obs, True, False)[0]
        version_N, found, places = self.version_B[copy_N], [], []
        for version, network in ((-1, self.network), *self.past.items()):
            place_K = (version_N == version).nonzero().flatten()
            if len(place_K):
                found.append(network({name: value[place_K] for name, value in obs.items()}, True, False)[0])
                places.append(place_K)
        return found[0] if len(found) == 1 else joined(found).rows(torch.cat(places).argsort())

    def observe(self, play: BatchedPlay, agent: str, copy_N: Tensor) -> dict[str, Tensor]:
        """The player's observation before its turn as `agent`."""
        if self.shown_B is None and self.scenario is None:
            return play.observe(agent, copy_N)
        id_B = play.id_B if self.shown_B is None else self.shown_B.to(play.device)
        said = Dialogue(play.main_BRACM, play.linear_BRACM).rows(copy_N)
        scenario = self.scenario or play.scenario
        return scenario.observe(agent, id_B[copy_N], said, play.state.round_B[copy_N], play.state.seed_B[copy_N])


@dataclass(frozen=True)
class Searched:
    """The result of a search in N turns of an agent. message_NF: -1 where it did not search, or found that silence is
    best. silent_N: where it did. taught_NFS: the value of each symbol for the speaker, a distribution over S symbols
    for each of F message factors times the stake of the turn; zero where it did not search."""

    message_NF: Tensor
    silent_N: Tensor
    taught_NFS: Tensor


Asked = Mapping[str, tuple[Tensor, Policy]]
"""Agent -> (copies N in which it has the turn, its policy there)."""
Search = Callable[[BatchedPlay, Mapping[str, Player], Asked], Mapping[str, Searched]]
"""Called in every round; returns the replacement messages of searching agents."""


@dataclass(frozen=True)
class Round:
    """The result of one round. reward_BA: rewards. distance_B2: under zero knowledge, `choice_distances`. searched:
    results by agent."""

    turns: list[Turn]
    reward_BA: Tensor
    distance_B2: Tensor | None
    searched: Mapping[str, Searched]


def policies(play: BatchedPlay, players: Mapping[str, Player]) -> dict[str, tuple[Tensor, Policy]]:
    """Agent -> (copies N in which it has the turn, its policy there), for every agent that has one."""
    copies = {agent: play.turn_B(agent).nonzero().flatten() for agent in play.protocol.agents}
    return {
        agent: (copy_N, players[agent].policy(play, agent, copy_N)) for agent, copy_N in copies.items() if len(copy_N)
    }


def play_round(
    play: BatchedPlay, players: Mapping[str, Player], search: Search | None = None, pay_BMD: Tensor | None = None
) -> Round:
    """Play one round: agents observe, choose and send. search: see `Search`. pay_BMD: see `BatchedPlay.step`."""
    asked, extra = policies(play, players), play.protocol.zero_knowledge
    chosen: dict[str, Action] = {
        agent: policy.choose(players[agent].noise, copy_N, len(play.id_B)) for agent, (copy_N, policy) in asked.items()
    }
    searched = {} if search is None else search(play, players, asked)
    for agent, found in searched.items():
        said_NF = chosen[agent]["message"]
        chosen[agent] = {**chosen[agent], "message": torch.where(found.message_NF < 0, said_NF, found.message_NF)}
    turns = [Turn(agent, play.round, copy_N, policy, chosen[agent]) for agent, (copy_N, policy) in asked.items()]
    actions = {}
    for turn in turns:
        edit = players[turn.agent].edit
        action = turn.action if edit is None else edit(turn)
        if turn.agent in searched:  # a network has no action for silence: its own stays in the turn
            silent_N1 = searched[turn.agent].silent_N[:, None]
            action = {**action, "message": torch.where(silent_N1, -1, action["message"])}
        actions[turn.agent] = turn.copy_N, action
    similarity_B, distance_B2 = (None, None) if extra is None else compared(extra, asked, play.id_B)
    grade_BM, drawn = stated(play, asked, players) if play.protocol.graded else (None, False)
    return Round(turns, play.step(actions, similarity_B, grade_BM, drawn, pay_BMD).reward_BA, distance_B2, searched)


def stated(
    play: BatchedPlay, asked: Mapping[str, tuple[Tensor, Policy]], players: Mapping[str, Player]
) -> tuple[Tensor, bool]:
    """((B, M) each decider's probability of acceptance among its two verdicts, True if decisions are drawn)."""
    deciders = play.protocol.verifiers
    grade_BM = torch.full((len(play.id_B), len(deciders)), 0.5, device=play.device)
    for place, agent in enumerate(deciders):
        if agent in asked:
            copy_N, policy = asked[agent]
            assert policy.decision is not None
            grade_BM[copy_N, place] = torch.sigmoid(policy.decision[:, ACCEPT] - policy.decision[:, REJECT]).float()
    return grade_BM, any(players[agent].noise is not None for agent in deciders)


def play_rollout(
    play: BatchedPlay,
    agents: Mapping[str, nn.Module],
    id_B: Tensor,
    seed_B: Tensor,
    noise: torch.Generator | None,
    skip_silent_messages: bool = False,
) -> Rollout:
    """Play complete episodes: with actions sampled by `noise`, or the most likely ones where it is None.

    agents: agent -> network. skip_silent_messages: see `Policy.silenced`; learning must use the same. Returns the
    rollout with the log-probabilities of the actions.
    """
    return play_episodes(
        play, {agent: Player(network, noise) for agent, network in agents.items()}, id_B, seed_B, skip_silent_messages
    )


@torch.no_grad()
def play_episodes(
    play: BatchedPlay,
    players: Mapping[str, Player],
    id_B: Tensor,
    seed_B: Tensor,
    skip_silent_messages: bool = False,
    record: Callable[[Turn], None] = lambda turn: None,
    *,
    begin: tuple[Tensor, int] | None = None,
    search: Search | None = None,
    every_verdict: bool = False,
) -> Rollout:
    """`play_rollout` with a `Player` for each agent. record: called with every turn of every round.

    begin: (earlier messages, the round to begin with) instead of the first, see `BatchedPlay.go_on`. search: see
    `Search`; its results are in `Rollout.taught_BRAFS`. every_verdict: record deciders' pay for each decision
    (`Rollout.pay_BRMD`).
    """
    protocol = play.protocol
    play.reset(id_B, seed_B) if begin is None else play.go_on(id_B, seed_B, *begin)
    shape = (len(id_B), protocol.max_rounds, len(protocol.agents))
    turn_BRA = torch.zeros(shape, dtype=torch.bool, device=play.device)
    reward_BRA = torch.zeros(shape, device=play.device)
    log_prob_BRA = torch.zeros(shape, device=play.device)
    simulation_BR2 = None if protocol.zero_knowledge is None else torch.full((*shape[:2], 2), -1.0, device=play.device)
    taught_BRAFS = pay_BRMD = None
    if search is not None:
        factors = max(len(protocol.writes[agent]) for agent in protocol.agents) * play.scenario.message_size
        taught_BRAFS = torch.zeros(*shape, factors, play.scenario.num_symbols, device=play.device)
    if every_verdict:
        pay_BRMD = torch.full(
            (*shape[:2], len(protocol.verifiers), protocol.undecided + 1), torch.nan, device=play.device
        )
    while not play.finished:
        r = play.round
        turn_BRA[:, r] = play.active_BAC.any(-1)
        played = play_round(play, players, search, None if pay_BRMD is None else pay_BRMD[:, r])
        reward_BRA[:, r] = played.reward_BA
        for turn in played.turns:
            scored = turn.policy.silenced(turn.action) if skip_silent_messages else turn.policy
            log_prob_BRA[turn.copy_N, r, protocol.agents.index(turn.agent)] = scored.log_prob(turn.action)
            record(turn)
            if taught_BRAFS is not None and turn.agent in played.searched:
                taught_NFS = played.searched[turn.agent].taught_NFS
                taught_BRAFS[turn.copy_N, r, protocol.agents.index(turn.agent), : taught_NFS.shape[1]] = taught_NFS
        if simulation_BR2 is not None and played.distance_B2 is not None:
            simulation_BR2[:, r] = played.distance_B2
    more = {"simulation_BR2": simulation_BR2, "taught_BRAFS": taught_BRAFS, "pay_BRMD": pay_BRMD}
    return play.rollout(turn_BRA, reward_BRA, log_prob_BRA, **more)


def compared(
    extra: ZeroKnowledge, policies: Mapping[str, tuple[Tensor, Policy]], like_B: Tensor
) -> tuple[Tensor, Tensor]:
    """The adversary's and the simulator's choices of a round: (B,) `similarity` and (B, 2) `choice_distances`.

    policies: agent -> (copies N of its turns, its policy there). like_B: any (B,) tensor on their device. Copies in
    which either had no turn have similarity 0 and distances -1.
    """
    similarity_B = torch.zeros(like_B.shape, device=like_B.device)
    distance_B2 = torch.full((*like_B.shape, 2), -1.0, device=like_B.device)
    if extra.adversary not in policies or extra.simulator not in policies:
        return similarity_B, distance_B2
    (copy_N, adversary), (other_N, simulator) = policies[extra.adversary], policies[extra.simulator]
    row_B = torch.full_like(like_B, -1, dtype=torch.int64)
    row_B[other_N] = torch.arange(len(other_N), device=like_B.device)
    both_N = row_B[copy_N] >= 0
    copy_K = copy_N[both_N]
    pair = adversary.rows(both_N), simulator.rows(row_B[copy_K])
    similarity_B[copy_K] = similarity(*pair, legacy=extra.legacy)
    distance_B2[copy_K] = choice_distances(*pair)
    return similarity_B, distance_B2


def instance_ids(scenario: Scenario, split: str, seed: int, first: int, count: int) -> Tensor:
    """Ids number `first` to `first + count` of an endless stream of reshuffled passes over a split.

    Stateless: the k-th pass is a permutation seeded by (seed, split, k), so any worker can compute its share of any
    iteration.
    """
    ids = scenario.ids(split).cpu()
    if count == 0:
        return ids[:0]
    size, chosen = len(ids), []
    for number in range(first // size, (first + count - 1) // size + 1):
        permutation = torch.randperm(size, generator=generator(seed, "instances", split, number))
        low, high = max(first - number * size, 0), min(first + count - number * size, size)
        chosen.append(ids[permutation[low:high]])
    return torch.cat(chosen)


def episode_seeds(seed: int, first: int, count: int) -> Tensor:
    """(count,) int64 episode seeds in [0, 65536), for episodes from number `first` on (by seed and number)."""
    return torch.randint(NUM_SEEDS, (count,), generator=generator(stable_seed(seed, "episodes"), "from", first))
