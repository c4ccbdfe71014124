"""Rules about language models that learn from their own tokens: groups of dialogues, learners and their providers, keys
without an effect."""

from collections.abc import Iterator

import pydantic_core

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.fault_texts import fault_text
from nip_ray.config.keys import keys_of, suggest
from nip_ray.config.players import DEFAULT, deciding, playing, source_of
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.errors import UserError
from nip_ray.protocols.tables import table_of
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.policy_gradient import CurriculumStage, PolicyGradientAgentSettings, TokenTrainingSettings
from nip_ray.settings.state_tracking import ChainSettings, chain_faults

_JOBS_ALONE = (
    "gradient_accumulation_steps", "gradient_checkpointing", "optimizer", "quantize_base", "num_training_workers",
    "save_merged",
)  # fmt: skip
"""Options of providers that only affect fine-tuning jobs."""


def policy_gradient(config: TextExperimentConfig) -> Iterator[str]:
    """All rules for agents that learn from their own tokens."""
    rule = config.algorithm
    if not isinstance(rule, TokenTrainingSettings):
        return
    yield from _own_settings(config, rule)
    yield from _learners(config, rule)
    yield from _places(config, rule)
    yield from _of_other_rules(config)
    yield from _curriculum(config, rule)


def stage_config(config: TextExperimentConfig, stage: CurriculumStage) -> TextExperimentConfig:
    """The config with the scenario and protocol of a stage of its curriculum. Raises UserError for invalid changes."""
    data = {**config.model_dump(mode="json"), "algorithm": {"name": "policy_gradient"}}
    for change in stage.changes:
        dotted, equals, text = change.partition("=")
        part, _, key = dotted.strip().partition(".")
        if (
            not equals
            or part not in ("scenario", "protocol")
            or key not in data[part]
            or isinstance(data[part][key], dict)
        ):
            raise UserError(f"{change}: expected KEY=VALUE of a key of scenario or protocol, such as scenario.length=2")
        data[part][key] = parse_yaml(text, change)
    try:
        return TextExperimentConfig.model_validate_json(
            pydantic_core.to_json(data, inf_nan_mode="constants"), strict=True
        )
    except pydantic_core.ValidationError as error:
        raise UserError(fault_text(error.errors(include_url=False)[0], TextExperimentConfig)) from None


def _curriculum(config: TextExperimentConfig, rule: TokenTrainingSettings) -> Iterator[str]:
    """Stages are in order, end before the run does, and each is a task that these agents can play."""
    before = 0
    played: list[TextExperimentConfig | None] = []
    for number, stage in enumerate(rule.curriculum):
        place = f"algorithm.curriculum[{number}]"
        if not before < stage.until_iteration < config.iterations:
            bounds = f"expected more than {before} and less than the run's {config.iterations}"
            yield f"{place}.until_iteration: got {stage.until_iteration}, {bounds}"
        before = max(before, stage.until_iteration)
        if not stage.changes:
            yield f"{place}.changes: missing, name keys of scenario and protocol, or leave the stage out"
        played.append(None)
        try:
            made = played[-1] = stage_config(config, stage)
        except UserError as error:
            yield f"{place}.changes: {error}"
            continue
        if (made.protocol.name, made.scenario.name, made.scenario.agents) != (
            config.protocol.name,
            config.scenario.name,
            config.scenario.agents,
        ):
            yield f"{place}.changes: the protocol, the scenario and their agents stay the same, leave their names out"
        elif isinstance(made.scenario, ChainSettings):
            protocol = table_of(made.protocol.name, made.protocol)
            for fault in chain_faults(made.scenario, made.protocol.name, protocol.max_rounds):
                yield f"{place}.changes: {fault}"
    for number, (made, after) in enumerate(zip(played, [*played[1:], config], strict=True) if played else ()):
        if (
            rule.curriculum[number].changes
            and made
            and after
            and (made.scenario, made.protocol) == (after.scenario, after.protocol)
        ):
            follows = "the run itself" if after is config else "the stage behind it"
            yield (
                f"algorithm.curriculum[{number}].changes: make the very task of {follows}, change something or leave"
                " the stage out"
            )


