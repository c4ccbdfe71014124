"""Validation of configs: every illegal combination of settings is refused with a reason before torch or Ray is loaded.

Each rule is a generator of faults over the whole config; `check` collects them all. Single keys (types and bounds) are
checked by the models themselves. For a custom protocol the config's plugins are imported.
"""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.keys import keys_of, suggest
from nip_ray.config.learning_rules import LEARNING_RULES, learns, nothing_to_train
from nip_ray.config.members import ADDED
from nip_ray.config.opponent_rules import opponents
from nip_ray.config.players import DEFAULT, known_table, players, playing, rounds_of, source_of, without_verifier
from nip_ray.config.plugins import import_plugins, is_plugin_file
from nip_ray.config.policy_gradient_rules import policy_gradient
from nip_ray.config.search_rules import search, verdict_gradient
from nip_ray.config.stop_rules import stops
from nip_ray.config.text_rules import TEXT_RULES, language_agents, nobody_to_fine_tune
from nip_ray.errors import UserError
from nip_ray.protocols.spec import Protocol
from nip_ray.protocols.tables import BOUND_TO_SCENARIO, PROTOCOLS, listed, parameter_faults, table_of
from nip_ray.settings.dqn import DQNSettings
from nip_ray.settings.graph_isomorphism import GraphIsomorphismSettings
from nip_ray.settings.heads import LrFactors, nearest_divisor
from nip_ray.settings.hironaka import HironakaAgentSettings
from nip_ray.settings.image_classification import ImageClassificationSettings, num_labels
from nip_ray.settings.matrix_games import LanguageMatrixGameSettings, MatrixGameSettings, protocol_of
from nip_ray.settings.ppo import ReinforceSettings
from nip_ray.settings.protocol import PayoffEntries, ProtocolParams, ProtocolSettings
from nip_ray.settings.solo import SoloSettings
from nip_ray.settings.stackelberg import StackelbergSettings
from nip_ray.settings.state_tracking import ChainSettings, chain_faults

_WEIGHING = ("ppo", "reinforce")  # rules that weight rollouts with older weights
_OR_WEIGHING = " or ".join(_WEIGHING)
_FACTORS = ("agent_lr_factor", "body_lr_factor", "gnn_lr_factor")
_REWARDS = (
    "prover_reward",
    "verifier_reward",
    "verifier_incorrect_penalty",
    "verifier_terminated_penalty",
    "verifier_no_guess_reward",
)
_REWARDS += ("simulator_reward_coefficient", "aux_prover_reward_coefficient")
_FLOAT32_MAX = 3.4028234663852886e38
_MOST_IN_MEAN = 12  # 4,096 sets
_MEASURE_ESTIMATES = ("state_tracking",)
_TWO_LABELS = ("graph_isomorphism", "state_tracking", "code_validation")
_ZERO_KNOWLEDGE_SCENARIOS = ("graph_isomorphism", "image_classification")


def check(config: ExperimentConfig | TextExperimentConfig, *, training: bool = True) -> None:
    """Raise one UserError that lists all faults of `config`, if any.

    training: also refuse an experiment in which no agent learns.
    """
    if config.protocol.name not in PROTOCOLS and config.plugins and not any(plugins(config)):
        import_plugins(config.plugins)
    text = isinstance(config, TextExperimentConfig)
    rules: list[Callable[[Any], Iterator[str]]] = [
        *_OF_ALL,
        *(_OF_LANGUAGE if text else _OF_NETWORKS),
        plugins,
        own_faults,
    ]
    if training:
        rules.append(nobody_to_fine_tune if text else nothing_to_train)
    faults = [fault for rule in rules for fault in rule(config)]
    if faults:
        raise UserError(*dict.fromkeys(faults))


