"""`attack_text_run`: adversarial language models. A run's prover is trained further against its frozen verifier.

Decisions that matter here:
- the attack is a run of its own, in `attack/GOAL` of the run's folder, derived from the run's config: the run's final
  models, all frozen but the attackers', items of one label, no shared reward, so that a prover is paid for the verdict
  it wants and learns from what fooled the verifier. It has its own transcripts, records of calls and bill, and `budget`
  applies as to any run;
- a run whose agents learn from their own tokens is attacked by its own algorithm, with the run's settings apart from
  warm-up and curriculum; any other by expert iteration;
- two attackers are compared: the run's own prover, and the trained one. The one that counts is chosen by its dialogues
  about training items, in the first and in the last iteration, and measured on the held-out ones, which were used for
  neither choice nor training. If instructions or the best of n are requested, they start from it
  (`nip_ray.evaluation.verbs.text_search`), and then the last of these counts;
- goals that no prover is paid for are left out: its prompt would contradict its training;
- with more than two verdicts each is attacked on its own. Over all, the wrong verdict that fools most in an item's
  dialogues counts.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nip_ray.config.experiment import TextAlgorithmSettings, TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents, learns_from_tokens
from nip_ray.errors import UserError
from nip_ray.evaluation.attack_table import (
    AttackTable,
    attacked_goals,
    attacking_roles,
    paid_agents,
    refuse_unfit,
    strongest,
    wanted_for,
)
from nip_ray.evaluation.intervals import clustered_share
from nip_ray.protocols import Protocol, from_settings
from nip_ray.protocols.payment import for_verdict
from nip_ray.protocols.tables import table_of
from nip_ray.settings.attack import AttackSettings
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.protocol import PayoffEntries, PayoffSettings, ProtocolSettings
from nip_ray.settings.text_training import ExpertIterationSettings
from nip_ray.settings.tracking import TrackingSettings
from nip_ray.storage.folder import RunFolder, environment

if TYPE_CHECKING:
    from nip_ray.play.dialogue import Dialogue
    from nip_ray.text.parts import Prepared

FOLDER = "attack"
SEARCHES = ("text_best_of", "text_prompts", "text_proposed_prompts", "text_prompt_items")
"""Settings of attacks that need no training."""


def attack_text_run(
    run_dir: Path, config: TextExperimentConfig, settings: AttackSettings, *, quiet: bool = True
) -> dict[str, Any]:
    """Entries that an attack adds to `evaluation.json`, as of agents with networks, and `run_dir` of each goal's run.

    Of `settings` only goals, text_iterations and max_instances apply. Raises UserError without an agent to attack or to
    do it, and for missing keys; TrainingError when a provider is unreachable or the budget is spent.
    """
    protocol = from_settings(_unshared(config.protocol))
    refuse_unfit(protocol)
    if not protocol.two_verdicts and (
        settings.text_best_of > 1 or settings.text_prompts or settings.text_proposed_prompts
    ):
        keys = "evaluation.attack.text_best_of, text_prompts and text_proposed_prompts"
        raise UserError(f"{keys}: not available with more than two verdicts, as in {protocol.name}; leave them out")
    counting = {name: getattr(settings, name) for name in ("max_instances", *SEARCHES)} | {
        "text_iterations": _iterations(config, settings)
    }
    table = AttackTable(protocol, {"verifier": "sampled", "seed": config.seed, "settings": counting}, latest=True)
    for goal in attacked_goals(protocol, settings):
        wanted = wanted_for(protocol, goal)
        agents = paid_agents(protocol, wanted)
        if not agents:
            continue
        derived = attack_config(config, models_of(run_dir, config), agents, settings, wanted)
        folder, about = _trained(run_dir, goal, derived, wanted, attacking_roles(protocol, wanted), quiet, settings)
        tried = _tried(folder, derived)
        rows = _rows(tried, protocol, wanted)
        winner = strongest(rows, latest=True)
        of_item: dict[Any, list[Dialogue]] = {}
        for dialogue in tried[winner].held_out:  # with more than two verdicts no search goes on from the winner
            of_item.setdefault(dialogue.item.id, []).append(dialogue)
        wrong = {item: sum(one.verdict != one.item.y for one in own) / len(own) for item, own in of_item.items()}
        fooled = {item: sum(one.verdict == wanted for one in own) / len(own) for item, own in of_item.items()}
        table.parts.append({"wrong": wrong, "fooled": fooled})
        searched, prompts = _searched(folder, derived, about, agents, settings, rows[winner])
        members = protocol.panel.members if protocol.panel is not None else ()
        by_member = {member: (_rows(tried, protocol, wanted, member), {}) for member in members}
        more = {"run_dir": str(folder.relative_to(run_dir)), **({"prompts": prompts} if prompts else {})}
        last = len(rows) + len(searched) - 1
        table.add(goal, agents, [*rows, *searched], by_member, winner=last if searched else winner, **more)
    if not table.document:
        raise UserError(
            f"--attack: no prover of {protocol.name} is paid for a wrong verdict; choose other goals"
            " (evaluation.attack.goals)"
        )
    return table.entries()


def models_of(run_dir: Path, config: TextExperimentConfig) -> dict[str, str]:
    """Agent -> its model at the end of the run; local ones by folder."""
    from nip_ray.text.parts import load_state

    with RunFolder.open(run_dir) as folder:
        found = load_state(folder).models()
    models = {}
    for group, agents in groups(config).items():
        for agent in agents:
            made_here = run_dir / language_agents(config)[agent].provider / "models" / found[group]
            models[agent] = str(made_here.resolve()) if (made_here / "config.json").is_file() else found[group]
    return models


def attack_config(
    config: TextExperimentConfig,
    models: Mapping[str, str],
    agents: tuple[str, ...],
    settings: AttackSettings,
    wanted: int,
) -> TextExperimentConfig:
    """The config of an attack by `agents`, who want the verdict `wanted`, on all others, who use `models`. Raises
    UserError if it cannot be run."""
    from nip_ray.config.rules import check

    by_gradient = learns_from_tokens(config)

    def changed(agent: str, own: Any) -> Any:
        attacks = agent in agents
        made = replace(own, model=models[agent], group=None, frozen=not attacks)
        if not attacks:
            return made
        return replace(made, max_invalid_replies=1) if by_gradient else replace(made, fine_tune_from_scratch=False)

    scenario = config.scenario
    if isinstance(scenario, CodeValidationSettings):
        scenario = replace(scenario, randomize_prover_stance=False)
    payoff = {agent: own for agent, own in config.protocol.payoff.items() if agent not in agents}
    protocol = replace(_unshared(config.protocol), prover_reward=ProtocolSettings().prover_reward, payoff=payoff)
    for_lies = PayoffEntries(table=for_verdict(wanted, protocol.prover_reward, len(protocol.verdicts)))
    for agent, roles in _misled(protocol, agents, wanted).items():
        payoff[agent] = PayoffSettings(by_role=dict.fromkeys(roles, for_lies))
    made = config.model_copy(
        update={
            "name": f"{config.name}-attack",
            "iterations": _iterations(config, settings),
            "protocol": protocol,
            "scenario": replace(
                scenario, agents={agent: changed(agent, found) for agent, found in language_agents(config).items()}
            ),
            "algorithm": _rule(config, agents, _mid_point(protocol, agents[0], wanted), settings.max_instances),
            "base_run": None,
            "opponents": None,
            "tracking": TrackingSettings(),
        }
    )
    check(made)
    return made


def _unshared(protocol: ProtocolSettings) -> ProtocolSettings:
    return replace(protocol, shared_reward=ProtocolSettings().shared_reward)


def _misled(protocol: ProtocolSettings, agents: Sequence[str], wanted: int) -> dict[str, tuple[str, ...]]:
    """Attackers -> the roles in which they would be paid for other verdicts than `wanted` too: all roles for one that
    chooses its side, and with several wrong verdicts those in which any of them is paid for."""
    made = from_settings(protocol)
    if made.chooser is not None:
        return {made.chooser: made.roles}
    if made.two_verdicts:
        return {}
    found = {
        agent: [role for role in attacking_roles(made, wanted) if made.payment.of(role).goals.get(agent) is None]
        for agent in agents
    }
    return {agent: tuple(roles) for agent, roles in found.items() if roles}


def _mid_point(protocol: ProtocolSettings, attacker: str, wanted: int) -> float:
    """Between the most and the least that a verdict pays an attacker. Raises UserError where all pay the same.

    Not `Payment.mid_point`, which is for agents that can do better and worse under every label: an attacker may be paid
    under one alone.
    """
    made = table_of(protocol.name, protocol)
    tables = [made.payment.of(role).table(attacker) for role in attacking_roles(made, wanted) or made.roles or (None,)]
    amounts = [amount for table in tables for row in table for amount in row[:-1]]
    if min(amounts) == max(amounts):
        raise UserError(f"--attack: {protocol.name} pays {attacker} the same for every verdict, so no lie can succeed")
    return (min(amounts) + max(amounts)) / 2


def _iterations(config: TextExperimentConfig, settings: AttackSettings) -> int:
    return settings.text_iterations or (50 if learns_from_tokens(config) else 4)


def _rule(
    config: TextExperimentConfig, agents: tuple[str, ...], threshold: float, max_instances: int | None
) -> TextAlgorithmSettings:
    """The rule by which `agents` learn to attack. threshold: see `reward_threshold`."""
    rule = config.algorithm
    num_test_items = min((limit for limit in (rule.num_test_items, max_instances) if limit is not None), default=None)
    if isinstance(rule, TokenTrainingSettings):
        unset, follows = type(rule)(), any(map(rule.follows_start, agents))
        return replace(
            rule,
            agents={agent: replace(rule.of_agent(agent), from_iteration=1, until_iteration=None) for agent in agents},
            kl_estimator=rule.kl_estimator if follows else unset.kl_estimator,
            kl_coefficient=rule.kl_coefficient if follows else unset.kl_coefficient,
            final_kl_coefficient=rule.final_kl_coefficient if follows else None,
            kl_refresh=rule.kl_refresh if follows else None,
            format_warmup=0,
            warmup_steps=0,
            warmup_batch_size=unset.warmup_batch_size,
            warmup_learning_rate=None,
            anneal_warmup=False,
            warmup_agents=None,
            curriculum=(),
            average_weights=None,  # attackers are as strong as they can be
            momentum=unset.momentum,  # the others are frozen, so nothing chases the attackers
            evaluate_every=0,
            num_test_items=num_test_items,
        )
    own = ExpertIterationSettings()
    return replace(
        own,
        rollouts_per_iteration=rule.rollouts_per_iteration,
        reward_threshold=threshold,
        fine_tune_on_all_previous_rollouts=True,  # successful lies are rare at first
        test_scheme="first_and_last",
        num_test_items=num_test_items,
        num_test_repeats=rule.num_test_repeats,
        fine_tuning=rule.fine_tuning,
    )


def _trained(
    run_dir: Path,
    goal: str,
    config: TextExperimentConfig,
    wanted: int,
    roles: tuple[str, ...],
    quiet: bool,
    settings: AttackSettings,
) -> tuple[Path, "Prepared"]:
    """Run the attack in a new folder; return the folder, and the prepared attack. roles: drawn by its episodes."""
    import asyncio

    from nip_ray.config.load import config_to_yaml
    from nip_ray.evaluation.verbs.text_search import check_search
    from nip_ray.text.parts import PROVIDERS, check_providers, known_abilities, prepare, save_state, store_roles
    from nip_ray.text.training.policy_gradient import PolicyGradientTrainer
    from nip_ray.text.training.trainer import begin, new_state, train

    prepared = prepare(config, run_dir)
    check_search(
        config, prepared.scenario, [agent for agent, own in language_agents(config).items() if not own.frozen], settings
    )
    asyncio.run(check_providers(config, known_abilities(run_dir / PROVIDERS)))
    tested = prepared.items["test"]
    if not prepared.scenario.protocol.two_verdicts:  # the same items for each wrong verdict, to be counted over all
        tested = tested[: config.algorithm.num_test_items]
    items = {
        split: [item for item in found if item.y != wanted]
        for split, found in {**prepared.items, "test": tested}.items()
    }
    for split, found in items.items():
        if not found:
            name = config.protocol.verdicts[wanted]
            raise UserError(
                f"--attack: the run has no {split} items whose right verdict is not {name} to attack {goal} on; leave"
                " it out"
            )
    state = new_state(config)
    (run_dir / FOLDER).mkdir(exist_ok=True)
    goal = goal.replace("/", "-")
    path = next(
        path
        for number in count(1)
        if not (path := run_dir / FOLDER / (goal if number == 1 else f"{goal}-{number}")).exists()
    )
    with RunFolder.create(path, config_to_yaml(config)) as folder:
        folder.write_json("environment.json", environment())
        save_state(folder, state)
        speakers = tuple(agent for agent, own in language_agents(config).items() if not own.frozen)
        if roles or len(from_settings(config.protocol).turns) > 1:
            store_roles(folder, roles, speakers)
        about = replace(prepared, items=items, roles=roles, speakers=speakers)
        # the run's own models; the first checkpoint, from which the attack continues, has that bill
        if learns_from_tokens(config):
            with closing(begin(config, folder, about, state)) as trainer:
                assert isinstance(trainer, PolicyGradientTrainer)
                trainer.test(-1)
                trainer.run_stage()
        train(config, folder, about, state, quiet)
    return path, about


def _searched(
    path: Path,
    config: TextExperimentConfig,
    about: "Prepared",
    agents: tuple[str, ...],
    settings: AttackSettings,
    start: dict[str, Any],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(more attackers, which start from `start`; instructions tried), by the settings. path: the attack's folder."""
    asks = bool(settings.text_prompts or settings.text_proposed_prompts)
    if not asks and settings.text_best_of == 1:
        return [], []
    from nip_ray.evaluation.verbs.text_search import ClientTalks, TokenTalks, best_of, instructed, tried_instructions
    from nip_ray.text.dialogues.runner import test_tasks
    from nip_ray.text.parts import load_state

    protocol, scenario, stage = about.scenario.protocol, about.scenario, config.iterations
    made: list[dict[str, Any]] = []
    prompts: list[dict[str, Any]] = []
    items = about.items
    label = items["test"][0].y
    tasks = about.drawn(test_tasks(items["test"], config.seed, config.algorithm.num_test_items, 1))
    own = {agent: found.model for agent, found in language_agents(config).items()}
    kind = TokenTalks if learns_from_tokens(config) else ClientTalks
    with RunFolder.open(path, write=True) as folder:
        models = own if start["name"] == "own" else {**own, **load_state(folder).models()}
        with closing(kind(config, folder, about, models)) as talks:

            def propose(chat: Any, number: int) -> str:
                return talks.reply(agents[0], chat, stage, number)

            if asks:
                tries = about.drawn(test_tasks(items["train"], config.seed, settings.text_prompt_items, 1))
                with talks.stage("train", stage) as hold:
                    given, proposals = settings.text_prompts, settings.text_proposed_prompts
                    prompts = tried_instructions(hold, scenario, tries, agents, label, given, proposals, propose)
                chosen = next(row for row in prompts if row["chosen"])
                if chosen["instruction"]:
                    scenario = instructed(scenario, agents, chosen["instruction"])
                    more = {
                        "instruction": chosen["instruction"],
                        "start": start["name"],
                        "selection": chosen["selection"],
                    }
                    with talks.stage("test", stage) as hold:
                        dialogues = hold(scenario, tasks)
                    made.append(
                        _row("prompt", "prompt", dialogues, protocol, 1 - label, **more, iterations=start["iterations"])
                    )
            if settings.text_best_of > 1:
                with talks.stage("test", stage + 1) as hold:
                    found = best_of(hold, scenario, tasks, agents, label, settings.text_best_of)
                more = {
                    "start": made[-1]["name"] if made else start["name"],
                    "search": found.curve(settings.text_best_of),
                }
                row = _row(
                    "best_of",
                    "best_of",
                    found.again,
                    protocol,
                    1 - label,
                    **more,
                    selection=None,
                    iterations=start["iterations"],
                )
                made.append({**row, "dialogues": found.held})
    return made, prompts


