"""`evaluate_run` for language models: the metrics of the last test, and the attack on the final models.

No model is queried for the metrics: the dialogues of the last test are in the run folder. So other items, an earlier
iteration or another seed are refused, and so are settings that would not apply to an attack. An export has no
dialogues: its models repeat the test of their run, in this process, with the same items, seeds and metrics. Models
trained on their own tokens are sampled as in that training, in step; others by the engine of the run. Hosted models are
not queried, since that would cost money.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.plugins import import_plugins
from nip_ray.config.text_rules import groups, language_agents, learns_from_tokens, speaking_providers
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.kept_attack import can_be_kept, keep
from nip_ray.evaluation.verbs.text_attack import SEARCHES, attack_text_run
from nip_ray.protocols import from_settings
from nip_ray.settings.attack import AttackSettings
from nip_ray.storage.files import check_files
from nip_ray.storage.folder import EXPORTED, RunFolder, read_export

if TYPE_CHECKING:
    from nip_ray.play.dialogue import Dialogue
    from nip_ray.text.dialogues.runner import Task
    from nip_ray.text.parts import Prepared

_SETTINGS = tuple(f"evaluation.attack.{name}" for name in ("goals", "max_instances", "text_iterations", *SEARCHES))


def text_document(run_dir: Path, config: TextExperimentConfig) -> dict[str, Any] | None:
    """The metrics of the newest stored test, in the shape of `evaluation.json`; None for a run without a test.

    Raises UserError for a damaged file.
    """
    from nip_ray.scenarios.language import language_kind
    from nip_ray.text.items import stored_items
    from nip_ray.text.training.metrics import last_test

    kind = language_kind(config.scenario)
    items = {item.id: item for item in (stored_items(run_dir, kind) or {}).get("test", [])}
    return last_test(run_dir, config.iterations, items, from_settings(config.protocol), kind)


def examined_text_run(folder: RunFolder, config: TextExperimentConfig) -> dict[str, Any]:
    """`text_document`; for an export, from a repeated test. Raises UserError also where there is no test."""
    import_plugins(config.plugins)
    if (folder.path / EXPORTED).is_file():
        return replayed_test(folder, config)
    document = text_document(folder.path, config)
    if document is None:
        raise UserError(f"{folder.path}: this run has no test dialogues; set algorithm.test_scheme or evaluate_every")
    return document


def replayed_test(folder: RunFolder, config: TextExperimentConfig) -> dict[str, Any]:
    """The metrics, in the shape of `evaluation.json`. Raises UserError for models that are missing or damaged."""
    from nip_ray.text.dialogues.runner import test_tasks
    from nip_ray.text.parts import prepare
    from nip_ray.text.training.metrics import dialogue_record, risk_and_coverage

    about = read_export(folder)
    check_files(folder.path, about["files"])
    if missing := [*about["elsewhere"], *(name for name, found in speaking_providers(config).items() if found.hosted)]:
        raise UserError(
            f"{folder.path}: does not hold the models of {', '.join(missing)}, a provider does; evaluate the run itself"
        )
    prepared = prepare(config)
    tasks = test_tasks(
        prepared.items["test"], config.seed, config.algorithm.num_test_items, config.algorithm.num_test_repeats
    )
    play = _in_step if learns_from_tokens(config) else _by_engine
    dialogues = play(folder, config, prepared, tasks, about["iteration"] - 1)
    record = dialogue_record(dialogues, prepared.scenario.protocol, groups=prepared.kind.groups)
    count = len({dialogue.item.id for dialogue in dialogues})
    kind = prepared.kind
    told = {
        "iteration": about["iteration"],
        "split": "test",
        "num_instances": count,
        "held_out": kind.held_out,
        "sampled": record,
    }
    return told | risk_and_coverage(dialogues)


def _in_step(
    folder: RunFolder, config: TextExperimentConfig, prepared: "Prepared", tasks: "list[Task]", iteration: int
) -> "list[Dialogue]":
    from nip_ray.text.costs.token_bills import Allowance
    from nip_ray.text.training.model_play import ModelPlay
    from nip_ray.text.training.policies import policy_for, use_threads

    agents = {agent: replace(own, frozen=True) for agent, own in language_agents(config).items()}
    played = config.model_copy(update={"scenario": replace(config.scenario, agents=agents)})
    use_threads(played)
    models = {group: policy_for(played, group, folder.path) for group in groups(played)}
    try:
        return ModelPlay(played, models, Allowance(None)).play(prepared.scenario, tasks, "test", iteration).dialogues
    finally:
        for model in models.values():
            model.close()


def _by_engine(
    folder: RunFolder, config: TextExperimentConfig, prepared: "Prepared", tasks: "list[Task]", iteration: int
) -> "list[Dialogue]":
    from nip_ray.text.dialogues.runner import DialogueRunner, StageContext
    from nip_ray.text.own_models import clients_of, own_clients

    models = {group: language_agents(config)[agents[0]].model for group, agents in groups(config).items()}

    async def talk() -> "list[Dialogue]":
        clients = own_clients(config, folder.path, models, language_agents(config))
        try:
            context = StageContext("export", config.seed, "test", iteration)
            return await DialogueRunner(prepared.scenario, clients, context, config.talk.max_in_flight).dialogues(tasks)
        finally:
            for client in clients_of(clients):
                await client.close()

    return asyncio.run(talk())


def attacked_text_run(
    folder: RunFolder, config: TextExperimentConfig, settings: AttackSettings, seed: int | None, quiet: bool
) -> dict[str, Any]:
    """Entries of an attack on a run's last models, stored in evaluation.json. seed: of all draws (None: the run's)."""
    import_plugins(config.plugins)
    if (folder.path / EXPORTED).is_file():
        raise UserError(f"--attack: {folder.path} is an export of language models; attack the run, and export it then")
    document = text_document(folder.path, config) or {
        "iteration": config.iterations,
        "split": "test",
        "num_instances": 0,
    }
    wanted = can_be_kept(folder, document)
    seeded = config if seed is None else config.model_copy(update={"seed": seed})
    entries = attack_text_run(folder.path, seeded, settings, quiet=quiet)
    if wanted:
        keep(folder, document, entries)
    return entries


def refuse_unused(given: Mapping[str, Any], settings: Sequence[str], attacked: bool) -> None:
    """Raise UserError for options that would be ignored. given: option of `evaluate_run` -> its value; settings:
    "evaluation.key=value"."""
    for name, value in given.items():
        if value is not None and not (attacked and name == "seed"):
            told = (
                "the last ones are attacked, about the run's own items"
                if attacked
                else "the stored dialogues of the last test are examined"
            )
            raise UserError(f"--{name}: of language models {told}; leave it out")
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if not attacked or key not in _SETTINGS:
            usable = f"an attack uses {', '.join(_SETTINGS)} only" if attacked else "nothing can be changed"
            raise UserError(f"--set {key}: of language models {usable}; leave it out")
