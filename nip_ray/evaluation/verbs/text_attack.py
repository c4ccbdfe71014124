"""`attack_text_run`: adversarial language models. A run's prover is trained further on what fools its verifier.

Decisions that matter here:
- the attack is a run of its own, in `attack/GOAL` of the run's folder, derived from the run's config: the models that it ended with, all
  frozen but the attackers', items of one label alone, no shared reward, so that a prover is paid for the verdict that it wants. What fooled
  the verifier is then just what is learned from. Its transcripts, its records of calls and its bill stand there;
- a run whose agents learn from their own tokens is attacked by its own rule, with the run's settings but for its warm-up and its
  curriculum; any other by expert iteration;
- two attackers are compared: the run's own prover, and what it became. The one that counts is chosen by its dialogues about training
  items, in the first and in the last iteration, and measured on the held-out ones, which no choice and no training has seen;
- goals that no prover is paid for are left out: its prompt would tell it the opposite of what it is trained for;
- an attack costs what a run costs: `budget` holds for it as for any run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_ray.config.experiment import TextAlgorithmSettings, TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents, learns_from_tokens
from nip_ray.errors import UserError
from nip_ray.evaluation.attack import LABELS, attacked_goals, entries_of, refuse_unfit
from nip_ray.protocols import DECISIONS, from_settings
from nip_ray.settings.attack import AttackSettings
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.text_training import ExpertIterationSettings
from nip_ray.settings.tracking import TrackingSettings
from nip_ray.storage.folder import RunFolder, environment

if TYPE_CHECKING:
    from nip_ray.text.parts import Prepared, TextState

FOLDER = "attack"


def attack_text_run(run_dir: Path, config: TextExperimentConfig, settings: AttackSettings, *, quiet: bool = True) -> dict[str, Any]:
    """The entries that an attack adds to `evaluation.json`, as of agents with networks, and `run_dir` of each goal's own run.

    Of `settings` count goals, text_iterations and max_instances. Raises UserError where there is nobody to attack or to do it, and for
    missing keys; TrainingError when a provider stays away or the budget is spent.
    """
    protocol = from_settings(config.protocol)
    refuse_unfit(protocol)
    if protocol.roles:
        raise UserError(f"--attack: not available for language models where roles are drawn, as in {protocol.name}; leave it out")
    document: dict[str, Any] = {}
    counting = {"text_iterations": _iterations(config, settings), "max_instances": settings.max_instances}
    how = {"verifier": "sampled", "seed": config.seed, "settings": counting}
    details: dict[str, Any] = {**how}
    for goal in attacked_goals(protocol, settings):
        label = LABELS[goal]
        agents = tuple(agent for agent in protocol.provers if protocol.payment.goals.get(agent) == 1 - label)
        if not agents:
            continue
        derived = attack_config(config, models_of(run_dir, config), agents, settings)
        folder = _trained(run_dir, goal, derived, label, quiet)
        rows = list(_attackers(folder, derived))
        for member in protocol.panel.members if protocol.panel is not None else ():
            document.setdefault("deciders_under_attack", {}).setdefault(member, {}).update(_of_member(folder, derived, member, goal))
        winner = min(range(len(rows)), key=lambda row: (rows[row]["selection"]["estimate"], -row))
        for number, row in enumerate(rows):
            row["chosen"] = number == winner
        record = {**rows[winner]["held_out"], "attacker": rows[winner]["name"], "undecided": rows[winner]["undecided"]}
        details[goal] = {
            "agents": list(agents),
            "label": label,
            "wanted": DECISIONS[1 - label],
            "run_dir": str(folder.relative_to(run_dir)),
            "attackers": rows,
            "any_attacker": None,
            "every_message": None,
            **how,
        }
        document |= entries_of(protocol, goal, record, details[goal])
    if not document:
        raise UserError(f"--attack: no prover of {protocol.name} is paid for a wrong verdict; choose other goals (evaluation.attack.goals)")
    return {**document, "attack": details}


def models_of(run_dir: Path, config: TextExperimentConfig) -> dict[str, str]:
    """Agent -> the model that speaks for it at the end of the run; local ones by their folder."""
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
    config: TextExperimentConfig, models: Mapping[str, str], agents: tuple[str, ...], settings: AttackSettings
) -> TextExperimentConfig:
    """The config of an attack by `agents` on all others, who speak by `models`. Raises UserError for one that cannot be run."""
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
    made = config.model_copy(
        update={
            "name": f"{config.name}-attack",
            "iterations": _iterations(config, settings),
            "protocol": replace(
                config.protocol, shared_reward=False, payoff={a: own for a, own in config.protocol.payoff.items() if a not in agents}
            ),
            "scenario": replace(scenario, agents={agent: changed(agent, found) for agent, found in language_agents(config).items()}),
            "algorithm": _rule(config, agents, _least(config.algorithm.num_test_items, settings.max_instances)),
            "base_run": None,
            "opponents": None,
            "tracking": TrackingSettings(),
        }
    )
    check(made)
    return made


def _iterations(config: TextExperimentConfig, settings: AttackSettings) -> int:
    return settings.text_iterations or (50 if learns_from_tokens(config) else 4)


def _rule(config: TextExperimentConfig, agents: tuple[str, ...], num_test_items: int | None) -> TextAlgorithmSettings:
    """By which `agents` learn to attack."""
    rule = config.algorithm
    if isinstance(rule, TokenTrainingSettings):
        unset = type(rule)()
        return replace(
            rule,
            agents={agent: replace(rule.of_agent(agent), from_iteration=1, until_iteration=None) for agent in agents},
            kl_estimator=rule.kl_estimator if any(map(rule.follows_start, agents)) else unset.kl_estimator,
            format_warmup=0,
            warmup_steps=0,
            warmup_batch_size=unset.warmup_batch_size,
            warmup_learning_rate=None,
            warmup_agents=None,
            curriculum=(),
            evaluate_every=0,
            num_test_items=num_test_items,
        )
    own = ExpertIterationSettings()
    return replace(
        own,
        rollouts_per_iteration=rule.rollouts_per_iteration,
        reward_threshold=config.protocol.prover_reward / 2,
        fine_tune_on_all_previous_rollouts=True,  # at first lies that work are rare
        test_scheme="first_and_last",
        num_test_items=num_test_items,
        num_test_repeats=rule.num_test_repeats,
        fine_tuning=rule.fine_tuning,
    )


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _trained(run_dir: Path, goal: str, config: TextExperimentConfig, label: int, quiet: bool) -> Path:
    """Run the attack in a new folder, which is returned."""
    import asyncio

    from nip_ray.config.load import config_to_yaml
    from nip_ray.text.parts import PROVIDERS, check_providers, known_abilities, prepare, save_state
    from nip_ray.text.training.trainer import new_state, train

    asyncio.run(check_providers(config, known_abilities(run_dir / PROVIDERS)))
    prepared = prepare(config, run_dir)
    items = {split: [item for item in found if item.y == label] for split, found in prepared.items.items()}
    for split, found in items.items():
        if not found:
            raise UserError(f"--attack: the run has no {split} items with y = {label} to attack {goal} on; leave that goal out")
    state = new_state(config)
    (run_dir / FOLDER).mkdir(exist_ok=True)
    path = next(path for number in count(1) if not (path := run_dir / FOLDER / (goal if number == 1 else f"{goal}-{number}")).exists())
    with RunFolder.create(path, config_to_yaml(config)) as folder:
        folder.write_json("environment.json", environment())
        save_state(folder, state)
        about = replace(prepared, items=items)
        if learns_from_tokens(config):
            _test_before(config, folder, about, state)
        train(config, folder, about, state, quiet)
    return path


def _test_before(config: TextExperimentConfig, folder: RunFolder, prepared: "Prepared", state: "TextState") -> None:
    """Test the run's own models; the first checkpoint, from which the attack continues, has what that cost."""
    from nip_ray.text.training.policy_gradient import PolicyGradientTrainer
    from nip_ray.text.training.trainer import begin

    trainer = begin(config, folder, prepared, state)
    assert isinstance(trainer, PolicyGradientTrainer)
    try:
        trainer.test(-1)
        trainer.run_stage()
    finally:
        trainer.close()