def warnings_of(config: ExperimentConfig | TextExperimentConfig) -> Iterator[str]:
    """Warnings about legal settings that are probably not intended."""
    table = known_table(config)
    if table is None:
        return
    if isinstance(config.algorithm, SoloSettings):
        unset = ProtocolParams()
        paid = [key for key in (*_REWARDS, "payoff") if getattr(config.protocol, key) != getattr(unset, key)]
        if paid:
            yield f"protocol: {', '.join(paid)} without effect, since the rule solo learns from labels"
        return
    home = getattr(PROTOCOLS[config.protocol.name], "__module__", "")
    if not home.startswith("nip_ray.") and not is_plugin_file(home) and home not in config.plugins:
        yield (
            f"protocol.name: {config.protocol.name} was registered by {home}, which `plugins` does not name, so no"
            " other process can read this run; put it in a file and name that"
        )
    if isinstance(config.algorithm, ReinforceSettings | StackelbergSettings):
        yield from (f"algorithm.{line}" for line in config.algorithm.unused())
    yield from _goals_and_payment(table)
    yield from _turns_that_never_pay(config.protocol, table)
    if table.verifier is None:
        return
    if isinstance(config, TextExperimentConfig):
        learning = [agent for agent, settings in language_agents(config).items() if not settings.frozen]
    else:
        learning = [agent for agent, (_, settings) in players(config).items() if learns(settings)]
    unpaid = [
        agent for agent in (*table.verifiers, *table.provers) if agent in learning and not table.payment.is_paid(agent)
    ]
    if (
        table.zero_knowledge is not None
        and table.zero_knowledge.prover_reward
        and table.zero_knowledge.simulator_reward
    ):
        unpaid = [agent for agent in unpaid if agent in table.verifiers]
    if table.zero_knowledge is not None and not table.zero_knowledge.simulator_reward:
        unpaid += [
            agent for agent in (table.zero_knowledge.adversary, table.zero_knowledge.simulator) if agent in learning
        ]
    if unpaid:
        yield (
            f"protocol {config.protocol.name}: {', '.join(unpaid)} {'learn' if unpaid[1:] else 'learns'}, but no"
            " verdict and no turn pays (protocol.payoff, or the payment of a protocol of your own)"
        )


def _goals_and_payment(table: Protocol) -> Iterator[str]:
    """Provers that argue for a verdict and are paid more for another."""
    for prover in table.provers:
        for role in table.roles or (None,):
            payment = table.payment.of(role)
            goal, rows = payment.goals.get(prover), payment.table(prover)
            if goal is not None and any(row[goal] < max(row[:-1]) for row in rows):
                yield (
                    f"protocol {table.name}: {prover} argues for {table.verdicts[goal]!r}, and is paid more for another"
                    " verdict; prompts, attacks and the score difference take it for one that is after what it"
                    " argues for"
                )
                break


def _turns_that_never_pay(protocol: ProtocolSettings, table: Protocol) -> Iterator[str]:
    """Prices of a verifier's turns if it only has its last one."""
    if set(table.verifier_rounds) != {table.max_rounds - 1}:
        return
    keys = ["verifier_no_guess_reward"] if protocol.verifier_no_guess_reward else []
    keys += [
        f"payoff.{agent}.turns.{own}"
        for agent, entries in protocol.payoff.items()
        for own in entries.turns
        if own in table.verifiers
    ]
    if keys:
        yield (
            f"protocol: {', '.join(keys)} without effect, since in {table.name} the verifier has one turn, its last,"
            " which is not priced"
        )


def protocol_name(config: ExperimentConfig) -> Iterator[str]:
    """It must be built-in or come from a plugin, and fit the scenario."""
    name, scenario, table = config.protocol.name, config.scenario.name, known_table(config)
    bound = [other for other, place in BOUND_TO_SCENARIO.items() if place == scenario]
    if table is None and not bound and not any(plugins(config)):
        hint = "none of `plugins` registers it" if config.plugins else "one of your own needs `plugins`"
        yield f"protocol.name: unknown protocol {name!r}, {suggest(name, listed())} ({hint})"
    home = BOUND_TO_SCENARIO.get(name)
    if home is not None and home != scenario:
        yield f"scenario.name: got {scenario}, but the protocol {name} is played in {home} only"
    if table is not None and table.payment.per_error and scenario not in (*_MEASURE_ESTIMATES, *ADDED["scenario"]):
        yield (
            f"scenario.name: got {scenario}, but {name} pays for estimates, which {', '.join(_MEASURE_ESTIMATES)}"
            " measures"
        )
    if bound and home is None:
        yield f"protocol.name: got {name}, but {scenario} is played under the protocol {' or '.join(bound)} only"


