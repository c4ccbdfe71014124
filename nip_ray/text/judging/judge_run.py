"""`judge_run`: let a model judge the stored dialogues of a run. Calls are recorded in the run folder, and paid for from
its budget.

Results go to ``judgements-NNNNNN.json`` (the iteration). When repeated, answered calls come from the records.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.keys import suggest
from nip_ray.config.load import load_config
from nip_ray.config.text_rules import language_agents, learns_from_tokens
from nip_ray.errors import UserError
from nip_ray.scenarios.code_validation.scenario import CodeValidation
from nip_ray.storage.checkpoint import has_checkpoint, load_checkpoint
from nip_ray.storage.folder import CONFIG, RunFolder
from nip_ray.text.costs.budget import Budget
from nip_ray.text.costs.prices import Spending, price_list
from nip_ray.text.costs.token_bills import TokenBills
from nip_ray.text.dialogues.records import ClientPool, RecordedChat, total
from nip_ray.text.dialogues.runner import read_dialogues, rollout_file
from nip_ray.text.jobs import read_journal, under_way
from nip_ray.text.judging.judges import JudgeOptions, fitting, judge, judge_figures, plan
from nip_ray.text.parts import JOBS, TextState, load_state, local_hosts, prepare, spent_before


def judge_run(
    run_dir: Path | str,
    names: Sequence[str] | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    iteration: int | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Metrics of the judges `names` (none: all that fit) for the training dialogues of `iteration` (from 1; none: the
    last played).

    provider, model: of the judge (none: the verifier's). dry_run: only the number of calls and their maximum cost.
    Raises UserError for a run, judge, provider or iteration that does not exist; TrainingError when the budget is
    spent.
    """
    with RunFolder.open(run_dir, write=not dry_run) as folder:
        config = load_config(folder.path / CONFIG, checked=False)
        if not isinstance(config, TextExperimentConfig):
            raise UserError(f"{folder.path}: its agents are not language models; there is nothing to judge")
        prepared, state = prepare(config, folder.path), load_state(folder)
        scenario = prepared.scenario
        if not isinstance(scenario, CodeValidation):
            raise UserError(
                f"{folder.path}: plays {config.scenario.name}, but judges work on code_validation; name a run of that"
            )
        number = _iteration(folder.path, state, iteration)
        dialogues = read_dialogues(
            rollout_file(folder.path, "train", number), {item.id: item for item in prepared.items["train"]}
        )
        chosen = fitting(scenario.protocol) if names is None else list(names)
        name, model = _judge(config, state, provider, model)
        prices = price_list(config.providers[name])
        options = JudgeOptions(seed=config.seed, run=state.run_id, max_in_flight=config.talk.max_in_flight)
        if dry_run:
            return plan(dialogues, scenario, chosen, model, options, prices.of(model))

        async def asked() -> dict[str, Any]:
            budget = Budget(config.budget, _spent(config, folder.path, state))
            with local_hosts(config, [name], folder.path) as hosts:
                speaker = ClientPool(config, folder.path, budget, hosts).client(name)
                client = RecordedChat(speaker, folder.path, number, "judge", prices)
                try:
                    return await judge(dialogues, scenario, chosen, client, model, options)
                finally:
                    await client.close()
                    folder.write_json("cost.json", budget.spending.summary())

        found = asyncio.run(asked())
        folder.write_json(f"judgements-{number + 1:06d}.json", found)
        return judge_figures(found)


def _spent(config: TextExperimentConfig, run_dir: Path, state: TextState) -> Spending:
    """The run's cost so far, with the most that open jobs may cost."""
    if not learns_from_tokens(config):
        entries = read_journal(run_dir / JOBS)
        found = spent_before(run_dir, entries)
        found.uncertain += under_way(entries)
        return found
    bills = TokenBills(config, run_dir, total(run_dir))
    try:
        if has_checkpoint(run_dir / "checkpoints"):  # else without tokens of local models
            bills.set_state(load_checkpoint(run_dir / "checkpoints", None, state.run_id).state["tokens"])
        return bills.spending()
    finally:
        bills.close()


def _iteration(run_dir: Path, state: TextState, wanted: int | None) -> int:
    """The iteration, counted from 0."""
    played = [i for i in range(state.iteration + 1) if rollout_file(run_dir, "train", i).is_file()]
    if not played:
        raise UserError(f"{run_dir}: no dialogues were held yet; let the run finish an iteration")
    if wanted is not None and wanted - 1 not in played:
        raise UserError(f"--iteration {wanted}: expected one of {', '.join(str(i + 1) for i in played)}")
    return played[-1] if wanted is None else wanted - 1


def _judge(config: TextExperimentConfig, state: TextState, provider: str | None, model: str | None) -> tuple[str, str]:
    """Provider and model: as given, or the base model of the last agent (in all built-in protocols, the verifier)."""
    verifier = list(language_agents(config).values())[-1]
    name = verifier.provider if provider is None else provider
    if name not in config.providers:
        raise UserError(f"--provider {name}: no provider of this run, {suggest(name, list(config.providers))}")
    if model is None and name != verifier.provider:
        raise UserError(f"--model: missing, name a model of {name}")
    return name, verifier.model if model is None else model
