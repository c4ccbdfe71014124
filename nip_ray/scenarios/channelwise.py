"""An agent that encodes each channel separately, with shared weights, and combines the results by learned gates.

Decisions that matter here:
- the inner agent reads a single channel, that of nip: a gate of 1 on one channel and of 0 on the others makes it nip's
  agent, regardless of the other channels;
- decisions and values are weighted sums over channels, with equal weights at the start; the message in a channel
  depends at the start on that channel alone;
- a decision has one more summand, the decision without any messages, with a gate that starts at 0: so the agent that
  ignores all messages is included too, and an untrustworthy prover is disregarded by moving a gate;
- channels are rows of one batch, so bodies, kernels and heads are unaffected.
Axes: N turns (rows), K channels that are read, W that are written, M positions of a message.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

from nip_ray.learning.groups import ParameterGroup
from nip_ray.learning.policy import FORBIDDEN_BELOW, Policy
from nip_ray.scenarios.dialogue_agent import DialogueAgent, Observation
from nip_ray.scenarios.seat import NamingScenario, Seat
from nip_ray.seeding import generator
from nip_ray.settings.heads import LrFactors

_MESSAGES = ("history", "latest", "linear_history")


def assembled(scenario: NamingScenario, agent: str, make: Callable[[Seat, Seat | None], DialogueAgent]) -> nn.Module:
    """Networks of `agent`, built by `make` for its seats (policy, central critic or None), or channel by channel."""
    settings, at = scenario.agents[agent], scenario.seats[agent]
    critic_seat = scenario.critic_seats[agent] if scenario.central_critic else None
    if settings.channels == "apart":
        return Channelwise(make, at, critic_seat, settings.agent_lr_factor)
    return make(at, critic_seat)


class Channelwise(nn.Module):
    """`inside` on each channel of `seat` (of `critic_seat` for the value, if there is one), and the gates."""

    def __init__(
        self,
        make: Callable[[Seat, Seat | None], DialogueAgent],
        seat: Seat,
        critic_seat: Seat | None,
        lr_factor: LrFactors,
    ) -> None:
        """make: called with the seats of one channel (policy's, central critic's or None). lr_factor: of the gates."""
        super().__init__()
        self.seat, self.critic_reads = seat, (critic_seat or seat).reads
        one = replace(seat, reads=seat.reads[:1], writes=seat.reads[:1])
        self.inside = make(one, None if critic_seat is None else one)
        self.lr_factor = lr_factor
        self.decision_gate = None  # of each channel, and of silence
        if seat.decides:
            self.decision_gate = nn.Parameter(torch.tensor([*[1 / len(seat.reads)] * len(seat.reads), 0.0]))
        self.message_gate = nn.Parameter(
            torch.tensor([[float(read == write) for read in seat.reads] for write in seat.writes])
        )
        self.value_gate = nn.Parameter(torch.full((len(self.critic_reads),), 1 / len(self.critic_reads)))

    def forward(
        self, obs: Observation, want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        """Action distribution and value (N,) of N turns, each only if requested. `obs`: see `observe`."""
        together = self.critic_reads == self.seat.reads and not any(name.startswith("state_") for name in obs)
        policy = value_NK = None
        if want_policy:
            rows = self._rows(obs, self.seat.reads, "")
            found, value_NK = self._look(rows, True, want_value and together)
            assert found is not None
            policy = self._policy(found, obs, self._decision_in_silence(rows, obs))
        if want_value and value_NK is None:
            _, value_NK = self._look(self._rows(obs, self.critic_reads, "" if together else "state_"), False, True)
        return policy, None if value_NK is None else value_NK.view(-1, len(self.critic_reads)) @ self.value_gate

    def _look(
        self, rows: dict[str, Tensor], want_policy: bool, want_value: bool
    ) -> tuple[Policy | None, Tensor | None]:
        """The inner agent on each row. Without gradients, once on each distinct row: a search combines a few messages
        of each channel in all ways."""
        if self.training or torch.is_grad_enabled():
            return self.inside(rows, want_policy, want_value)
        return self._look_once(rows, want_policy, want_value)

    def _look_once(
        self, rows: dict[str, Tensor], want_policy: bool, want_value: bool
    ) -> tuple[Policy | None, Tensor | None]:
        """The inner agent once on each distinct row."""
        first_U, place_M = distinct(rows)
        policy, value_U = self.inside({name: whole[first_U] for name, whole in rows.items()}, want_policy, want_value)
        return (policy if policy is None else policy.rows(place_M)), (None if value_U is None else value_U[place_M])

    def _decision_in_silence(self, rows: Mapping[str, Tensor], obs: Observation) -> Tensor | None:
        """(N, D) logits of the decision without any messages; None if the agent does not decide. rows: see `_rows`."""
        if self.decision_gate is None:
            return None
        silent = {name: whole[:: len(self.seat.reads)] for name, whole in rows.items()}
        silent |= {name: torch.zeros_like(silent[name]) for name in _MESSAGES if name in silent}
        if obs.get("image", obs["round"]).dim() == 5:
            silent["image"] = obs["image"][:, -1]
        policy, _ = self._look_once(silent, True, False)
        return None if policy is None else policy.decision

    def _policy(self, found: Policy, obs: Observation, silent_ND: Tensor | None) -> Policy:
        """The weighted sums of the logits of N * K rows; a symbol that the channel itself forbids stays forbidden."""
        count, channels = len(obs["round"]), len(self.seat.reads)
        logits_NKMS = found.message.unflatten(0, (count, channels))
        own_NWMS = logits_NKMS[:, [self.seat.reads.index(write) for write in self.seat.writes]]
        open_NKMS = torch.where(logits_NKMS < FORBIDDEN_BELOW, 0.0, logits_NKMS)
        mixed_NWMS = torch.einsum("wk,nkms->nwms", self.message_gate, open_NKMS)
        message_NFS = torch.where(own_NWMS < FORBIDDEN_BELOW, own_NWMS, mixed_NWMS).flatten(1, 2)
        linear = decision = None
        if found.linear is not None:
            linear = torch.einsum(
                "wk,nkml->nwml", self.message_gate, found.linear.unflatten(0, (count, channels))
            ).flatten(1, 2)
        if found.decision is not None and self.decision_gate is not None and silent_ND is not None:
            decision_NKD = torch.cat([found.decision.unflatten(0, (count, channels)), silent_ND[:, None]], 1)
            decision = torch.einsum("k,nkd->nd", self.decision_gate, decision_NKD)
        return Policy(message_NFS, linear, decision, obs["speaks"], obs["may_decide"] if self.seat.decides else None)

    def _rows(self, obs: Observation, reads: tuple[int, ...], prefix: str) -> dict[str, Tensor]:
        """Observation of N * K rows, each with the messages of one channel. prefix: `state_` for a central critic."""
        channels, seat = len(reads), self.seat
        own = [name for name in obs if not name.startswith("state_")]
        rows = {name: obs.get(f"{prefix}{name}", obs[name]) for name in own}
        axis = self.inside.history_axis
        for name, whole in rows.items():
            if name == "history":
                rows[name] = _by_channel(whole, axis, seat.rounds, channels)
            elif name == "latest":
                rows[name] = _by_channel(whole, axis, 1, channels)
            elif name == "linear_history":
                rows[name] = _by_channel(whole, 1, seat.rounds, channels)
            # of the written ones; for a channel that is only read, of the first written one
            elif name in ("answer_side", "speaks"):
                place = [seat.writes.index(read) if read in seat.writes else 0 for read in reads]
                rows[name] = whole.unflatten(1, (len(seat.writes), -1))[:, place].flatten(0, 1)
            elif name == "image" and whole.dim() == 5:  # coarse sight shows more, by a channel's messages
                rows[name] = whole[:, :channels].flatten(0, 1)
            else:
                rows[name] = whole.repeat_interleave(channels, 0)
        return rows

    def groups(self) -> list[ParameterGroup]:
        """The inner agent's groups, and the gates at the agent's own rate."""
        gates = [self.message_gate] if self.decision_gate is None else [self.message_gate, self.decision_gate]
        return [
            *self.inside.groups(),
            ParameterGroup("actor", "gates", gates, self.lr_factor.actor),
            ParameterGroup("critic", "gates", [self.value_gate], self.lr_factor.critic),
        ]

    def body(self) -> nn.Module:
        """The body that the policy reads, channel by channel."""
        return self.inside.body()

    def set_normalisation(self, statistics: Mapping[str, tuple[float, float]]) -> None:
        """The inner agent's statistics, which are over all channels."""
        self.inside.set_normalisation(statistics)


