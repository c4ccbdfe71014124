"""A custom scenario: a needle in a haystack, or no needle. The prover sees all places, the verifier only those named in
messages.

`examples/own_scenario.yaml` trains it: nip-ray train examples/own_scenario.yaml
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nip_ray.play.core import turn_masks
from nip_ray.play.rollout import Dialogue
from nip_ray.play.scenario import Scenario
from nip_ray.plugins import register_scenario
from nip_ray.protocols import Protocol
from nip_ray.scenarios.message_game.scenario import MessageAgent
from nip_ray.seeding import generator
from nip_ray.settings.message_game import MessageAgentSettings
from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class HaystackSettings:
    """Settings of the task: a needle in a haystack."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["haystack"] = option("haystack", "The task.")
    num_places: int = option(16, "Places where the needle may lie.", ge=2)
    num_instances: int = option(1000, "Haystacks; the first two of every eight are held out.", ge=8)
    agents: dict[str, MessageAgentSettings] = option(
        dict, "Agent -> its network; `_default` serves the agents not named."
    )


class Haystack(Scenario):
    """Every other haystack has a needle, and its label is 1. A message names a place."""

    name = "haystack"

    def __init__(self, protocol: Protocol, settings: HaystackSettings) -> None:
        self.protocol, self.settings, self.num_symbols = protocol, settings, settings.num_places
        self.label_I = torch.arange(settings.num_instances) % 2
        place_I = torch.randint(settings.num_places, (settings.num_instances,), generator=generator(0, "haystacks"))
        self.hay_IP = nn.functional.one_hot(place_I, settings.num_places).float() * self.label_I[:, None]

    def to(self, device: str) -> "Haystack":
        """This scenario, its tables moved to `device` in place."""
        self.label_I, self.hay_IP = self.label_I.to(device), self.hay_IP.to(device)
        return self

    def ids(self, split: str) -> Tensor:
        """Haystacks of "train" or "test"."""
        id_I = torch.arange(self.settings.num_instances, device=self.label_I.device)
        return id_I[(id_I % 8 < 2) == (split == "test")]

    def observe(self, agent: str, id_N: Tensor, said: Dialogue, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        """Returns "features" (N, F): the round; for each place named where `agent` can read it, 1 needle or -1 none;
        for provers all places."""
        mine = [self.protocol.channels.index(channel) for channel in self.protocol.sees[agent]]
        named_NRC = said.main[:, :, :, mine, 0].amax(2)  # over writers: -1 without a message
        found_NRC = self.hay_IP[id_N].gather(1, named_NRC.clamp_min(0).flatten(1)).view(named_NRC.shape) * 2 - 1
        seen = torch.where(named_NRC >= 0, found_NRC, 0.0).flatten(1)
        around = self.hay_IP[id_N] * (agent in self.protocol.provers)
        clock = nn.functional.one_hot(round_N.clamp(max=self.protocol.max_rounds - 1), self.protocol.max_rounds)
        masks = turn_masks(self.protocol, agent, 1, round_N, seed_N)
        told = [masks["told"]] if agent in self.protocol.told else []  # the drawn role
        return {**masks, "features": torch.cat([clock, seen, around, *told], 1)}

    def build_agent(self, agent: str, seed: int) -> nn.Module:
        """The message game's perceptron; any module with the same methods would do."""
        width = self.protocol.max_rounds * (1 + len(self.protocol.sees[agent])) + self.num_symbols
        width += len(self.protocol.roles) * (agent in self.protocol.told)
        settings = self.settings.agents.get(agent) or self.settings.agents.get("_default") or MessageAgentSettings()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            writes = len(self.protocol.writes[agent])
            return MessageAgent(settings, width, self.num_symbols, agent in self.protocol.deciders, writes)


register_scenario(HaystackSettings, Haystack)
