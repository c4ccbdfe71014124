"""Rollouts: tokens, turns, rewards; and rows of an agent's own turns for learning.

Decisions that matter here:
- observations are not stored; they are rebuilt from ids and tokens where they are needed;
- in a game with positions (`GameRules`) a position is a pure function of id and tokens, too (`position_at` replays
  them). Play carries it along, and learning walks through a game once (`views_along`), which only saves the replays;
- copies without messages in a round keep their state and are paid nothing, as ended copies and future rounds are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from nip_ray.learning.policy import Action
from nip_ray.protocols import Judgement

if TYPE_CHECKING:
    from nip_ray.play.scenario import Scenario

Position = TypeVar("Position")

Rows = dict[str, Tensor]
"""N transitions: "obs_..." and "next_obs_..." for each part of an observation, "action" (N,) int64, "reward" and
"discount" (N,)."""


@dataclass(frozen=True)
class Dialogue:
    """The messages of N copies, as tokens: (N, R, A, C, M) int64, -1 for none; `linear` of the same form, or None."""

    main: Tensor
    linear: Tensor | None = None

    def before(self, round_N: Tensor) -> "Dialogue":
        """Only the messages of rounds before `round_N`."""
        past_NR = torch.arange(self.main.shape[1], device=round_N.device) < round_N[:, None]
        keep = past_NR[:, :, None, None, None]
        linear = None if self.linear is None else torch.where(keep, self.linear, -1)
        return Dialogue(torch.where(keep, self.main, -1), linear)

    def rows(self, index_N: Tensor) -> "Dialogue":
        """The dialogues of some copies."""
        linear = None if self.linear is None else self.linear.index_select(0, index_N)
        return Dialogue(self.main.index_select(0, index_N), linear)


class GameRules(ABC, Generic[Position]):
    """The rules of a game with positions, for B copies at once."""

    @abstractmethod
    def start(self, id_B: Tensor) -> Position:
        """The first position of the instances `id_B`."""

    @abstractmethod
    def advance(self, position: Position, said_BACM: Tensor) -> tuple[Position, Judgement]:
        """The position after a round with the messages `said_BACM` (-1: none), its pay, and the games it ends."""

    @abstractmethod
    def select(self, position: Position, index_N: Tensor) -> Position:
        """Some of the copies, in this order; repeats are allowed."""

    @abstractmethod
    def put(self, position: Position, index_N: Tensor, other: Position) -> Position:
        """The position with the N copies of `other` in place of the copies `index_N`, which are distinct."""

    @abstractmethod
    def view(self, agent: str, position: Position, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        """The observation of `agent` in N copies of `position` before `round_N`; see `Scenario.observe`."""


def position_at(rules: GameRules[Position], id_N: Tensor, said: Dialogue) -> Position:
    """The positions of N copies after all messages in `said`."""
    position = rules.start(id_N)
    spoken_R = (said.main >= 0).flatten(2).any(-1).any(0)
    for r in range(int(spoken_R.nonzero().amax()) + 1 if bool(spoken_R.any()) else 0):
        position, _ = rules.advance(position, said.main[:, r])
    return position


def views_along(
    rules: GameRules[Position],
    agent: str,
    id_B: Tensor,
    seed_B: Tensor,
    said: Dialogue,
    copy_N: Tensor,
    round_N: Tensor,
) -> dict[str, Tensor]:
    """The observations of `agent` in the copies `copy_N` before the rounds `round_N` (each (N,)), N at least 1, by one
    walk through B games."""
    position, parts, places = rules.start(id_B), [], []
    last = int(round_N.max())
    for r in range(last + 1):
        place_K = (round_N == r).nonzero().flatten()
        if len(place_K):
            copy_K = copy_N[place_K]
            parts.append(rules.view(agent, rules.select(position, copy_K), round_N[place_K], seed_B[copy_K]))
            places.append(place_K)
        if r < last:
            position, _ = rules.advance(position, said.main[:, r])
    back_N = torch.empty_like(copy_N)
    back_N[torch.cat(places)] = torch.arange(len(copy_N), device=copy_N.device)
    return {name: torch.cat([part[name] for part in parts])[back_N] for name in parts[0]}


@dataclass(frozen=True)
class Rollout:
    """B complete episodes of at most R rounds with A agents, C channels and M symbols a message.

    id_B, seed_B, y_B: instance, episode seed, label. main_BRACM, linear_BRACM: tokens, -1 for none. decision_BRA: each
    decider's decision in each round (`Protocol.undecided` without one). turn_BRA: turns, in open copies. reward_BRA:
    rewards. log_prob_BRA: log-probability of the action, 0 outside turns. length_B: rounds played. verdict_B: the
    verifier's decision that counted, `Protocol.undecided` if the copy ended without one. simulation_BR2: under zero
    knowledge, the distance of the simulator's choices from the adversarial verifier's, messages and decision
    (`choice_distances`), -1 where either had no turn; else None. cut_B: under a protocol that `cuts`, bool, the rounds
    ran out before the game was over; else None. vote_BM: int64, the vote of each member of a panel, 2 for none; None
    without a panel. version_BA: int64, the iteration of the snapshot that played an agent, -1 for its current network;
    None if all were current. Only actions of current networks are learned from. taught_BRAFS: where provers searched
    (`play.lookahead`), the resulting distribution over the S symbols of each message factor, times the stake
    (`learning.verdicts.stakes`), zero elsewhere; None without a search. pay_BRMD: the immediate pay of each of M
    deciders for each of its D decisions, with all else fixed, NaN where it is not known yet or no decision counted;
    None if not requested.
    """

    id_B: Tensor
    seed_B: Tensor
    y_B: Tensor
    main_BRACM: Tensor
    linear_BRACM: Tensor | None
    decision_BRA: Tensor
    turn_BRA: Tensor
    reward_BRA: Tensor
    log_prob_BRA: Tensor
    length_B: Tensor
    verdict_B: Tensor
    simulation_BR2: Tensor | None = None
    cut_B: Tensor | None = None
    version_BA: Tensor | None = None
    vote_BM: Tensor | None = None
    taught_BRAFS: Tensor | None = None
    pay_BRMD: Tensor | None = None

    @property
    def num_copies(self) -> int:
        """B."""
        return self.id_B.shape[0]

    @property
    def num_rounds(self) -> int:
        """R, the protocol's maximum."""
        return self.turn_BRA.shape[1]

    @property
    def dialogue(self) -> Dialogue:
        """All messages."""
        return Dialogue(self.main_BRACM, self.linear_BRACM)

    def learned_BR(self, index: int) -> Tensor:
        """(B, R) bool: the turns of the current network of the agent with this index."""
        turn_BR = self.turn_BRA[:, :, index]
        return turn_BR if self.version_BA is None else turn_BR & (self.version_BA[:, index] < 0)[:, None]

    def among_current(self) -> "Rollout":
        """The copies played by current networks alone."""
        return self if self.version_BA is None else self.copies((self.version_BA < 0).all(1))

    def env_steps(self) -> int:
        """Rounds played in all copies, up to their ends."""
        return int(self.length_B.sum())

    def agent_steps(self) -> int:
        """Turns taken by all agents."""
        return int(self.turn_BRA.sum())

    def copies(self, index: slice | Tensor) -> "Rollout":
        """Some copies; all agents of a copy stay together."""
        return self._map(lambda tensor: tensor[index])

    def to(self, device: torch.device | str) -> "Rollout":
        """The same on another device."""
        return self._map(lambda tensor: tensor.to(device))

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Rollout":
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: None if part is None else function(part) for name, part in parts.items()})


