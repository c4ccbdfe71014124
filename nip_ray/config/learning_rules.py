"""Rules about learning: algorithms, schedules, initial weights, pretraining, and evaluations that learn. See
`nip_ray.config.rules`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.keys import suggest
from nip_ray.config.players import (
    DEFAULT,
    AgentSettings,
    agent_settings,
    known_table,
    players,
    playing,
    source_of,
    without_verifier,
)
from nip_ray.settings.dqn import DQNSettings, role_settings
from nip_ray.settings.experiment import PlaySettings
from nip_ray.settings.ppo import OnPolicySettings
from nip_ray.settings.schedule import is_updated
from nip_ray.settings.solo import SoloSettings
from nip_ray.settings.stackelberg import StackelbergSettings
from nip_ray.storage.folder import EXPORTED
from nip_ray.storage.sources import is_artifact


def nothing_to_train(config: ExperimentConfig) -> Iterator[str]:
    """At least one agent must learn. (Another rule checks that each schedule lets its agent learn.)"""
    if playing(config) is None or isinstance(config.algorithm, SoloSettings):
        return  # its agents are not known here; another rule covers a solo agent
    if not any(learns(agent) for _, agent in players(config).values()):
        names = ", ".join(players(config))
        yield f"scenario.agents: no agent learns ({names}), set agent_lr_factor above 0 for one"


def learns(agent: AgentSettings) -> bool:
    """Return True if training changes any part of an agent with these settings."""
    return agent.kind == "learned" and (agent.agent_lr_factor.actor > 0 or agent.agent_lr_factor.critic > 0)


def own_settings(config: ExperimentConfig) -> Iterator[str]:
    """An agent's own learning settings require that it learns."""
    for agent in config.algorithm.agents if isinstance(config.algorithm, OnPolicySettings) else ():
        key = f"algorithm.agents.{agent}"
        if agent == DEFAULT:
            continue
        if (fault := stranger(config, agent)) is not None:
            yield f"{key}: {fault}"
        elif not learns(agent_settings(config, agent)):
            yield f"{key}: {agent} never learns (scenario.agents.{source_of(config, agent)}), leave it out"


def stackelberg(config: ExperimentConfig) -> Iterator[str]:
    """A sequence has a place for every agent, and is present if needed."""
    rule = config.algorithm
    if not isinstance(rule, StackelbergSettings):
        return
    if rule.stackelberg_sequence is None:
        return
    key = "algorithm.stackelberg_sequence"
    named = [agent for group in rule.stackelberg_sequence for agent in group]
    for agent in dict.fromkeys(named):
        if (fault := stranger(config, agent)) is not None:
            yield f"{key}: {agent} is {fault}"
        if named.count(agent) > 1:
            yield f"{key}: {agent} is in it {named.count(agent)} times, name each once"
    missing = [agent for agent in playing(config) or () if agent not in named]
    if missing:
        yield f"{key}: {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} no place in it, name each once"


def solo(config: ExperimentConfig) -> Iterator[str]:
    """A solo agent plays, can learn, and has labels to learn from; there is no play to share among workers."""
    rule = config.algorithm
    if not isinstance(rule, SoloSettings):
        return
    agent = rule.agent
    if without_verifier(config):
        yield (
            f"algorithm.name: {config.protocol.name} has no verifier and no labels to learn from, use another rule than"
            " solo"
        )
    elif (known := playing(config)) is not None and agent not in known:
        yield f"algorithm.agent: got {agent}, {suggest(agent, known)}"
    else:
        settings, source = agent_settings(config, agent), f"scenario.agents.{source_of(config, agent)}"
        if settings.kind != "learned":
            yield f"algorithm.agent: {agent} is {settings.kind} ({source}.kind) and has nothing to learn, name another"
        elif settings.agent_lr_factor.actor == 0:
            yield (
                f"algorithm.agent: {agent} is frozen ({source}.agent_lr_factor.actor is 0), raise the factor or name"
                " another"
            )
    if config.play.num_env_runners:
        yield (
            f"play.num_env_runners: got {config.play.num_env_runners}, but an agent that learns alone does not"
            " play, set it to 0"
        )