def protocol_parameters(config: ExperimentConfig) -> Iterator[str]:
    """Parameters must have an effect, and limits must leave the verifier a turn in which it can decide."""
    protocol, name = config.protocol, config.protocol.name
    amounts = {key: getattr(protocol, key) for key in _REWARDS}
    for agent, entries in protocol.payoff.items():
        tables = {"": entries, **{f"by_role.{role}.": own for role, own in entries.by_role.items()}}
        for at, own in tables.items():
            amounts |= {
                f"payoff.{agent}.{at}{f.name}": getattr(own, f.name) for f in fields(PayoffEntries) if f.name != "table"
            }
            amounts |= {
                f"payoff.{agent}.{at}table[{y}][{v}]": x
                for y, row in enumerate(own.table or ())
                for v, x in enumerate(row)
            }
        amounts |= {f"payoff.{agent}.turns.{speaker}": amount for speaker, amount in entries.turns.items()}
    faults = [
        f"protocol.{key}: got {value}, expected a finite number within float32"
        for key, value in amounts.items()
        if value is not None and (not math.isfinite(value) or abs(value) > _FLOAT32_MAX)
    ]
    if name in PROTOCOLS:
        faults += [f"protocol.{fault}" for fault in parameter_faults(name, protocol)]
    yield from faults
    if name not in PROTOCOLS:
        return
    table = table_of(name, protocol)
    if not faults and (protocol.payoff or len(protocol.verdicts) > 2 or protocol.verifier_scoring != "linear"):
        yield from _nonconformity(table)
    if table.verifier is None:
        return
    longest, first, turns = table.max_rounds, table.min_rounds, table.verifier_rounds
    if first > longest:
        key = "max_rounds" if protocol.min_rounds is None else "min_rounds"
        yield (
            f"protocol.{key}: decisions count from round {first} on, but there are only {longest}, lower min_rounds or"
            " raise max_rounds"
        )
    elif not turns:
        yield f"protocol.max_rounds: got {longest}, so the verifier never has a turn, raise it"
    elif turns[-1] < first - 1:
        yield (
            f"protocol.min_rounds: got {first}, but the verifier's last turn is round {turns[-1] + 1} (counted from 1),"
            f" so it could never decide, use at most {turns[-1] + 1} or raise max_rounds"
        )


def graded_verdicts(config: ExperimentConfig) -> Iterator[str]:
    """A graded verdict of networks is the probability of its draw: only policy gradients can learn from its payment."""
    table = known_table(config)
    if table is None or table.verifier is None:
        return
    scoring, count = table.payment.scoring, len(config.protocol.verdicts)
    if scoring != "linear" and count > 2:
        yield f"protocol.verifier_scoring: got {scoring}, but it is defined for two verdicts, leave it out"
    elif table.graded and config.algorithm.name not in ("ppo", "reinforce"):
        unable = f"but {config.algorithm.name} does not learn from it, use ppo or reinforce"
        if scoring != "linear":
            yield f"protocol.verifier_scoring: got {scoring}, {unable} or leave it out"
        elif table.payment.graded:
            yield f"protocol.name: {table.name} has a payment function of confidences, {unable} or another protocol"
        elif table.name == "judge_panel":
            yield f"protocol.panel_rule: got mean, {unable} or another rule"
        else:
            yield f"protocol.name: the panel of {table.name} judges by the mean, {unable} or another protocol"
    if (panel := table.panel) is not None and panel.rule == "mean" and len(panel.members) > _MOST_IN_MEAN:
        ours = table.name == "judge_panel"
        yield (
            f"protocol.{'judges' if ours else 'name'}: got {len(panel.members) if ours else table.name}, but under the"
            f" mean {_MOST_IN_MEAN} may judge at most, since evaluation tries every set of votes that may be missing,"
            " use fewer or another rule"
        )


