"""`RolloutSamples`: a batched rollout that RLlib can pass around as if it were an episode."""

from collections.abc import Sequence
from typing import Any

import torch

from nip_ray.play.exploration import Rows
from nip_ray.play.rollout import Rollout


class RolloutSamples:
    """B complete episodes from one env runner. Slicing is over copies, so that all agents of a copy stay together.

    worker: the index of the runner whose share this is (0 for the local one). rows: of a roll-out with exploration, the transitions of
    each role that explored; they stay as they are when copies are sliced.
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
    """The transitions of all samples, role by role, in their order."""
    if len(samples) == 1:
        return dict(samples[0].rows)
    roles = dict.fromkeys(role for sample in samples for role in sample.rows)
    parts = {role: [sample.rows[role] for sample in samples if role in sample.rows] for role in roles}
    return {role: {name: torch.cat([part[name] for part in own]) for name in own[0]} for role, own in parts.items()}