def value_learners(config: ExperimentConfig, agents: Sequence[str]) -> tuple[str, ...]:
    """Those of `agents` that deep Q-learning trains, in the order of their gradient steps: those named, else all
    learners."""
    rule = config.algorithm
    if not isinstance(rule, DQNSettings):
        return ()
    return rule.trained_roles or tuple(agent for agent in agents if learns(agent_settings(config, agent)))


def dqn(config: ExperimentConfig) -> Iterator[str]:
    """Deep Q-learning: its roles play, learn, and choose one symbol; evaluations are greedy."""
    rule = config.algorithm
    if not isinstance(rule, DQNSettings):
        return
    if config.evaluation.sampled:
        yield "evaluation.sampled: dqn values moves and draws none, set it to false (greedy play is examined)"
    if config.play.num_copies != PlaySettings().num_copies:
        yield (
            "play.num_copies: dqn has no use for it (algorithm.roles.<role>.rollout_size says how many are played),"
            " leave it out"
        )
    for role in dict.fromkeys(rule.trained_roles):
        if (fault := stranger(config, role)) is not None:
            yield f"algorithm.trained_roles: {role} is {fault}"
        elif not learns(agent_settings(config, role)):
            yield (
                f"algorithm.trained_roles: {role} has nothing to learn (scenario.agents.{source_of(config, role)}),"
                " name others"
            )
    for role in rule.roles:
        if role != DEFAULT and (fault := stranger(config, role)) is not None:
            yield f"algorithm.roles.{role}: {fault}"
    known = playing(config)
    if known is not None:
        for role in value_learners(config, known):
            yield from _dqn_role(config, rule, role)


def _dqn_role(config: ExperimentConfig, rule: DQNSettings, role: str) -> Iterator[str]:
    """The faults of one trained role."""
    own = role_settings(rule, role)
    source = f"algorithm.roles.{role if role in rule.roles else DEFAULT}"
    if own.batch_size < config.learners.num_learners:
        count = config.learners.num_learners
        yield (
            f"{source}.batch_size: got {own.batch_size}, less than a transition for each of {count} learners, raise it"
        )
    if own.steps_between_rollouts > rule.steps_per_iteration:
        yield (
            f"{source}.steps_between_rollouts: got {own.steps_between_rollouts}, so some iterations of"
            f" {rule.steps_per_iteration} steps (algorithm.steps_per_iteration) would play nothing, lower it or raise"
            " these"
        )
    if (table := known_table(config)) is not None and role in table.deciders:
        yield (
            f"algorithm.trained_roles: dqn is for agents whose turn is one symbol, and {role} decides too, name others"
            " or use ppo"
        )
    for key, most in (("message_size", 1), ("linear_symbols", 0)):
        value = getattr(config.scenario, key, most)
        if value > most:
            yield f"scenario.{key}: got {value}, but dqn is for agents whose turn is one symbol, use {most}"


def schedules(config: ExperimentConfig) -> Iterator[str]:
    """Schedules are complete, belong to agents that learn, and let them learn."""
    for agent, schedule in config.schedules.items():
        key = f"schedules.{agent}"
        if (fault := stranger(config, agent)) is not None:
            yield f"{key}: {fault}"
            continue
        faults = list(schedule.faults())
        yield from (f"{key}.{fault}" for fault in faults)
        if not learns(agent_settings(config, agent)):
            yield (
                f"{key}: {agent} never learns, whatever its schedule (scenario.agents.{source_of(config, agent)}),"
                " leave it out"
            )
        elif not faults and not any(
            is_updated(schedule, i) for i in range(min(config.iterations, schedule.period or 1))
        ):
            within = f" within {config.iterations} iterations" if config.iterations < (schedule.period or 1) else ""
            yield (
                f"{key}: {agent} would never learn{within}, give it iterations, or a learning-rate factor of 0 instead"
                " of a schedule"
            )


