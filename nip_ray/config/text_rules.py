"""Rules about experiments with language models: providers, groups, prices, data. See `nip_ray.config.rules`.

Checks that need the environment or the network (keys, models, methods) are made when a run starts, before money is
spent.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.keys import suggest
from nip_ray.config.players import DEFAULT, deciding, known_table, playing, rounds_of, source_of, without_verifier
from nip_ray.errors import UserError
from nip_ray.protocols.tables import SHIPPED
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.providers import ProviderSettings
from nip_ray.settings.state_tracking import ChainSettings
from nip_ray.settings.text_training import TextTrainingSettings
from nip_ray.storage.model_files import model_fault

if TYPE_CHECKING:
    from nip_ray.play.dialogue import Shape

WITH_PROMPTS = (
    "nip", "adp", "debate", "open_debate", "critique", "merlin_arthur", "consultancy", "open_consultancy",
    "helpful_sneaky", "mnip", "judge_panel", "solo_verifier",
)  # fmt: skip
"""Protocols with prompts for code validation."""
DEFAULT_MODEL, WORDS = "default", "words"
"""The local models without a folder: a small one that is built here, and one whose tokens are the scenario's words."""
_OUR_MEMBERS = {
    "model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "n", "stream",
    "reasoning_effort", "response_format",
}  # fmt: skip
"""Members of a request that `extra_body` may not replace; null leaves one out, for a service that refuses it."""
_NEEDED = {"model", "messages", "n", "stream"}
_OWN_FOLDERS = ("calls", "checkpoints", "curves", "events", "items", "past", "rollouts", "transcripts", "warm_up")


def language_agents(config: TextExperimentConfig) -> dict[str, LanguageAgentSettings]:
    """Agent -> its settings, for every agent that plays (under a protocol of a plugin: those in the config)."""
    named, known = config.scenario.agents, playing(config)
    agents = [agent for agent in named if agent != DEFAULT] if known is None else known
    return {agent: named.get(agent, named.get(DEFAULT, LanguageAgentSettings())) for agent in agents}


def groups(config: TextExperimentConfig) -> dict[str, list[str]]:
    """Group -> the agents that share its model, in the protocol's order."""
    made: dict[str, list[str]] = {}
    for agent, settings in language_agents(config).items():
        made.setdefault(agent if settings.group is None else settings.group, []).append(agent)
    return made


def fine_tuning_rule(config: TextExperimentConfig) -> TextTrainingSettings:
    """The rule of a run whose agents learn by fine-tuning jobs. Raises UserError for any other run."""
    if not isinstance(config.algorithm, TextTrainingSettings):
        raise UserError(
            f"algorithm.name: {config.algorithm.name} learns without fine-tuning jobs, use expert_iteration or malt"
            " here"
        )
    return config.algorithm


def learns_from_tokens(config: TextExperimentConfig) -> bool:
    """Return True if agents learn in this process from their own tokens, not by fine-tuning jobs."""
    return isinstance(config.algorithm, TokenTrainingSettings)


def speaking_providers(config: TextExperimentConfig) -> dict[str, ProviderSettings]:
    """Provider name -> settings, of those that agents use."""
    names = {agent.provider for agent in language_agents(config).values()}
    return {name: provider for name, provider in config.providers.items() if name in names}


def chat_shapes(config: TextExperimentConfig) -> dict[str, "Shape"]:
    """Agent -> the form of its chats for inference and training. A local model's template adapts it if needed."""
    shapes: dict[str, Shape] = {}
    for agent, settings in language_agents(config).items():
        provider = config.providers.get(settings.provider)
        here = provider is not None and provider.local_models
        shapes[agent] = settings.chat_shape if settings.chat_shape != "auto" else "openai" if here else "alternating"
    return shapes


def _place(config: TextExperimentConfig, agent: str) -> str:
    return f"scenario.agents.{source_of(config, agent)}"


