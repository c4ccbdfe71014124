"""`StaggeredPlay`: copies that begin, wait and end on their own, for environments whose copies restart one by one."""

from collections.abc import Mapping
from dataclasses import fields, replace

import torch
from torch import Tensor

from nip_ray.learning.policy import Action
from nip_ray.play.core import BatchedPlay
from nip_ray.protocols import ProtocolState, StepOutcome, start


class StaggeredPlay(BatchedPlay):
    """Copies as of `BatchedPlay`, each in a round of its own.

    round: (B,) int64, the last one after the end. over_B: (B,) bool, the copies that have ended.
    """

    def reset(self, id_B: Tensor, seed_B: Tensor) -> None:
        """Start all copies; see `BatchedPlay.reset`."""
        self.rows = torch.arange(len(id_B), device=self.device)
        self.over_B = torch.zeros_like(self.rows, dtype=torch.bool)
        super().reset(id_B, seed_B)
        self.round = self.state.round_B

    def restart(self, copy_N: Tensor, id_N: Tensor, seed_N: Tensor) -> None:
        """Start the copies `copy_N`, which are distinct, on the instances `id_N`; the others stay as they are."""
        scenario = self.scenario
        self.id_B = self.id_B.index_copy(0, copy_N, id_N)
        fresh = start(self.protocol, scenario.label_I[id_N], seed_N)
        self.state = _put(self.state, copy_N, fresh)
        for said in (self.main_BRACM, self.linear_BRACM):
            if said is not None:
                said[copy_N] = -1
        self.decision_BRA[copy_N] = self.protocol.undecided
        self.decision_B = self.decision_B.index_fill(0, copy_N, self.protocol.undecided)
        if scenario.rules is not None:
            self.position = scenario.rules.put(self.position, copy_N, scenario.rules.start(id_N))
        self._to_next_round()
        self.active_BAC = self._active()

    @property
    def finished(self) -> bool:
        """True if every copy has ended."""
        return bool(self.over_B.all())

    def step_some(self, actions: Mapping[str, tuple[Tensor, Action]], play_B: Tensor) -> StepOutcome:
        """Play one round in the copies where `play_B`; the others wait, and are paid nothing."""
        wait_N = (~play_B).nonzero().flatten()
        state, decision_B, position = self.state, self.decision_B, self.position
        round_N, decision_NA = self.round[wait_N], self.decision_BRA[wait_N, self.round[wait_N]]
        outcome = self.step(actions)
        if not len(wait_N):
            return outcome
        self.decision_BRA[wait_N, round_N] = decision_NA
        self.state = _put(self.state, wait_N, _rows(state, wait_N))
        self.decision_B = torch.where(play_B, self.decision_B, decision_B)
        if (rules := self.scenario.rules) is not None:
            self.position = rules.put(self.position, wait_N, rules.select(position, wait_N))
        self._to_next_round()
        self.active_BAC = self._active()
        return replace(outcome, reward_BA=outcome.reward_BA * play_B[:, None])

    def _may_end(self) -> bool:
        return True

    def _to_next_round(self) -> None:
        past_B = self.state.round_B >= self.protocol.max_rounds
        self.over_B = self.state.ended_B | past_B
        self.round = self.state.round_B - past_B.long()

    def _active(self) -> Tensor:
        return super()._active() & ~self.over_B[:, None, None]


def _put(state: ProtocolState, copy_N: Tensor, other: ProtocolState) -> ProtocolState:
    pairs = ((getattr(state, field.name), getattr(other, field.name)) for field in fields(ProtocolState))
    return ProtocolState(*(old.index_copy(0, copy_N, new) for old, new in pairs))


def _rows(state: ProtocolState, copy_N: Tensor) -> ProtocolState:
    return ProtocolState(*(getattr(state, field.name)[copy_N] for field in fields(ProtocolState)))
