"""Build a scenario and its agents from settings, the same in every process."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from nip_ray.errors import UserError
from nip_ray.play.core import BatchedPlay, episode_seeds, instance_ids, play_rollout
from nip_ray.play.rollout import own_rows
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Protocol, from_settings
from nip_ray.protocols.conformance import refuse_labels
from nip_ray.protocols.solo import solo_protocol
from nip_ray.scenarios.dialogue_agent import RandomAgent
from nip_ray.scenarios.graph_isomorphism.build import build_graph_isomorphism
from nip_ray.scenarios.graph_isomorphism.fixed import allowed_nodes
from nip_ray.scenarios.hironaka.scenario import build_hironaka
from nip_ray.scenarios.image_classification.build import build_image_classification
from nip_ray.scenarios.matrix_games.scenario import build_matrix_game
from nip_ray.scenarios.message_game.scenario import build_message_game
from nip_ray.scenarios.state_tracking.scenario import build_state_tracking
from nip_ray.seeding import generator, stable_seed
from nip_ray.settings.graph_isomorphism import GraphIsomorphismSettings
from nip_ray.settings.image_classification import ImageClassificationSettings
from nip_ray.settings.protocol import ProtocolSettings

SCENARIOS: dict[str, Callable[..., Scenario]] = {
    "graph_isomorphism": build_graph_isomorphism,
    "image_classification": build_image_classification,
    "message_game": build_message_game,
    "matrix_game": build_matrix_game,
    "hironaka": build_hironaka,
    "state_tracking": build_state_tracking,
}
"""Name -> builder of every scenario of networks, those of plugins included."""

WITH_FILES = ("graph_isomorphism", "image_classification")
"""Scenarios that can be evaluated on instances from a file."""


def build_scenario(protocol: Protocol, settings: Any, dataset: str | None = None) -> Scenario:
    """The scenario of `settings` (a settings dataclass with a `name`) under `protocol`.

    dataset: a file of instances in place of the held-out ones; training instances stay those of the settings. Raises
    UserError for an unknown name, unusable data, labels beyond the two verdicts, or agents that the protocol does not
    have.
    """
    if settings.name not in SCENARIOS:
        raise UserError(
            f"scenario.name: unknown scenario {settings.name!r}, expected one of {', '.join(sorted(SCENARIOS))}"
        )
    if dataset is not None and settings.name not in WITH_FILES:
        raise UserError(f"--dataset: the scenario {settings.name!r} of this run has no data sets; leave it out")
    made = SCENARIOS[settings.name](protocol, settings, *(() if dataset is None else (dataset,)))
    refuse_labels(protocol, settings.name, made.label_I.unique().tolist())
    return made


def played_scenario(protocol: ProtocolSettings, scenario: Any, algorithm: Any, dataset: str | None = None) -> Scenario:
    """The scenario of an experiment's three parts: under its protocol, or the one in which the solo agent is alone.

    dataset: as in `build_scenario`. Raises UserError as it does, and for an unknown agent.
    """
    made = from_settings(protocol)
    if algorithm.name == "solo":
        own = {name: agent for name, agent in scenario.agents.items() if name in (algorithm.agent, "_default")}
        return build_scenario(solo_protocol(made, algorithm.agent), replace(scenario, agents=own), dataset)
    return build_scenario(made, scenario, dataset)


def build_agents(scenario: Scenario, settings: Any, seed: int) -> dict[str, nn.Module]:
    """New networks of all agents, seeded by name, with observation statistics if the settings require them."""
    agents = {
        agent: scenario.build_agent(agent, stable_seed(seed, "agent", agent)) for agent in scenario.protocol.agents
    }
    if isinstance(settings, GraphIsomorphismSettings | ImageClassificationSettings) and settings.normalize_observations:
        for agent, statistics in observation_statistics(scenario, settings.num_normalization_steps, seed).items():
            # a random one needs none
            if set_normalisation := getattr(agents[agent], "set_normalisation", None):
                set_normalisation(statistics)
    return agents


def random_twin(scenario: Any) -> dict[str, nn.Module]:
    """Uniform random players for every seat of a `NamingScenario`."""
    allowed = allowed_nodes if scenario.name == "graph_isomorphism" else None
    return {agent: RandomAgent(seat, scenario.num_symbols, allowed) for agent, seat in scenario.seats.items()}


@torch.no_grad()
def observation_statistics(scenario: Scenario, num_steps: int, seed: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Agent -> message feature -> (mean, standard deviation), over about `num_steps` rounds of uniform random play.

    One number each over all nodes, rounds and copies, padding included, as in the published library; computed from
    training instances once and used in training and test alike.
    """
    protocol = scenario.protocol
    count = -(-num_steps // protocol.max_rounds)
    players = random_twin(scenario)
    play = BatchedPlay(scenario, str(scenario.label_I.device))
    ids = instance_ids(scenario, "train", stable_seed(seed, "normalisation"), 0, count)
    noise = generator(seed, "normalisation", device=scenario.label_I.device)
    rollout = play_rollout(play, players, ids, episode_seeds(stable_seed(seed, "normalisation"), 0, count), noise)
    statistics: dict[str, dict[str, tuple[float, float]]] = {}
    for agent in protocol.agents:
        obs = own_rows(scenario, rollout, agent).obs
        pairs = (("history", "history"), ("latest", "latest"), ("linear", "linear_history"))
        statistics[agent] = {name: _mean_std(obs[key]) for name, key in pairs if key in obs}
    return statistics


def _mean_std(x: torch.Tensor) -> tuple[float, float]:
    if x.numel() < 2:
        return 0.0, 1.0
    std = float(x.std())
    return float(x.mean()), std if std > 1e-6 else 1.0