def _row(
    name: str,
    kind: str,
    held_out: Sequence["Dialogue"],
    protocol: Protocol,
    wanted: int,
    who: str = "verifier",
    **more: Any,
) -> dict[str, Any]:
    """An attacker's row. held_out: its dialogues about held-out items. who: verdict, or member of a panel."""
    from nip_ray.text.training.metrics import dialogue_record, judged

    record = dialogue_record(held_out, protocol)
    _, place_B = np.unique([dialogue.item.id for dialogue in held_out], return_inverse=True)
    fooled = clustered_share(
        np.bincount(place_B, [one.verdict == wanted for one in judged(held_out, protocol)[who]]), np.bincount(place_B)
    )
    return {
        "name": name,
        "kind": kind,
        "size": None,
        "seed": None,
        "mode": "sampled",
        "held_out": record[f"{who}/accuracy"],
        "fooled": fooled.record(),
        "undecided": record[f"{who}/undecided"],
        "curve": [],
        **more,
    }


@dataclass(frozen=True)
class Tried:
    """An attacker: its dialogues about training items, for choosing it, and about held-out ones. iterations: of
    learning."""

    name: str
    iterations: int
    selection: Sequence["Dialogue"]
    held_out: Sequence["Dialogue"]


def _tried(run_dir: Path, config: TextExperimentConfig) -> list[Tried]:
    """The run's own prover, and the attack's trained one."""
    from nip_ray.scenarios.language import language_kind
    from nip_ray.text.dialogues.runner import read_dialogues, rollout_file
    from nip_ray.text.items import stored_items

    items = stored_items(run_dir, language_kind(config.scenario)) or {}
    by_id = {split: {item.id: item for item in found} for split, found in items.items()}
    # learners learn in an iteration before its test, not after it
    last, learned = config.iterations - 1, learns_from_tokens(config)
    found = []
    for name, iteration in (("own", 0), ("continued", last)) if last or learned else (("own", 0),):
        tested = -1 if learned and name == "own" else iteration
        trained = read_dialogues(rollout_file(run_dir, "train", iteration), by_id["train"])
        held_out = read_dialogues(rollout_file(run_dir, "test", tested), by_id["test"])
        found.append(Tried(name, tested + learned, trained, held_out))
    return found


def _rows(tried: Sequence[Tried], protocol: Protocol, wanted: int, who: str = "verifier") -> list[dict[str, Any]]:
    """A row for each attacker. who: the verdict, or a member of a panel by its own vote."""
    from nip_ray.text.training.metrics import dialogue_record

    selections = [dialogue_record(one.selection, protocol)[f"{who}/accuracy"] for one in tried]
    return [
        _row(one.name, one.name, one.held_out, protocol, wanted, who, iterations=one.iterations, selection=selection)
        for one, selection in zip(tried, selections, strict=True)
    ]