def _nonconformity(table: Protocol) -> Iterator[str]:
    from nip_ray.protocols import conformance  # loads torch, so only if there is something to check

    try:
        conformance.check(table)
    except UserError as error:
        said = str(error).removeprefix(f"protocol {table.name!r}: ")
        yield f"protocol: {said.replace('; ', ', ')}"


def verdicts(config: ExperimentConfig | TextExperimentConfig) -> Iterator[str]:
    """The protocol has as many verdicts as the scenario has labels."""
    scenario, count = config.scenario, len(config.protocol.verdicts)
    if isinstance(scenario, ImageClassificationSettings):
        labels = num_labels(scenario.data)
        if labels is not None and count != labels and (count > 2 or labels > 2):
            made = f"scenario.data.binarisation {scenario.data.binarisation} makes {labels} labels"
            yield f"protocol.verdicts: got {count}, but {made}, name as many"
    elif count > 2 and scenario.name in _TWO_LABELS:
        yield f"protocol.verdicts: got {count}, but {scenario.name} has two labels, leave them out"


def zero_knowledge(config: ExperimentConfig) -> Iterator[str]:
    """It is for proofs, in scenarios whose agents can have two conversations at once."""
    protocol, scenario = config.protocol, config.scenario.name
    if not protocol.zero_knowledge or without_verifier(config):
        return  # a game does not use it, which `protocol_parameters` reports
    if scenario not in _ZERO_KNOWLEDGE_SCENARIOS:
        yield (
            f"protocol.zero_knowledge: not available in {scenario} (only {', '.join(_ZERO_KNOWLEDGE_SCENARIOS)}), set"
            " it to false"
        )
    if getattr(config.algorithm, "skip_silent_messages", False):
        yield (
            "algorithm.skip_silent_messages: under protocol.zero_knowledge the message of a deciding turn is read, "
            "by the provers and by the simulator itself, set it to false"
        )
    for source in dict.fromkeys(source for source, agent in players(config).values() if agent.kind == "manual"):
        yield (
            f"{source}.kind: manual agents hold one conversation, not two (protocol.zero_knowledge), use learned or"
            " random"
        )


def messages_of_decisions(config: ExperimentConfig) -> Iterator[str]:
    """The message with which an agent chooses its side is read, and that of a vote after which a panel goes on."""
    table = known_table(config)
    if table is None or not getattr(config.algorithm, "skip_silent_messages", False):
        return
    early = any(table.min_rounds - 1 <= r < table.max_rounds - 1 for r in table.verifier_rounds)
    if table.chooser or (table.panel is not None and early):
        yield (
            f"algorithm.skip_silent_messages: under {table.name} a message that comes with a decision is read, set it"
            " to false"
        )


def state_tracking(config: ExperimentConfig | TextExperimentConfig) -> Iterator[str]:
    """Chains have the length that the protocol implies, and a reply with one fits its limit."""
    if not isinstance(config.scenario, ChainSettings):
        return
    faults = list(chain_faults(config.scenario, config.protocol.name, rounds_of(config) or 0))
    yield from faults
    if faults or not isinstance(config, TextExperimentConfig) or config.protocol.name == "bisection":
        return
    for agent in table_of(config.protocol.name, config.protocol).provers[-1:]:
        own, states = language_agents(config)[agent], config.scenario.length - 1
        if own.reply_tokens < states:
            place = f"scenario.agents.{source_of(config, agent)}.max_tokens"
            yield (
                f"{place}: room for {own.reply_tokens} tokens, but {agent} replies with {states} states, use at least"
                f" {states + 1}"
            )


def games(config: ExperimentConfig | TextExperimentConfig) -> Iterator[str]:
    """A small game is played under its own protocol."""
    scenario, name = config.scenario, config.protocol.name
    if not isinstance(scenario, MatrixGameSettings | LanguageMatrixGameSettings):
        return
    own = protocol_of(scenario.game)
    if BOUND_TO_SCENARIO.get(name) == scenario.name and name != own:
        yield f"protocol.name: got {name}, but {scenario.game} is played under {own}"


