"""`SinglePlay`: one copy of `Copies`, without the axis of copies, for environments of one episode at a time."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nip_ray.environments.copies import Array, Arrays, Copies
from nip_ray.play.scenario import Scenario


class SinglePlay:
    """One episode after the other of `scenario` on instances of `split`; see `Copies`.

    copies: the one copy. agents: all of them, in the protocol's order. observation_spaces: by agent. Raises UserError
    for an unknown split.
    """

    def __init__(self, scenario: Scenario, split: str = "train", *, for_modules: bool = False) -> None:
        self.copies = Copies(scenario, 1, split, for_modules=for_modules)
        self.play, self.protocol, self.agents = self.copies.play, self.copies.protocol, self.copies.agents
        self.layouts, self.observation_spaces = self.copies.layouts, self.copies.spaces
        self.reset, self.tensors, self.text = self.copies.reset, self.copies.tensors, self.copies.text
        self.refuse_unbegun, self.info = self.copies.refuse_unbegun, self.copies.info

    @property
    def turns(self) -> list[str]:
        """The agents with a turn; [] after the end."""
        return [agent for agent in self.agents if bool(self.copies.turn_B(agent)[0])]

    @property
    def cut(self) -> bool:
        """True if the rounds ran out before a game that they only cut off was over."""
        return bool(self.copies.cut_B[0])

    def observe(self, agent: str) -> Arrays:
        """The current observation of `agent`; see `Copies.observe`."""
        return {key: np.asarray(x[0]) for key, x in self.copies.observe(agent).items()}

    def legal(self, agent: str) -> list[Array]:
        """For each factor of the agent's action, int8: 1 at choices that are legal now."""
        return [mask[0] for mask in self.copies.legal(agent)]

    def step(self, actions: Mapping[str, Any]) -> dict[str, float]:
        """Play one round with the flat actions of the agents with a turn, and return all rewards; see `Copies.step`."""
        return dict(zip(self.agents, self.copies.step(actions)[0].tolist()))

    def checked(self, agent: str, actions: Mapping[str, Any]) -> Array:
        """The action of `agent` as a flat array. Raises UserError as `step` does."""
        return self.copies.checked(agent, actions, self.copies.all_B)[0].numpy()