def text_protocol(config: TextExperimentConfig) -> Iterator[str]:
    """It has no zero knowledge, and a verifier if that learns the truth; for code validation it has prompts, and random
    stances only where a stance can differ."""
    name, table = config.protocol.name, known_table(config)
    if config.protocol.zero_knowledge and not without_verifier(config):
        yield "protocol.zero_knowledge: not available for language models, set it to false"
    if without_verifier(config) and (share := getattr(config.algorithm, "guess_replacement", 0)):
        yield (
            f"algorithm.guess_replacement: got {share}, but {name} has no verifier whose guesses could be replaced,"
            " leave it out"
        )
    sure = isinstance(config.scenario, ChainSettings)
    if isinstance(config.scenario, CodeValidationSettings):
        sure = config.scenario.verdict_scale == "accept_reject"
    if sure and (scoring := config.protocol.verifier_scoring) != "linear":
        graded = (
            "set scenario.verdict_scale to one_to_seven or percent, or "
            if isinstance(config.scenario, CodeValidationSettings)
            else ""
        )
        yield f"protocol.verifier_scoring: got {scoring}, but verdicts have no confidence here, {graded}leave it out"
    if sure and table is not None and table.panel is not None and table.panel.rule == "mean":
        yield "protocol.panel_rule: got mean, but votes have no confidence here, use majority, unanimous or veto"
    if not isinstance(config.scenario, CodeValidationSettings):
        return
    if name in SHIPPED and name not in WITH_PROMPTS:
        yield f"protocol.name: got {name}, but there are no prompts for it, {suggest(name, WITH_PROMPTS)}"
    if config.scenario.randomize_prover_stance and table is not None and table.fixed_stances:
        yield (
            f"scenario.randomize_prover_stance: {name} fixes who argues for what (nip, adp and mnip do not), set it to"
            " false"
        )


def text_agents(config: TextExperimentConfig) -> Iterator[str]:
    """Every agent has a provider that supports its settings, and a model of that provider."""
    for agent, settings in language_agents(config).items():
        place = _place(config, agent)
        provider = config.providers.get(settings.provider)
        if provider is None:
            yield (
                f"{place}.provider: no provider {settings.provider!r},"
                f" {suggest(settings.provider, list(config.providers))}"
            )
            continue
        if not settings.model.strip():
            yield f"{place}.model: got nothing, name a model of {settings.provider}"
        elif provider.local_models:
            if settings.model not in (DEFAULT_MODEL, WORDS) and (fault := model_fault(Path(settings.model))):
                yield f"{place}.model: {settings.model}: {fault}"
        elif settings.model in (DEFAULT_MODEL, WORDS) and provider.has_model:
            yield f"{place}.model: {settings.model} is a local model, name one of {settings.provider}"
        yield from _request_members(place, settings, provider)
        in_json = agent in deciding(config) and getattr(config.scenario, "decision_format", "text") == "json"
        if in_json and not provider.holds_schemas:
            yield (
                f"scenario.decision_format: json, but {settings.provider} (of {agent}) cannot hold replies to a schema,"
                " set it to text"
            )
        if not provider.can_fine_tune and not settings.frozen:
            where = f" (providers.{settings.provider}.fine_tuning)" if provider.fine_tunes else ""
            yield f"{place}.frozen: {settings.provider} cannot fine-tune{where}, set it to true"


def provider_options(config: TextExperimentConfig) -> Iterator[str]:
    """Providers' faults of their own options."""
    rule = config.algorithm
    tuning = {
        key: getattr(rule, key)
        for key in ("fine_tuning", "format_warmup_tuning")
        if isinstance(rule, TextTrainingSettings)
    }
    for name, provider in config.providers.items():
        for fault in provider.faults({settings.batch_size or 8 for settings in tuning.values()}):
            yield f"providers.{name}.{fault}"
    others = {"learning_rate": "set learning_rate_multiplier instead", "nll_coefficient": "leave it out"}
    for place, key in ((place, key) for place, settings in tuning.items() for key in others if getattr(settings, key)):
        for name in sorted(
            {own.provider for own in language_agents(config).values() if not own.frozen} & config.providers.keys()
        ):
            if key not in config.providers[name].tuning_keys:
                yield f"algorithm.{place}.{key}: {name} takes none, {others[key]}"


def _request_members(place: str, settings: LanguageAgentSettings, provider: ProviderSettings) -> Iterator[str]:
    try:
        extra = settings.extra_members
    except ValueError:
        return  # reported by its own faults
    if extra and not provider.takes_extra_body:
        key = "extra_body" if settings.extra_body else "reasoning_effort"
        yield (
            f"{place}.{key}: {settings.provider} takes no such member of requests (a provider named openai does), leave"
            " it out"
        )
    left_out = {key for key, value in extra.items() if value is None} - _NEEDED
    taken = (
        _OUR_MEMBERS
        & (extra.keys() - ({"reasoning_effort"} if settings.reasoning_effort is not None else set())) - left_out
    )
    for key in sorted(taken):
        yield (
            f"{place}.extra_body: {key} has an option of its own, leave it out (or set it to null, and requests are"
            " sent without it)"
        )