def agent_names(config: ExperimentConfig) -> Iterator[str]:
    """Settings are for agents that play."""
    known = playing(config)
    if known is None:
        return
    for name in config.scenario.agents:
        if name not in (*known, DEFAULT):
            near = difflib.get_close_matches(name, known, 1)
            hint = (
                f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}, or {DEFAULT} for the rest"
            )
            yield f"scenario.agents.{name}: not an agent of {config.protocol.name}, {hint}"


def shared_bodies(config: ExperimentConfig) -> Iterator[str]:
    """Policy and value with a shared body cannot train it at two rates."""
    scenario = config.scenario
    bodies = isinstance(scenario, GraphIsomorphismSettings | ImageClassificationSettings)
    if (
        isinstance(scenario, MatrixGameSettings)
        or (bodies and not scenario.shared_body)
        or scenario.name in ADDED["scenario"]
    ):
        return  # networks of a plugin are not known here
    way_out = " or set scenario.shared_body to false" if bodies else ""
    for source, agent in players(config).values():
        if isinstance(agent, HironakaAgentSettings) and not agent.shared_body:
            continue
        for name in _FACTORS:
            factor: LrFactors | None = getattr(agent, name, None)
            if factor is not None and agent.kind == "learned" and factor.actor != factor.critic:
                yield (
                    f"{source}.{name}: got actor {factor.actor} and critic {factor.critic}, but they share a body, make"
                    f" them equal{way_out}"
                )


def manual_agents(config: ExperimentConfig) -> Iterator[str]:
    """The hand-made architecture was made for one game."""
    scenario = config.scenario
    if not isinstance(scenario, GraphIsomorphismSettings):
        return
    for source in dict.fromkeys(source for source, agent in players(config).values() if agent.kind == "manual"):
        if config.protocol.name != "nip":
            yield f"{source}.kind: manual agents play nip only (got {config.protocol.name}), use learned or random"
        if scenario.message_size != 1:
            yield (
                f"scenario.message_size: got {scenario.message_size}, but manual agents ({source}) name one node at a"
                " time, use 1"
            )
        if scenario.linear_symbols:
            yield (
                f"scenario.linear_symbols: got {scenario.linear_symbols}, but manual agents ({source}) send none, use 0"
            )


def minibatches(config: ExperimentConfig) -> Iterator[str]:
    """A minibatch holds at least one whole copy and at most the copies of an iteration; learners get equal shares."""
    if isinstance(config.algorithm, DQNSettings):
        return  # draws transitions, not copies: covered by its own rule
    size = config.algorithm.minibatch_size
    rounds = 1 if isinstance(config.algorithm, SoloSettings) else rounds_of(config)  # alone, an instance is one frame
    copies = config.play.num_copies * max(1, config.play.num_env_runners)
    learners = config.learners.num_learners
    if learners and copies % learners:
        yield (
            f"learners.num_learners: got {learners}, but {copies} copies in an iteration "
            f"cannot be shared evenly, use {nearest_divisor(copies, learners)} or change play.num_copies"
        )
    in_copies = getattr(config.algorithm, "minibatch_copies", None)
    if in_copies is not None:
        if size != keys_of(type(config.algorithm))["minibatch_size"].default:
            yield (
                f"algorithm.minibatch_copies: got {in_copies}, and minibatch_size {size} says it too, leave one of"
                " them out"
            )
        elif not learners <= in_copies <= copies:
            least = f" and at least one for each of {learners} learners" if learners else ""
            yield (
                f"algorithm.minibatch_copies: got {in_copies}, expected at most the {copies} copies of an"
                f" iteration{least}"
            )
        return
    if rounds is None:
        return
    if size < rounds:
        yield (
            f"algorithm.minibatch_size: got {size}, less than one whole copy of {rounds} rounds, use at least {rounds}"
        )
    elif size > copies * rounds:
        yield (
            f"algorithm.minibatch_size: got {size}, but an iteration has {copies * rounds} frames "
            f"({copies} copies of {rounds} rounds), use at most that or raise play.num_copies"
        )
    elif learners > size // rounds:
        yield (
            f"algorithm.minibatch_size: got {size}, less than a copy for each of {learners} learners"
            f" (learners.num_learners), use at least {learners * rounds}"
        )