def _by_channel(x: Tensor, axis: int, rounds: int, channels: int) -> Tensor:
    """(N * K, ...) with R * M features at `axis`, from (N, ...) with R * K * M there."""
    apart = x.unflatten(axis, (rounds, channels, -1)).movedim(axis + 1, 1)  # N, K, ..., R, M
    return apart.flatten(0, 1).flatten(axis, axis + 1)


def distinct(rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(U,) the places of distinct ones among M rows, and (M,) int64 the index of each row among them.

    Rows are compared by a random projection in double precision: different ones coincide with a probability of about
    1e-16.
    """
    keys = []
    for number, name in enumerate(sorted(rows)):
        flat_MF = rows[name].flatten(1) if rows[name].dim() > 1 else rows[name][:, None]
        keys.append(flat_MF.double() @ _projection(number, flat_MF.shape[1]).to(flat_MF.device))
    _, place_M = torch.stack(keys).sum(0).unique(return_inverse=True)
    count = int(place_M.max()) + 1
    first_U = torch.full((count,), len(place_M), device=place_M.device)
    first_U.scatter_reduce_(0, place_M, torch.arange(len(place_M), device=place_M.device), "amin")
    return first_U, place_M


@cache
def _projection(number: int, width: int) -> Tensor:
    """(width,) random weights of the feature `number`."""
    return torch.rand(width, generator=generator(0, "distinct rows", number), dtype=torch.float64)