def concatenate(rollouts: Sequence[Rollout]) -> Rollout:
    """All copies of several rollouts of one protocol, in order."""
    if len(rollouts) == 1:
        return rollouts[0]
    parts: dict[str, Any] = {f.name: [getattr(rollout, f.name) for rollout in rollouts] for f in fields(Rollout)}
    return replace(
        rollouts[0], **{name: None if values[0] is None else torch.cat(values) for name, values in parts.items()}
    )


@dataclass(frozen=True)
class AgentRows:
    """One agent's N own turns in a rollout of B copies, ordered by copy and round; those of its snapshots are left out.

    copy_N, round_N: the place of each row. obs: observations, each (N, ...). action: actions. log_prob_N: their
    log-probabilities when played. row_BR: (B, R) int64, the row at (copy, round), -1 where the agent had no turn.
    taught_NFS, pay_ND: of these rows, see `Rollout`; None if this agent has none.
    """

    agent: str
    copy_N: Tensor
    round_N: Tensor
    obs: dict[str, Tensor]
    action: Action
    log_prob_N: Tensor
    row_BR: Tensor
    taught_NFS: Tensor | None = None
    pay_ND: Tensor | None = None

    def spread(self, x_N: Tensor) -> Tensor:
        """(B, R): a value per row on the grid of copies and rounds, zero without a row."""
        grid = torch.zeros(self.row_BR.shape, dtype=x_N.dtype, device=x_N.device)
        grid[self.copy_N, self.round_N] = x_N
        return grid

    def of_copies(self, copy_K: Tensor) -> Tensor:
        """(N',) int64: the rows of some copies."""
        rows = self.row_BR.index_select(0, copy_K).flatten()
        return rows[rows >= 0]

    def obs_of(self, row_K: Tensor) -> dict[str, Tensor]:
        """The observations of some rows, each (K, ...)."""
        return {key: value.index_select(0, row_K) for key, value in self.obs.items()}

    def action_of(self, row_K: Tensor) -> dict[str, Tensor]:
        """The actions of some rows."""
        return {key: value.index_select(0, row_K) for key, value in self.action.items()}

    def beside(self, other: "AgentRows", copy_K: Tensor) -> tuple[Tensor, Tensor]:
        """(N',) int64 each: rows of this agent and of `other` in the same copies and rounds, for their common turns in
        some copies."""
        mine, its = self.row_BR[copy_K], other.row_BR[copy_K]
        both = (mine >= 0) & (its >= 0)
        return mine[both], its[both]


