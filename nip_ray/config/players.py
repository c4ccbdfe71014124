"""The agents of an experiment, their settings, and the number of rounds: shared by several rules of configs."""

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.keys import keys_of, value_annotation
from nip_ray.protocols.spec import Protocol
from nip_ray.protocols.tables import PROTOCOLS, table_of
from nip_ray.settings.graph_isomorphism import GraphAgentSettings
from nip_ray.settings.hironaka import HironakaAgentSettings, HironakaSettings
from nip_ray.settings.image_classification import ImageAgentSettings
from nip_ray.settings.matrix_games import MatrixAgentSettings
from nip_ray.settings.message_game import MessageAgentSettings
from nip_ray.settings.state_tracking import StateAgentSettings

AgentSettings = (
    GraphAgentSettings
    | ImageAgentSettings
    | MessageAgentSettings
    | MatrixAgentSettings
    | HironakaAgentSettings
    | StateAgentSettings
)

DEFAULT = "_default"
"""The key of the settings of all agents without their own."""


def known_table(config: ExperimentConfig | TextExperimentConfig) -> Protocol | None:
    """The protocol's table, None if its plugin is not imported (`rules.check` imports it)."""
    return table_of(config.protocol.name, config.protocol) if config.protocol.name in PROTOCOLS else None


def playing(config: ExperimentConfig | TextExperimentConfig) -> tuple[str, ...] | None:
    """The agents of the protocol, None if they are not known."""
    table = known_table(config)
    return None if table is None else table.agents


def without_verifier(config: ExperimentConfig | TextExperimentConfig) -> bool:
    """Return True if the protocol is known to be a game without a verifier."""
    table = known_table(config)
    return table is not None and table.verifier is None


def deciding(config: ExperimentConfig | TextExperimentConfig) -> tuple[str, ...]:
    """The agents whose decisions make the verdict; the verifier if they are not known."""
    table = known_table(config)
    return ("verifier",) if table is None else table.verifiers


def players(config: ExperimentConfig) -> dict[str, tuple[str, AgentSettings]]:
    """Agent -> (the key of its settings, these settings), for every agent that plays.

    If its plugin is not imported, for those that the config names.
    """
    known = playing(config)
    names = (*config.scenario.agents, DEFAULT) if known is None else known
    return {name: (f"scenario.agents.{source_of(config, name)}", agent_settings(config, name)) for name in names}


def source_of(config: ExperimentConfig | TextExperimentConfig, agent: str) -> str:
    """The key in `scenario.agents` of an agent's settings."""
    return agent if agent in config.scenario.agents else DEFAULT


def agent_settings(config: ExperimentConfig, agent: str) -> AgentSettings:
    """An agent's settings: its own, else the default ones."""
    found = config.scenario.agents.get(source_of(config, agent))
    return value_annotation(keys_of(type(config.scenario))["agents"].annotation)() if found is None else found


def rounds_of(config: ExperimentConfig | TextExperimentConfig) -> int | None:
    """Maximum number of rounds of an episode, None for one of a plugin that is not imported and has no max_rounds."""
    if isinstance(config.scenario, HironakaSettings):
        return 2 * config.scenario.max_rounds  # the host's and the agent's
    table = known_table(config)
    return config.protocol.max_rounds if table is None else table.max_rounds