def _own_settings(config: TextExperimentConfig, rule: TokenTrainingSettings) -> Iterator[str]:
    """They are for agents that play and learn, leave a use for those that they override, and agents of one group have
    equal ones."""
    known, settings, unset = playing(config), language_agents(config), PolicyGradientAgentSettings()
    learning = [agent for agent, own in settings.items() if not own.frozen]
    if learning and not any(rule.follows_start(agent) for agent in learning):
        for key in ("kl_coefficient", "final_kl_coefficient"):
            if getattr(rule, key):
                yield f"algorithm.{key}: no agent that learns has it (algorithm.agents), leave it out"
    for agent, own in rule.agents.items():
        place = f"algorithm.agents.{agent}"
        if known is not None and agent not in (*known, DEFAULT):
            yield f"{place}: not an agent of {config.protocol.name}, {suggest(agent, (*known, DEFAULT))}"
            continue
        if agent in settings and settings[agent].frozen and own != unset:
            frozen = f"scenario.agents.{source_of(config, agent)}.frozen"
            yield f"{place}: {agent} is frozen ({frozen}) and learns nothing, leave it out or set that to false"
        last = config.iterations if own.until_iteration is None else own.until_iteration
        if own.until_iteration is not None and own.from_iteration > last:
            yield f"{place}.until_iteration: got {last}, but from_iteration is {own.from_iteration}, use at least that"
        elif own.until_iteration is not None and last > config.iterations:
            yield (
                f"{place}.until_iteration: got {last}, but there are {config.iterations} iterations, use at most that"
                " or leave it out"
            )
        elif own.from_iteration > config.iterations:
            yield (
                f"{place}.from_iteration: got {own.from_iteration}, but there are {config.iterations} iterations, so it"
                " would never learn"
            )
    for group, members in groups(config).items():
        first = members[0]
        for other in members[1:]:
            for key in keys_of(PolicyGradientAgentSettings):
                ours, theirs = getattr(rule.of_agent(other), key), getattr(rule.of_agent(first), key)
                if ours != theirs:
                    place = other if other in rule.agents else DEFAULT if DEFAULT in rule.agents else first
                    yield (
                        f"algorithm.agents.{place}.{key}: {other} has {_show(ours)}, but {first}, whose weights it"
                        f" shares (group {group!r}), has {_show(theirs)}, make them equal"
                    )


def _learners(config: TextExperimentConfig, rule: TokenTrainingSettings) -> Iterator[str]:
    """Their providers support the rule, and their tokens are sampled from the model's own distribution."""
    name, able = (
        config.algorithm.name,
        [name for name, provider in config.providers.items() if provider.gives_gradients],
    )
    for agent, settings in language_agents(config).items():
        place, provider = f"scenario.agents.{source_of(config, agent)}", config.providers.get(settings.provider)
        if not settings.fine_tune_from_scratch:
            yield (
                f"{place}.fine_tune_from_scratch: is for fine-tuning jobs, {name} continues from its last weights,"
                " leave it out"
            )
        if settings.chat_shape != "auto":
            yield f"{place}.chat_shape: {name} keeps to the template of the model, leave it out"
        if provider is not None and not provider.gives_gradients:
            hint = f"name {' or '.join(able)}" if able else "add a provider named local or training_service"
            needs = (
                f"is asked by chats, and {name} plays by tokens"
                if settings.frozen
                else "gives no gradients, which it learns from"
            )
            yield f"{place}.provider: {settings.provider} {needs}, {hint}"
        if settings.frozen or provider is None:
            continue
        if settings.max_invalid_replies != 1:
            got = settings.max_invalid_replies
            yield (
                f"{place}.max_invalid_replies: got {got}, but an agent that learns has one reply in a turn, set it to 1"
            )
        if settings.temperature == 0:
            yield f"{place}.temperature: got 0, but {agent} learns from what it draws, use a number > 0 (such as 1)"
        if not provider.sees_whole_distribution:
            yield from _of_drawn_tokens(rule, agent, place, settings)
            if rule.average_weights is not None:
                yield (
                    f"algorithm.average_weights: {settings.provider} does not give the weights of {agent}, leave it out"
                )
        if settings.top_p not in (None, 1):
            yield (
                f"{place}.top_p: got {settings.top_p}, but a learning agent draws from its whole distribution, leave"
                " it out"
            )
        if agent in deciding(config) and getattr(config.scenario, "decision_format", "text") == "json":
            yield (
                "scenario.decision_format: json, but under a schema tokens are not drawn from the verifier's own"
                " distribution, from which it learns, set it to text or freeze the verifier"
            )


