"""What was played: tokens, turns, rewards. Observations are not kept; they are rebuilt from ids and tokens where they are needed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from nip_ray.play.scenario import Dialogue


@dataclass(frozen=True)
class Rollout:
    """B complete episodes of at most R rounds with A agents, C channels and M symbols a message.

    id_B, seed_B, y_B: instance, episode seed, label. main_BRACM, linear_BRACM: tokens, -1 where nothing was said.
    decision_BRA: what each agent that decides decided in each round (2 where it did not). turn_BRA: whose turn it was, in open copies.
    reward_BRA: rewards. log_prob_BRA: log-probability of what was done, 0 outside turns. length_B: rounds played.
    verdict_B: the verifier's decision that counted, 2 if the copy ended undecided. simulation_BR2: under zero knowledge, how far the
    simulator chose from the adversarial verifier, messages and decision (`choice_distances`), -1 where either had no turn; else None.
    cut_B: under a protocol that `cuts`, bool, the rounds ran out before the game was over; else None.
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
        """All that was said."""
        return Dialogue(self.main_BRACM, self.linear_BRACM)

    def env_steps(self) -> int:
        """Rounds played in all copies, without those after an end."""
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
    return replace(rollouts[0], **{name: None if values[0] is None else torch.cat(values) for name, values in parts.items()})
