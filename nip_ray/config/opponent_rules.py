"""Rules about opponents from the past, of networks and of language models. See `nip_ray.config.rules`."""

from collections.abc import Iterator

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.learning_rules import learns, stranger
from nip_ray.config.players import agent_settings, playing, source_of
from nip_ray.config.text_rules import language_agents
from nip_ray.settings.dqn import DQNSettings
from nip_ray.settings.opponents import OpponentSettings
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.solo import SoloSettings
from nip_ray.settings.stackelberg import StackelbergSettings

# rules that do not learn from the turns of each agent separately
_WITHOUT = (DQNSettings, SoloSettings, StackelbergSettings)


def opponents(config: ExperimentConfig | TextExperimentConfig) -> Iterator[str]:
    """They need a rule that learns from whole episodes, agents that learn against learners, and a share of play."""
    pool = config.opponents
    if pool is None:
        return
    fault = _other_medium(config) if isinstance(config, TextExperimentConfig) else _other_rule(config)
    if fault is not None:
        yield f"opponents: {fault}"
        return
    if pool.every >= config.iterations:
        yield f"opponents.every: got {pool.every}, so none is met within {config.iterations} iterations, lower it"
    if playing(config) is not None:
        yield from _who_meets(config, pool)


def _other_rule(config: ExperimentConfig) -> str | None:
    """Why networks cannot meet their past, None if they can."""
    if isinstance(config.algorithm, _WITHOUT):
        return f"not available with {config.algorithm.name}, leave it out or use ppo or reinforce"
    if config.protocol.zero_knowledge:
        return "not available under protocol.zero_knowledge, whose agents are compared with each other, leave it out"
    return None


def _other_medium(config: TextExperimentConfig) -> str | None:
    """Why language models cannot meet their past, None if they can."""
    if not isinstance(config.algorithm, TokenTrainingSettings):
        return (
            f"not available with {config.algorithm.name}, whose models learn elsewhere, leave it out or use"
            " policy_gradient"
        )
    for agent, own in language_agents(config).items():
        provider = config.providers.get(own.provider)
        if provider is not None and not own.frozen and not provider.local_models:
            return (
                f"{own.provider} (of {agent}) gives no weights to make snapshots of, leave it out or use a provider"
                " named local"
            )
    return None


def _who_meets(config: ExperimentConfig | TextExperimentConfig, pool: OpponentSettings) -> Iterator[str]:
    if isinstance(config, TextExperimentConfig):
        learners, frozen = [agent for agent, own in language_agents(config).items() if not own.frozen], ".frozen"
    else:
        learners, frozen = [agent for agent in playing(config) or () if learns(agent_settings(config, agent))], ""
    for agent in dict.fromkeys(pool.agents or ()):
        if (fault := stranger(config, agent)) is not None:
            yield f"opponents.agents: {agent} is {fault}"
        elif agent not in learners:
            yield (
                f"opponents.agents: {agent} does not learn (scenario.agents.{source_of(config, agent)}{frozen}), leave"
                " it out"
            )
        elif pool.agents is not None and pool.agents.count(agent) > 1:
            yield f"opponents.agents: {agent} is named {pool.agents.count(agent)} times, name each once"
    if len(learners) < 2:
        who = f"only {learners[0]} learns" if learners else "no agent learns"
        yield f"opponents: {who}, so there are no past opponents, leave it out"
    if isinstance(config, ExperimentConfig):
        total, unit, key = config.play.num_copies, "copies", "play.num_copies"
    else:
        rule = config.algorithm
        assert isinstance(rule, TokenTrainingSettings)
        total, unit, key = rule.rollouts_per_iteration // rule.group_size, "items", "algorithm.rollouts_per_iteration"
    blocks = len(pool.agents or learners) * pool.draws
    if (past := round((1 - pool.latest) * total)) < blocks:
        yield (
            f"opponents.latest: got {pool.latest:g}, which leaves {past} of {total} {unit} for {blocks} opponents "
            f"(agents x draws), lower it or raise {key}"
        )
