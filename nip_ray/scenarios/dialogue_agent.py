"""Shared parts of the networks of graph isomorphism and image classification: heads on a body, normalised messages, and
a random agent.

A scenario's agent provides its body and the head that chooses what to name (a node, a latent pixel); the heads for
decisions, linear messages and values are made here. Parts draw their initial weights in the order in which they are
made.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from nip_ray.learning.dqn import FORBIDDEN
from nip_ray.learning.groups import ParameterGroup
from nip_ray.learning.policy import Policy
from nip_ray.networks.basic import initialise, mlp, round_one_hot
from nip_ray.scenarios.seat import Seat
from nip_ray.settings.heads import HeadSettings

Observation = Mapping[str, Tensor]

_MESSAGES = ("history", "latest", "linear")


class DialogueAgent(nn.Module):
    """Heads and buffers of an agent that names parts of its observation; see `GraphAgent` and `ImageAgent`."""

    decider: nn.Module | None
    linear_selector: nn.Module | None
    value_head: nn.Module
    normalisation: Tensor
    history_axis: int
    """The features' axis in the history, from 0."""

    def __init__(self, settings: HeadSettings, seat: Seat, critic_seat: Seat | None) -> None:
        """critic_seat: of a central critic, its value's input beyond the label; it needs a body of its own."""
        super().__init__()
        self.seat, self.critic_seat = seat, critic_seat
        self.apart = critic_seat not in (None, seat)  # the value reads other messages than the policy
        self._heads = settings

    def make_selector(self, hidden: int) -> nn.Module:
        """The head that scores each nameable part, once for every writable channel and position."""
        return mlp(self._heads.d_representation, hidden, self.seat.num_factors, self._heads.activation)

    def make_heads(self, width: int, selector: nn.Module, initialise_value: bool = True) -> None:
        """Add the other heads, on `width` features, and the buffers; initialise all heads.

        initialise_value: False leaves the value head at torch's initialisation.
        """
        settings, seat, activation = self._heads, self.seat, self._heads.activation
        with_round = width + seat.rounds + 1
        self.decider = self.linear_selector = None
        if seat.decides:
            self.decider = mlp(with_round, settings.d_decider, seat.decisions, activation)
        if seat.linear_symbols:
            outputs = seat.num_factors * seat.linear_symbols
            self.linear_selector = mlp(width, settings.d_linear_message_selector, outputs, activation)
        num_in = with_round + (seat.verdicts if self.critic_seat is not None else 0)
        self.value_head = mlp(num_in, settings.d_value, 1, activation)
        for head in (selector, self.decider, self.linear_selector):
            if head is not None:
                initialise(head, settings.use_orthogonal_initialisation)
        initialise(self.value_head, settings.use_orthogonal_initialisation and initialise_value)
        # mean and standard deviation of history, latest message and linear history; identity until `set_normalisation`
        self.register_buffer("normalisation", torch.tensor([[0.0, 1.0]] * len(_MESSAGES)))

    def set_normalisation(self, statistics: Mapping[str, tuple[float, float]]) -> None:
        """Set mean and standard deviation of "history", "latest" and "linear"; they are part of the weights."""
        for row, name in enumerate(_MESSAGES):
            if name in statistics:
                self.normalisation[row] = torch.tensor(statistics[name])

    def messages(self, obs: Observation, prefix: str = "") -> tuple[Tensor, Tensor, Tensor | None]:
        """History, latest message and linear history (None without one) of `obs`, normalised. The history's features
        are followed by the known role of the episode, the same at every place.

        Without earlier messages all are 0. prefix: `state_` for a central critic.
        """
        (history_mean, history_std), (latest_mean, latest_std), (linear_mean, linear_std) = self.normalisation
        spoken_N = obs["round"] > 0
        history = (obs[f"{prefix}history"] - history_mean) / history_std
        latest = (obs[f"{prefix}latest"] - latest_mean) / latest_std * spoken_N[:, None, None, None]
        linear = None
        if self.seat.linear_symbols:
            linear = (obs[f"{prefix}linear_history"] - linear_mean) / linear_std * spoken_N[:, None]
        if self.seat.told:
            axis, told_NW = self.history_axis, obs["told"]
            shape = [1] * history.dim()
            shape[0], shape[axis] = told_NW.shape
            size = list(history.shape)
            size[axis] = told_NW.shape[1]
            history = torch.cat([history, told_NW.view(shape).expand(size)], axis)
        return history, latest, linear

    @abstractmethod
    def body(self) -> nn.Module:
        """The body that the policy reads; with a shared body the value reads it too."""

    @abstractmethod
    def groups(self) -> list[ParameterGroup]:
        """Parameter groups with their learning-rate factors; a shared body belongs to the actor's."""

    @property
    def reads_whole(self) -> bool:
        """True if the policy reads the summary of everything, in addition to scores part by part."""
        return self.decider is not None or self.linear_selector is not None

    def policy_of(self, message_NFS: Tensor, summary_NW: Tensor | None, obs: Observation) -> Policy:
        """The distribution of a turn from the scores of nameable parts. summary_NW: see `reads_whole`."""
        decision = linear = None
        if self.decider is not None:
            assert summary_NW is not None
            decision = self.decider(self._with_round(summary_NW, obs))
        if self.linear_selector is not None:
            linear = self.linear_selector(summary_NW).view(len(message_NFS), self.seat.num_factors, -1)
        return Policy(message_NFS, linear, decision, obs["speaks"], obs["may_decide"] if self.seat.decides else None)

    def value_of(self, summary_NW: Tensor, obs: Observation) -> Tensor:
        """The value (N,) of N turns; a central critic also reads the label."""
        known = self._with_round(summary_NW, obs)
        if self.critic_seat is not None:
            known = torch.cat([known, round_one_hot(obs["label"], self.seat.verdicts - 1, known.dtype)], 1)
        return self.value_head(known).squeeze(-1)

    def head_groups(self, selector: nn.Module) -> list[ParameterGroup]:
        """Parameter groups of the heads."""
        agent = self._heads.agent_lr_factor
        policy: Sequence[nn.Module | None] = (selector, self.decider, self.linear_selector)
        actor = [p for head in policy if head is not None for p in head.parameters()]
        return [
            ParameterGroup("actor", "heads", actor, agent.actor),
            ParameterGroup("critic", "heads", list(self.value_head.parameters()), agent.critic),
        ]

    def _with_round(self, summary_NW: Tensor, obs: Observation) -> Tensor:
        return torch.cat([summary_NW, round_one_hot(obs["round"], self.seat.rounds, summary_NW.dtype)], 1)