def own_rows(scenario: "Scenario", rollout: Rollout, agent: str) -> AgentRows:
    """The rows of `agent` in `rollout`, on the rollout's device."""
    return _rows(scenario, rollout, agent, rollout.learned_BR(scenario.protocol.agents.index(agent)))


def live_rows(scenario: "Scenario", rollout: Rollout, agent: str) -> AgentRows:
    """A row for every round that was played, whether or not `agent` had the turn, with its observation then.

    For critics that judge every round. The action of a row without a turn is undefined.
    """
    return _rows(
        scenario,
        rollout,
        agent,
        torch.arange(rollout.num_rounds, device=rollout.id_B.device) < rollout.length_B[:, None],
    )


def _rows(scenario: "Scenario", rollout: Rollout, agent: str, where_BR: Tensor) -> AgentRows:
    protocol = scenario.protocol
    index, writes = protocol.agents.index(agent), list(protocol.writes[agent])
    copy_N, round_N = where_BR.nonzero(as_tuple=True)
    said = rollout.dialogue.rows(copy_N)
    obs = _observations(scenario, rollout, agent, copy_N, round_N)
    rows = torch.arange(len(copy_N), device=copy_N.device)
    action = {"message": said.main[rows, round_N, index][:, writes].flatten(1).clamp_min(0)}
    if said.linear is not None:
        action["linear"] = said.linear[rows, round_N, index][:, writes].flatten(1).clamp_min(0)
    if agent in protocol.deciders:
        action["decision"] = rollout.decision_BRA[copy_N, round_N, index]
    row_BR = torch.full(where_BR.shape, -1, device=copy_N.device)
    row_BR[copy_N, round_N] = rows
    taught_NFS = pay_ND = None
    if rollout.taught_BRAFS is not None and agent in protocol.provers:
        taught_NFS = rollout.taught_BRAFS[copy_N, round_N, index, : action["message"].shape[1]]
    if rollout.pay_BRMD is not None and agent in protocol.verifiers:
        pay_ND = rollout.pay_BRMD[copy_N, round_N, protocol.verifiers.index(agent)]
    return AgentRows(
        agent, copy_N, round_N, obs, action, rollout.log_prob_BRA[copy_N, round_N, index], row_BR, taught_NFS, pay_ND
    )


def final_rows(scenario: "Scenario", rollout: Rollout, agent: str) -> tuple[Tensor, dict[str, Tensor]]:
    """(copies K, observations of `agent` there after the last round), for copies cut off before its next turn.

    Agents without the next turn may have no observation there yet: the other's message is still to come.
    """
    if rollout.cut_B is None:
        return rollout.id_B.new_zeros(0), {}
    next_B = scenario.protocol.would_act(agent, rollout.length_B, rollout.seed_B)
    if rollout.version_BA is not None:
        next_B = next_B & (rollout.version_BA[:, scenario.protocol.agents.index(agent)] < 0)
    copy_K = (rollout.cut_B & next_B).nonzero().flatten()
    return copy_K, _observations(scenario, rollout, agent, copy_K, rollout.length_B[copy_K]) if len(copy_K) else {}


def _observations(
    scenario: "Scenario", rollout: Rollout, agent: str, copy_N: Tensor, round_N: Tensor
) -> dict[str, Tensor]:
    """The observations of `agent` in these copies before these rounds."""
    if scenario.rules is not None and len(copy_N):
        return views_along(scenario.rules, agent, rollout.id_B, rollout.seed_B, rollout.dialogue, copy_N, round_N)
    said = rollout.dialogue.rows(copy_N).before(round_N)
    return scenario.observe(agent, rollout.id_B[copy_N], said, round_N, rollout.seed_B[copy_N])


class RolloutSamples:
    """B complete episodes from one env runner. Slicing is over copies, so that all agents of a copy stay together.

    worker: the index of the runner (0 for the local one). rows: of a roll-out with exploration, the transitions of each
    exploring role; slicing copies leaves them unchanged.
    """

    def __init__(self, rollout: Rollout, worker: int, rows: dict[str, Rows] | None = None) -> None:
        self.rollout, self.worker, self.rows = rollout, worker, rows or {}

    def __len__(self) -> int:
        return self.rollout.num_copies

    def env_steps(self) -> int:
        """Rounds played."""
        return self.rollout.env_steps()

    def agent_steps(self) -> int:
        """Turns taken."""
        return self.rollout.agent_steps()

    def __getitem__(self, index: slice) -> "RolloutSamples":
        return RolloutSamples(self.rollout.copies(index), self.worker)

    def slice(self, index: slice, *, len_lookback_buffer: Any = None) -> "RolloutSamples":
        """The same as indexing; for RLlib's sharding of episodes."""
        return self[index]


def joined_rows(samples: Sequence[RolloutSamples]) -> dict[str, Rows]:
    """The transitions of all samples, by role, in order."""
    if len(samples) == 1:
        return dict(samples[0].rows)
    roles = dict.fromkeys(role for sample in samples for role in sample.rows)
    parts = {role: [sample.rows[role] for sample in samples if role in sample.rows] for role in roles}
    return {role: {name: torch.cat([part[name] for part in own]) for name in own[0]} for role, own in parts.items()}