def workers(config: ExperimentConfig) -> Iterator[str]:
    """Requested workers have work: GPUs need env runners, and playing ahead needs processes beside the learners."""
    play = config.play
    if play.num_gpus_per_env_runner and not play.num_env_runners:
        yield (
            "play.num_gpus_per_env_runner: there are no env runners to use it, raise play.num_env_runners or set it"
            " to 0"
        )
    if play.max_staleness:
        yield from _staleness(config)


def _staleness(config: ExperimentConfig) -> Iterator[str]:
    """Play is separate from learning, and the rule supports rollouts with older weights."""
    rule, key = config.algorithm, f"play.max_staleness: got {config.play.max_staleness}, but"
    if rule.name not in _WEIGHING:
        yield f"{key} {rule.name} does not correct for the weights that played, set it to 0 or use {_OR_WEIGHING}"
    elif not config.play.num_env_runners:
        yield f"{key} the very networks that learn are those that play, set it to 0 or raise play.num_env_runners"
    elif getattr(rule, "max_importance_weight", 1.0) is None:
        yield (
            "algorithm.max_importance_weight: got none, but play.max_staleness plays by older weights, give it a number"
        )


def evaluations(config: ExperimentConfig) -> Iterator[str]:
    """The agents to attack at the end can be attacked."""
    if not config.evaluation.attack.enabled:
        return
    table, key = known_table(config), "evaluation.attack.enabled"
    if isinstance(config.algorithm, SoloSettings):
        yield f"{key}: an agent that learns alone meets no prover who could fool it, leave it out"
    elif table is not None and table.verifier is None:
        yield f"{key}: {table.name} has no verifier who could be fooled, leave it out"
    elif table is not None and not table.provers:
        yield f"{key}: {table.name} has no prover who could fool the verifier, leave it out"


def plugins(config: ExperimentConfig | TextExperimentConfig) -> Iterator[str]:
    """Plugin files and modules exist (they are imported later)."""
    for number, name in enumerate(config.plugins):
        if name.endswith(".py"):
            if not Path(name).is_file():
                yield (
                    f"plugins.{number}: {name}: no such file, name a Python file or an installed module (not at"
                    f" {Path(name).resolve()})"
                )
        elif not _module_exists(name):
            yield (
                f"plugins.{number}: no module named {name!r}, name an installed module or a Python file (ending in .py)"
            )


def _module_exists(name: str) -> bool:
    try:
        return find_spec(name.partition(".")[0]) is not None  # of the top package alone: more would import it
    except ValueError:
        return False


def own_faults(config: ExperimentConfig | TextExperimentConfig) -> Iterator[str]:
    """Each part's own faults. (Providers and schedules have separate rules: theirs depend on more.)"""
    for name in keys_of(type(config)):
        if name not in ("providers", "schedules"):
            yield from faults_below(getattr(config, name), name)


def faults_below(part: Any, place: str) -> Iterator[str]:
    """The faults of `part` and of the settings in it, each with its full key."""
    if isinstance(part, Mapping):
        for name, member in part.items():
            yield from faults_below(member, f"{place}.{name}")
    elif is_dataclass(part):
        for kind in type(part).__mro__:
            if "faults" in vars(kind):
                yield from (f"{place}.{fault}" for fault in vars(kind)["faults"](part))
        for field in fields(part):
            yield from faults_below(getattr(part, field.name), f"{place}.{field.name}")


_OF_ALL = (protocol_name, protocol_parameters, verdicts, games, state_tracking, agent_names, opponents)
_OF_NETWORKS = (
    graded_verdicts,
    zero_knowledge,
    messages_of_decisions,
    shared_bodies,
    manual_agents,
    minibatches,
    *LEARNING_RULES,
)
_OF_NETWORKS += (search, verdict_gradient, workers, evaluations, stops)
_OF_LANGUAGE = (*TEXT_RULES, policy_gradient)