def _of_drawn_tokens(
    rule: TokenTrainingSettings, agent: str, place: str, settings: LanguageAgentSettings
) -> Iterator[str]:
    """Restrictions of log-probabilities of sampled tokens from a service."""
    if settings.temperature not in (None, 0, 1):
        got, name = settings.temperature, settings.provider
        yield (
            f"{place}.temperature: got {got}, but {name} gives the log-probabilities that {agent} learns from at 1,"
            " leave it out"
        )
    if rule.seen_by(agent).entropy_coefficient:
        own = rule.of_agent(agent).entropy_coefficient is not None
        key = (
            f"agents.{agent if agent in rule.agents else DEFAULT}.entropy_coefficient" if own else "entropy_coefficient"
        )
        yield (
            f"algorithm.{key}: needs the probabilities of all tokens, which {settings.provider} does not give, set it"
            " to 0"
        )


def _places(config: TextExperimentConfig, rule: TokenTrainingSettings) -> Iterator[str]:
    """Actors are for models of this cluster, and playing ahead samples with other weights than the learning ones."""
    shares = rule.rollouts_per_iteration // rule.group_size
    if rule.num_rollout_workers > max(1, shares):
        yield (
            f"algorithm.num_rollout_workers: got {rule.num_rollout_workers}, but an iteration has {shares} items, use"
            " at most that"
        )
    keys = keys_of(TokenTrainingSettings)
    for agent, settings in language_agents(config).items():
        provider, source = config.providers.get(settings.provider), f"scenario.agents.{source_of(config, agent)}"
        if provider is None:
            continue
        if not provider.local_models:
            for key in ("num_rollout_workers", "num_learners")[: 1 if settings.frozen else 2]:
                if getattr(rule, key) != (unset := keys[key].default):
                    where = f"{settings.provider} ({source}.provider)"
                    yield f"algorithm.{key}: for models of this cluster, and {where} is none, set it to {unset}"
        gpus = getattr(provider, "num_gpus", 0)
        if rule.num_learners > 1 and not settings.frozen and gpus % 1:
            yield (
                f"providers.{settings.provider}.num_gpus: got {gpus}, but learners of one model need a GPU each, set it"
                " to 1"
            )
        if not rule.max_staleness or settings.frozen:
            continue
        if not provider.gives_gradients:
            yield (
                f"algorithm.max_staleness: {settings.provider} ({source}.provider) gives no log-probabilities, set it"
                " to 0"
            )
        elif provider.local_models and not (rule.num_rollout_workers or rule.num_learners):
            yield (
                f"algorithm.max_staleness: got {rule.max_staleness}, but the very model that learns is the one that"
                " plays, set it to 0 or raise num_rollout_workers or num_learners"
            )
            break


def _of_other_rules(config: TextExperimentConfig) -> Iterator[str]:
    """Keys that only rules with fine-tuning jobs and with clients read."""
    for name, key in keys_of(type(config.talk)).items():
        if getattr(config.talk, name) != key.default:
            yield (
                f"talk.{name}: {config.algorithm.name} plays where it learns, without talkers and clients, leave it out"
            )
    for provider, settings in config.providers.items():
        for name in _JOBS_ALONE if settings.gives_gradients else ():
            key = keys_of(type(settings)).get(name)
            if key is not None and getattr(settings, name) != key.default:
                yield (
                    f"providers.{provider}.{name}: is for fine-tuning jobs, leave it out (algorithm.micro_batch_tokens"
                    " bounds memory)"
                )
    if config.base_run is not None:
        given = (
            f"{config.algorithm.name} starts from the models of scenario.agents, name folders there"
            " (scenario.agents.<agent>.model)"
        )
        yield f"base_run: {given}"


def _show(value: object) -> str:
    return "nothing of its own" if value is None else str(value)