def provider_names(config: TextExperimentConfig) -> Iterator[str]:
    """Folders and files are named after providers."""
    for name in config.providers:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name in _OWN_FOLDERS:
            yield (
                f"providers.{name}: expected a name of letters, digits, - and _ (and none of"
                f" {', '.join(_OWN_FOLDERS)}), choose another"
            )


def text_groups(config: TextExperimentConfig) -> Iterator[str]:
    """Folders are named after groups, and agents of a group agree on all settings of their model."""
    settings = language_agents(config)
    for agent, own in settings.items():
        if own.group is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", own.group):
            yield f"{_place(config, agent)}.group: got {own.group!r}, use letters, digits, _ . -"
    for group, members in groups(config).items():
        first = settings[members[0]]
        for other in members[1:]:
            for key in ("provider", "model", "frozen", "fine_tune_from_scratch"):
                ours, theirs = getattr(settings[other], key), getattr(first, key)
                if ours != theirs:
                    yield (
                        f"{_place(config, other)}.{key}: got {ours}, but {members[0]} of group {group!r} has {theirs},"
                        " make them equal"
                    )


def money(config: TextExperimentConfig) -> Iterator[str]:
    """A budget in dollars needs prices."""
    if config.budget.usd is None:
        return
    for agent, settings in language_agents(config).items():
        provider = config.providers.get(settings.provider)
        prices = getattr(provider, "prices", None)
        if prices is not None and not any(name == DEFAULT or settings.model.startswith(name) for name in prices):
            key = f"providers.{settings.provider}.prices"
            yield (
                f"{key}: no price for {settings.model} (of {agent}), which budget.usd needs, add it or a price of"
                f" {DEFAULT}"
            )


def warmup(config: TextExperimentConfig) -> Iterator[str]:
    """Agents that get the scenario's own examples learn, and there are such examples."""
    rule, settings = config.algorithm, language_agents(config)
    for agent in rule.warmup_agents or ():
        if settings and agent not in settings:
            yield (
                f"algorithm.warmup_agents: no agent {agent!r} of {config.protocol.name},"
                f" {suggest(agent, list(settings))}"
            )
        elif agent in settings and settings[agent].frozen:
            frozen = f"scenario.agents.{source_of(config, agent)}.frozen"
            yield f"algorithm.warmup_agents: {agent} is frozen ({frozen}), leave it out or set that to false"


def base_run(config: TextExperimentConfig) -> Iterator[str]:
    """Models of another run need no warm-up, and its tests are played."""
    base = config.base_run
    if base is None:
        return
    if config.algorithm.format_warmup:
        yield (
            f"algorithm.format_warmup: got {config.algorithm.format_warmup}, but models of a base run know the form"
            " already, leave it out"
        )
    if base.kind == "rerun_tests" and getattr(config.algorithm, "test_scheme", None) == "none":
        yield (
            "algorithm.test_scheme: none, but base_run.kind rerun_tests does nothing but test, choose all, last or"
            " first_and_last"
        )


def tree_sizes(config: TextExperimentConfig) -> Iterator[str]:
    """The sizes of trees are feasible."""
    branches = getattr(config.algorithm, "num_responses", None)
    if branches is None:
        return
    longest = rounds_of(config) or 1
    leaves = branches**longest
    if leaves > 100_000:
        yield (
            f"algorithm.num_responses: got {branches}, which makes up to {leaves} dialogues of one item in {longest}"
            " rounds, lower it or protocol.max_rounds"
        )


def nobody_to_fine_tune(config: TextExperimentConfig) -> Iterator[str]:
    """At least one agent must learn, unless there are only tests."""
    rerun = config.base_run is not None and config.base_run.kind == "rerun_tests"
    settings = language_agents(config)
    if settings and not rerun and config.iterations > 1 and all(agent.frozen for agent in settings.values()):
        yield (
            f"scenario.agents: no agent learns ({', '.join(settings)} are frozen), let one, or set iterations to 1 to"
            " measure only"
        )


def no_networks(config: TextExperimentConfig) -> Iterator[str]:
    """Settings of networks do not apply to dialogues, and threads belong to a provider."""
    if config.runtime.num_threads is not None:
        yield (
            f"runtime.num_threads: got {config.runtime.num_threads}, but local models have"
            " providers.<name>.num_threads, leave it out"
        )


TEXT_RULES = (
    no_networks,
    text_protocol, provider_names, text_agents, provider_options, text_groups, money, warmup, base_run, tree_sizes,
)  # fmt: skip
