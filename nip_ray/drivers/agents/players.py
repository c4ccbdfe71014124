"""One learner for an environment with several players: an agent for each of them, independent of each other."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nip_ray.drivers.contract import Agent, Transition

_BY_PLAYER = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")


class IndependentPlayers:
    """Agents by the names of players. Observations, actions, rewards and ends are mappings of players; figures are `PLAYER/TAG`.

    A player's own end cuts its returns; where the environment continues for others, it marks rows that are none of its transitions by
    `infos["valid"][player]` (n,) bool.
    """

    def __init__(self, agents: Mapping[str, Agent]) -> None:
        """agents: in the order in which they act and learn."""
        self.agents = dict(agents)
        self.observation_space = {player: agent.observation_space for player, agent in self.agents.items()}
        self.action_space = {player: agent.action_space for player, agent in self.agents.items()}

    def _each(self, method: str, *arguments: Any) -> None:
        for agent in self.agents.values():
            getattr(agent, method)(*arguments)

    def enable_training_mode(self, enabled: bool) -> None:
        """For every player."""
        self._each("enable_training_mode", enabled)

    def begin(self) -> None:
        """For every player."""
        self._each("begin")

    def pre_interaction(self, timestep: int, timesteps: int) -> None:
        """For every player."""
        self._each("pre_interaction", timestep, timesteps)

    def act(self, observations: Any, timestep: int, timesteps: int, *, explore: bool = True, states: Any = None) -> dict[str, Any]:
        """Player -> its actions."""
        return {
            player: agent.act(observations[player], timestep, timesteps, explore=explore, states=states)
            for player, agent in self.agents.items()
        }

    def record_transition(self, transition: Transition, timestep: int, timesteps: int) -> None:
        """To each player its own part."""
        for player, agent in self.agents.items():
            agent.record_transition(part_of(transition, player), timestep, timesteps)

    def post_interaction(self, timestep: int, timesteps: int) -> None:
        """Players learn one after the other."""
        self._each("post_interaction", timestep, timesteps)

    def update(self, timestep: int, timesteps: int) -> None:
        """Players learn one after the other."""
        self._each("update", timestep, timesteps)

    def track_data(self, tag: str, value: float) -> None:
        """A figure of all, kept once."""
        next(iter(self.agents.values())).track_data(f"/{tag}", value)

    def tracked(self) -> dict[str, float]:
        """Figures of players, and of all."""
        found: dict[str, float] = {}
        for player, agent in self.agents.items():
            found |= {tag[1:] if tag.startswith("/") else f"{player}/{tag}": value for tag, value in agent.tracked().items()}
        return found

    def state_dict(self) -> dict[str, Any]:
        """Player -> its agent's state."""
        return {player: agent.state_dict() for player, agent in self.agents.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        for player, agent in self.agents.items():
            agent.load_state_dict(state[player])


def part_of(transition: Transition, player: str) -> Transition:
    """What a transition was for one player."""
    valid = transition.valid
    marked = transition.infos.get("valid")
    if isinstance(marked, Mapping) and player in marked:
        valid = marked[player] if valid is None else valid & marked[player]
    own = {name: getattr(transition, name)[player] for name in _BY_PLAYER}
    return replace(transition, **own, valid=valid)