@torch.no_grad()
def share_rounds(weight_DF: Tensor, rounds: int) -> None:
    """Copy the input columns of round 0 to every round.

    A question and its answer, marked in different rounds, then look alike from the start: a right answer leaves two
    isomorphic graphs with equal representations, which independent columns would make different. Training may still
    distinguish rounds.
    """
    weight_DRL = weight_DF.unflatten(1, (rounds, -1))
    weight_DRL.copy_(weight_DRL[:, :1].clone().expand_as(weight_DRL))


class RandomAgent(nn.Module):
    """Uniform over legal names, linear symbols and decisions; its value is 0. Never trained.

    allowed: (N, F, ...) bool by observation and seat, the parts it may name (None: all).
    """

    def __init__(
        self, seat: Seat, num_symbols: int, allowed: Callable[[Observation, Seat], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.seat, self.num_symbols, self.allowed = seat, num_symbols, allowed
        self.register_buffer("unused", torch.zeros(1))  # checkpoints need some state

    def forward(
        self, obs: Observation, want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        """Uniform policy and zero value."""
        count, seat = len(obs["round"]), self.seat
        message = torch.zeros(count, seat.num_factors, self.num_symbols, device=obs["round"].device)
        linear = message.new_zeros(count, seat.num_factors, seat.linear_symbols) if seat.linear_symbols else None
        decision = message.new_zeros(count, seat.decisions) if seat.decides else None
        if self.allowed is not None:
            message = message.masked_fill(~self.allowed(obs, seat).flatten(2), FORBIDDEN)
        policy = Policy(message, linear, decision, obs["speaks"], obs["may_decide"] if seat.decides else None)
        return (policy if want_policy else None), (message.new_zeros(count) if want_value else None)

    def groups(self) -> list[ParameterGroup]:
        """Nothing to train."""
        return []

    def body(self) -> None:
        """None."""
