"""Rules about provers that search, and about decisions learned from more than samples. See `nip_ray.config.rules`."""

from collections.abc import Iterator

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.learning_rules import learns, stranger
from nip_ray.config.players import agent_settings, playing, source_of, without_verifier
from nip_ray.protocols.spec import Protocol
from nip_ray.protocols.tables import PROTOCOLS, table_of
from nip_ray.settings.ppo import OnPolicySettings, PPOSettings, ReinforceSettings
from nip_ray.settings.search import SearchSettings

_RULES = (PPOSettings, ReinforceSettings)


def searchers(config: ExperimentConfig) -> tuple[str, ...]:
    """The provers that search: those in `search.agents`, else all that learn."""
    if config.search is None:
        return ()
    provers = table_of(config.protocol.name, config.protocol).provers
    return config.search.agents or tuple(agent for agent in provers if learns(agent_settings(config, agent)))


def searching(config: ExperimentConfig) -> tuple[SearchSettings, tuple[str, ...]] | None:
    """The search settings during learning, and the provers that search; None without any."""
    return None if config.search is None else (config.search, searchers(config))


def search(config: ExperimentConfig) -> Iterator[str]:
    """The value of a message must be computable from the verifier's output, and an agent must learn from the search."""
    if config.search is None:
        return
    if not isinstance(config.algorithm, _RULES):
        yield f"search: not available with {config.algorithm.name}, leave it out or use ppo or reinforce"
        return
    if linear := getattr(config.scenario, "linear_symbols", 0):
        yield f"search: scenario.linear_symbols is {linear}, and only main messages can be tried, use 0"
    if config.protocol.name not in PROTOCOLS:
        return
    table = table_of(config.protocol.name, config.protocol)
    if (reason := worth_unknown(table)) is not None:
        yield f"search: not available under {table.name}, {reason}, leave it out"
        return
    for agent in dict.fromkeys(config.search.agents or ()):
        if (fault := stranger(config, agent)) is not None:
            yield f"search.agents: {agent} is {fault}"
        elif agent not in table.provers:
            yield f"search.agents: {agent} is not a prover, expected some of {', '.join(table.provers)}"
        elif config.search.agents is not None and config.search.agents.count(agent) > 1:
            yield f"search.agents: {agent} is named {config.search.agents.count(agent)} times, name each once"
        elif not learns(agent_settings(config, agent)):
            yield f"search.agents: {agent} never learns (scenario.agents.{source_of(config, agent)}), leave it out"
    if config.search.agents is None and not searchers(config):
        yield "search: no prover learns from it, leave it out"


def worth_unknown(table: Protocol) -> str | None:
    """Why the value of a message cannot be computed; None if it can."""
    payment = table.payment
    if table.verifier is None:
        return "which has no verifier"
    if not table.provers:
        return "which has no prover"
    if table.chooser is not None:
        return f"where {table.chooser} chooses its side with a message"
    if (
        payment.function is not None
        or payment.per_error
        or any(any(payment.turns.get(prover, {}).values()) for prover in table.provers)
    ):
        return "which pays provers by more than a table of verdicts"
    if payment.scoring != "linear" and any(payment.wants_truth(prover) for prover in table.provers):
        return "which pays a prover the score of the verdict"
    if table.force_guess is not None:
        return "whose verdicts are forced"
    votes = [r for r in table.verifier_rounds if r >= table.min_rounds - 1]
    if table.panel is not None and (table.panel.rule == "mean" or len(votes) > 1):
        return "whose panel judges by the mean, or votes in several rounds"
    return None


def verdict_gradient(config: ExperimentConfig) -> Iterator[str]:
    """It needs a rule that learns from each agent's own turns, and verdicts."""
    rule = config.algorithm
    if not isinstance(rule, OnPolicySettings) or rule.verdict_gradient == "sampled":
        return
    key = f"algorithm.verdict_gradient: got {rule.verdict_gradient}"
    if not isinstance(rule, _RULES):
        yield f"{key}, but {rule.name} weighs what agents did, leave it out or use ppo or reinforce"
    if config.protocol.name in PROTOCOLS and playing(config) is not None and without_verifier(config):
        yield f"{key}, but {config.protocol.name} has no verdicts, leave it out"
    elif config.protocol.force_guess is not None:
        yield f"{key}, but protocol.force_guess decides instead of the verifier, leave one of them out"