def _of_member(run_dir: Path, config: TextExperimentConfig, member: str, goal: str) -> dict[str, Any]:
    """What the attack comes to for one member of a panel, by its own vote; the attackers were paid for the verdict."""
    rows = list(_attackers(run_dir, config, member))
    winner = min(range(len(rows)), key=lambda row: (rows[row]["selection"]["estimate"], -row))
    for number, row in enumerate(rows):
        row["chosen"] = number == winner
    record = {**rows[winner]["held_out"], "attacker": rows[winner]["name"], "undecided": rows[winner]["undecided"]}
    return entries_of(from_settings(config.protocol), goal, record, {"attackers": rows})


def _attackers(run_dir: Path, config: TextExperimentConfig, who: str = "verifier") -> Iterator[dict[str, Any]]:
    """The run's own prover, and what the attack made of it. who: the verdict, or a member of a panel."""
    from nip_ray.scenarios.language import language_kind
    from nip_ray.text.dialogues.runner import read_dialogues, rollout_file
    from nip_ray.text.items import stored_items
    from nip_ray.text.training.metrics import dialogue_record, judged

    protocol, items = from_settings(config.protocol), stored_items(run_dir, language_kind(config.scenario)) or {}
    by_id = {split: {item.id: item for item in found} for split, found in items.items()}
    last = config.iterations - 1
    learned = learns_from_tokens(config)  # in an iteration before its test, not after it
    for name, iteration in (("own", 0), ("continued", last)):
        tested = -1 if learned and name == "own" else iteration
        trained = read_dialogues(rollout_file(run_dir, "train", iteration), by_id["train"])
        held_out = read_dialogues(rollout_file(run_dir, "test", tested), by_id["test"])
        record = dialogue_record(held_out, protocol)
        yield {
            "name": name,
            "kind": name,
            "size": None,
            "seed": None,
            "iterations": tested + learned,
            "mode": "sampled",
            "selection": dialogue_record(trained, protocol)[f"{who}/accuracy"],
            "held_out": record[f"{who}/accuracy"],
            "fooled": _fooled(judged(held_out, protocol)[who]),
            "undecided": record[f"{who}/undecided"],
            "curve": [],
        }


def _fooled(dialogues: Sequence[Any]) -> dict[str, Any]:
    """The share of dialogues with a wrong verdict, not of undecided ones."""
    from nip_ray.evaluation.clusters import clustered_share

    items = sorted({dialogue.item.id for dialogue in dialogues})
    wrong, tried = (dict.fromkeys(items, 0) for _ in range(2))
    for dialogue in dialogues:
        wrong[dialogue.item.id] += dialogue.verdict == 1 - dialogue.item.y
        tried[dialogue.item.id] += 1
    return clustered_share([wrong[item] for item in items], [tried[item] for item in items]).record()
