"""`replayed_test`: the models of an export play the test of their run again, in this process: the same items, seeds and figures.

Models that learned from their own tokens are sampled as that learning does, in step; others by the engine that answers for a run's. Hosted
models are not asked: whoever evaluates would pay.
"""

import asyncio
from dataclasses import replace
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents, learns_from_tokens, speaking_providers
from nip_ray.errors import UserError
from nip_ray.play.dialogue import Dialogue
from nip_ray.storage.files import check_files
from nip_ray.storage.folder import RunFolder, read_export
from nip_ray.text.costs.token_bills import Allowance
from nip_ray.text.dialogues.runner import DialogueRunner, StageContext, Task, test_tasks
from nip_ray.text.own_models import clients_of, own_clients
from nip_ray.text.parts import Prepared, prepare
from nip_ray.text.training.metrics import dialogue_record, risk_and_coverage


def replayed_test(folder: RunFolder, config: TextExperimentConfig) -> dict[str, Any]:
    """The figures, as `evaluation.json` has them. Raises UserError for models that are not in the export, or are damaged."""
    about = read_export(folder)
    check_files(folder.path, about["files"])
    if missing := [*about["elsewhere"], *(name for name, found in speaking_providers(config).items() if found.hosted)]:
        raise UserError(f"{folder.path}: does not hold the models of {', '.join(missing)}, a provider does; evaluate the run itself")
    prepared = prepare(config)
    tasks = test_tasks(prepared.items["test"], config.seed, config.algorithm.num_test_items, config.algorithm.num_test_repeats)
    play = _in_step if learns_from_tokens(config) else _by_engine
    dialogues = play(folder, config, prepared, tasks, about["iteration"] - 1)
    record = dialogue_record(dialogues, prepared.scenario.protocol, groups=prepared.kind.groups)
    count = len({dialogue.item.id for dialogue in dialogues})
    kind = prepared.kind
    told = {"iteration": about["iteration"], "split": "test", "num_instances": count, "held_out": kind.held_out, "sampled": record}
    return told | risk_and_coverage(dialogues)


def _in_step(folder: RunFolder, config: TextExperimentConfig, prepared: Prepared, tasks: list[Task], iteration: int) -> list[Dialogue]:
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


def _by_engine(folder: RunFolder, config: TextExperimentConfig, prepared: Prepared, tasks: list[Task], iteration: int) -> list[Dialogue]:
    models = {group: language_agents(config)[agents[0]].model for group, agents in groups(config).items()}

    async def talk() -> list[Dialogue]:
        clients = own_clients(config, folder.path, models, language_agents(config))
        try:
            context = StageContext("export", config.seed, "test", iteration)
            return await DialogueRunner(prepared.scenario, clients, context, config.talk.max_in_flight).dialogues(tasks)
        finally:
            for client in clients_of(clients):
                await client.close()

    return asyncio.run(talk())