def first_weights(config: ExperimentConfig) -> Iterator[str]:
    """Initial weights are for agents that have weights, and exist. (Whether they fit is checked when they are read.)"""
    for agent, source in config.initial_weights.items():
        key = f"initial_weights.{agent}"
        if (fault := stranger(config, agent)) is not None:
            yield f"{key}: {fault}"
        elif (kind := agent_settings(config, agent).kind) != "learned":
            yield (
                f"{key}: {agent} is {kind} (scenario.agents.{source_of(config, agent)}.kind) and has no weights, leave"
                " it out"
            )
        elif agent in config.pretraining.agents:
            yield f"{key}: pretraining.agents names {agent} too, whose body this would replace, choose one of the two"
        else:
            yield from _missing_run(key, source.run_dir, source.checkpoint)


def _missing_run(key: str, run_dir: str, checkpoint: int | None) -> Iterator[str]:
    if is_artifact(run_dir):
        return  # checked when it is fetched
    path = Path(run_dir)
    if not run_dir:
        yield f"{key}.run_dir: missing, name the folder of another run"
    elif not (path / "config.yaml").is_file():
        yield f"{key}.run_dir: {run_dir}: no run here, name the folder of one"
    elif not (path / EXPORTED).is_file():  # an export has weights
        folder = path / "checkpoints"
        found = sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()) if folder.is_dir() else []
        if not found:
            yield f"{key}.run_dir: {run_dir}: this run has no checkpoint yet, train it first"
        elif checkpoint is not None and checkpoint not in found:
            there = ", ".join(map(str, found))
            yield f"{key}.checkpoint: {run_dir} has none of iteration {checkpoint}, there is {there}"


def pretraining(config: ExperimentConfig) -> Iterator[str]:
    """Pretrained agents play, have bodies, and are named once; there are labels to learn from."""
    settings, key = config.pretraining, "pretraining.agents"
    if not settings.agents:
        return
    if isinstance(config.algorithm, SoloSettings):
        yield f"{key}: the algorithm solo learns the labels itself, leave it out or raise iterations"
        return
    if without_verifier(config):
        yield f"{key}: {config.protocol.name} has no verifier and no labels to learn from, leave it out"
        return
    for agent in dict.fromkeys(settings.agents):
        if (fault := stranger(config, agent)) is not None:
            yield f"{key}: {agent} is {fault}"
        elif (kind := agent_settings(config, agent).kind) != "learned":
            yield (
                f"{key}: {agent} is {kind} (scenario.agents.{source_of(config, agent)}.kind) and has no body to train,"
                " leave it out"
            )
        if settings.agents.count(agent) > 1:
            yield f"{key}: {agent} is named {settings.agents.count(agent)} times, name each once"


def message_regression(config: ExperimentConfig) -> Iterator[str]:
    """Agents whose messages are read play, and there are labels to predict."""
    settings, key = config.evaluation.message_regression, "evaluation.message_regression"
    if not settings.enabled:
        return
    if without_verifier(config):
        yield f"{key}.enabled: {config.protocol.name} has no verifier and no labels, set it to false"
        return
    for agent in settings.agents or ():
        if (fault := stranger(config, agent)) is not None:
            yield f"{key}.agents: {agent} is {fault}"


def stranger(config: ExperimentConfig | TextExperimentConfig, agent: str) -> str | None:
    """Why `agent` has no part in the experiment, and the valid agents; None if it has, or if that is not known here."""
    rule, known = config.algorithm, playing(config)
    if known is None:
        return None
    if agent not in known:
        return f"not an agent of {config.protocol.name}, {suggest(agent, known)}"
    if isinstance(rule, SoloSettings) and agent != rule.agent and rule.agent in known:
        return f"not there, since {rule.agent} learns alone (algorithm.name is solo), leave it out"
    return None


LEARNING_RULES = (own_settings, stackelberg, solo, dqn, schedules, first_weights, pretraining, message_regression)
