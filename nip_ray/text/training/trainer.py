"""`TextTrainer`: the stage machine of language agents. `run_stage` does one stage, and then writes `state.json`.

    (format_warmup ->) sample -> log -> test -> create_jobs -> await_jobs -> the next iteration
    (format_warmup ->) sample -> log -> create_jobs -> test -> await_jobs -> the next one    (test_while_fine_tuning)

Decisions that matter here:
- a stage can be repeated: it reads the results of earlier stages in the run folder, makes the same calls under the same
  keys (answered ones come from the records), and writes its results in one step. So a kill at any moment costs time and
  no money;
- k iterations are k samplings and k - 1 fine-tunings, unless `fine_tune_after_last`; held-out items are played by the
  models that the iteration sampled with, before they are fine-tuned or (`test_while_fine_tuning`) meanwhile, with money
  held for the jobs;
- with a base run of kind `rerun_tests` there is only the test stage, with the other run's models of each iteration;
- trackers receive a row when it is in `metrics.jsonl`, and before the stage counts as done: so none is left out, and
  trackers have to recognise one that is repeated after a crash. Their checkpoint is the state and the config: the names
  of the models, from which another run can start.
"""

import asyncio
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_to_yaml
from nip_ray.config.text_rules import fine_tuning_rule, groups, language_agents, learns_from_tokens
from nip_ray.errors import TrainingError
from nip_ray.evaluation.report import write_report
from nip_ray.play.dialogue import Dialogue
from nip_ray.play.transcripts import transcript_record
from nip_ray.progress import progress_line, say, say_stage
from nip_ray.secrets import Redactor
from nip_ray.serving.fine_tuning_job import FineTuneJob, FineTuneSpec, Method
from nip_ray.settings.text_training import FineTuningSettings
from nip_ray.storage.checkpoint import kept_iterations
from nip_ray.storage.folder import CONFIG, RunFolder
from nip_ray.storage.identity import ExperimentResult, mark_finished, run_id
from nip_ray.text.costs.budget import Reservation
from nip_ray.text.costs.prices import NOTHING, Amount, Spending
from nip_ray.text.dialogues.runner import (
    AgentClient,
    DialogueRunner,
    Progress,
    StageContext,
    check_stage,
    grouped,
    read_dialogues,
    rollout_file,
    test_tasks,
    training_tasks,
    write_dialogues,
    write_trees,
)
from nip_ray.text.jobs import await_job, ended, ensure_job, job_key, next_attempt, worst, worst_of
from nip_ray.text.parts import (
    STATE,
    Parts,
    Prepared,
    Stage,
    TextState,
    base_state,
    first_state,
    save_state,
    with_base_models,
)
from nip_ray.text.providers.interface import encode
from nip_ray.text.training.metrics import dialogue_metrics, last_test
from nip_ray.text.training.rules import FineTuningSet, fine_tuning_set, format_warmup_set, read_played, rule_of
from nip_ray.tracking import RunInfo, Tracker, open_trackers, traces

if TYPE_CHECKING:
    from nip_ray.text.training.policy_gradient import PolicyGradientTrainer

FORMAT_WARMUP = -1
"""The iteration number of the format warm-up."""
TRANSCRIPTS = 50
"""Maximum number of stored dialogues of an iteration."""


class TextTrainer:
    """The trainer of a run. folder: open for writing. parts: backends. state: resume point. tracker: receives metrics.

    finished: set after writing the evaluation; until then trackers record an end as an interruption.
    """

    def __init__(
        self, config: TextExperimentConfig, folder: RunFolder, parts: Parts, state: TextState, tracker: Tracker
    ) -> None:
        self.config, self.folder, self.parts, self.state, self.tracker = config, folder, parts, state, tracker
        self.finished = False
        self.groups, self.rule = groups(config), fine_tuning_rule(config)
        self.progress: Progress | None = None
        self._reserved: dict[str, Reservation] = {}
        self._runner = asyncio.Runner()

    @property
    def rerun(self) -> bool:
        """True if only the tests of another run are repeated."""
        return self.config.base_run is not None and self.config.base_run.kind == "rerun_tests"

    def run_stage(self) -> Stage:
        """Do the next stage; return which it was. Raises UserError, TrainingError (BudgetExhausted too); finished work
        is kept."""
        stage = self.state.stage
        work = {
            "format_warmup": self._format_warmup,
            "sample": self._sample,
            "log": self._log,
            "test": self._test,
            "create_jobs": self._create_jobs,
            "await_jobs": self._await_jobs,
        }[stage]

        async def traced() -> TextState:
            with traces.span(stage, nip_ray__iteration=self.state.iteration + 1):
                return await work()

        try:
            self._advance(self._runner.run(traced()))
        except TrainingError:
            # a job may have failed: a resumed run checks all of them, and makes new attempts
            if stage == "await_jobs":
                save_state(self.folder, replace(self.state, stage="create_jobs"))
            raise
        finally:
            self.write_cost()
        return stage

    def close(self) -> None:
        """Close connections, trackers and files."""
        try:
            self._runner.run(self.parts.close())
        finally:
            self._runner.close()
            self.tracker.finish(not self.finished)

    def write_cost(self) -> None:
        """Write `cost.json`: jobs, tokens, usd, and their parts."""
        self.folder.write_json("cost.json", self.spending().summary())

    def spending(self) -> Spending:
        """The run's cost so far."""
        return self.parts.spending()

    # ----------------------------------------------------------------------------------------------------------- stages

    async def _format_warmup(self) -> TextState:
        """Teach every model the form of replies, by dialogues of random replies; they are the same when repeated after
        a crash."""
        tasks = training_tasks(self.parts.items["train"], self.config.seed, 0, self.rule.format_warmup)
        # seeds come from this name: another one gives other replies
        drawn_as = replace(self._context("train"), split="rehearsal")
        state, scenario = self.state, self.parts.scenario
        # replies are random
        nobody = {agent: AgentClient(None, "", own) for agent, own in language_agents(self.config).items()}
        dialogues = await DialogueRunner(scenario, nobody, drawn_as, 1).dialogues(tasks)
        sets = {
            group: format_warmup_set(self.config, scenario, dialogues, self.groups[group])
            for group in self.trained_groups()
        }
        jobs = await self._start(sets, FORMAT_WARMUP, "supervised", self.rule.format_warmup_tuning)
        for group, job in (await self._finish(jobs)).items():
            state = state.group(group, base=job.model, model=job.model)
        return state

    async def _sample(self) -> TextState:
        state, rule = self.state, self.rule
        tasks = training_tasks(
            self.parts.items["train"], self.config.seed, state.iteration, rule.rollouts_per_iteration
        )
        if (size := getattr(rule, "group_size", None)) is not None:
            tasks = grouped(tasks, size)
        tasks = self.parts.drawn(tasks)
        context, path = self._context("train"), rollout_file(self.folder.path, "train", state.iteration)
        branches = getattr(rule, "num_responses", None)
        played = await self.parts.play(state.models(), context, tasks, branches, self.progress)
        (write_dialogues if branches is None else write_trees)(path, self.parts.scenario, tasks, played)
        self._check_usable("train")
        return state

    async def _log(self) -> TextState:
        self._write_transcripts("", self._played("train"))
        return self.state

    async def _test(self) -> TextState:
        began, iteration = time.perf_counter(), self.state.iteration
        row: dict[str, Any] = {"iteration": iteration + 1}
        if not self.rerun:
            row |= {f"train/{name}": value for name, value in self._figures("train").items()}
            row |= self._learning_figures(row)
        await self._hold(self._under_way().values())
        last = iteration + 1 >= self.config.iterations
        if {"none": False, "all": True, "last": last, "first_and_last": last or iteration == 0}[self.rule.test_scheme]:
            path, number, repeats = (
                rollout_file(self.folder.path, "test", iteration),
                self.rule.num_test_items,
                self.rule.num_test_repeats,
            )
            tasks = self.parts.drawn(test_tasks(self.parts.items["test"], self.config.seed, number, repeats))
            dialogues = await self.parts.play(self.state.models(), self._context("test"), tasks, progress=self.progress)
            write_dialogues(path, self.parts.scenario, tasks, dialogues)
            self._check_usable("test")
            self._write_transcripts("test-", dialogues)
            row |= {f"eval_sampled/{name}": value for name, value in self._figures("test").items()}
        spent = self.spending()
        row |= {"cost/usd": spent.summary()["usd"], "cost/tokens": spent.amount.tokens, "cost/jobs": spent.jobs}
        row["time/test_s"] = time.perf_counter() - began
        self.folder.rewind_metrics(iteration)
        self.folder.append_metrics(row)
        self.folder.sync()
        self.tracker.log(row)
        return replace(self.state, history=(*self.state.history[:iteration], self.state.models()))

    async def _create_jobs(self) -> TextState:
        state, rule = self.state, self.rule
        sets = {group: self._fine_tuning_set(group) for group in self.trained_groups()}
        for group, made in list(sets.items()):
            state = state.group(group, job_key=None)
            if len(made.lines) < rule.fine_tuning.min_examples:
                least = rule.fine_tuning.min_examples
                say(f"warning: {group}: {len(made.lines)} examples, fewer than {least}; its model stays as it is")
                del sets[group]
        jobs = await self._start(sets, state.iteration, rule_of(rule).method, rule.fine_tuning)
        for group, job in jobs.items():
            state = state.group(group, job_key=job.key)
        return state

    async def _await_jobs(self) -> TextState:
        state, made = self.state, dict[str, FineTuneJob]()
        for group, key in self._under_way().items():
            entry = self.parts.journal.last("job", key=key)
            if entry is None:
                path = self.parts.journal.path
                raise TrainingError(
                    f"{path} has lost the job that is waited for; resume the run to find it at the provider"
                )
            made[group] = FineTuneJob(entry["id"], key, "pending")
        for group, job in (await self._finish(made)).items():
            state = state.group(group, model=job.model, job_key=None)
        return state

    def _advance(self, state: TextState) -> None:
        """Save the state after a stage, with the next one."""
        iteration = state.iteration
        last = iteration + 1 >= self.config.iterations
        order = self._stages(last)
        if state.stage == "format_warmup":
            state = replace(state, stage="sample")
        elif state.stage == order[-1]:
            state = replace(state, iteration=iteration + 1, stage=order[0], over=last)
        # tested before: these jobs are repeated, or late
        elif state.stage == "create_jobs" and len(state.history) > iteration:
            state = replace(state, stage="await_jobs")
        else:
            state = replace(state, stage=order[order.index(state.stage) + 1])
        if self.rerun and not state.over:
            state = with_base_models(self.config, state)
        save_state(self.folder, state)
        self.state = state
        if state.iteration > iteration:
            self._track_models()

    # ------------------------------------------------------------------------------------------------------------ parts

    def trained_groups(self) -> list[str]:
        """The groups that are fine-tuned."""
        settings = language_agents(self.config)
        return [group for group, agents in self.groups.items() if not settings[agents[0]].frozen]

    def _stages(self, last: bool) -> list[Stage]:
        """The stages of an iteration, in order."""
        if self.rerun:
            return ["test"]
        if not self.trained_groups() or (last and not self.rule.fine_tune_after_last):
            return ["sample", "log", "test"]
        middle: list[Stage] = ["create_jobs", "test"] if self.rule.test_while_fine_tuning else ["test", "create_jobs"]
        return ["sample", "log", *middle, "await_jobs"]

    def _context(self, split: str) -> StageContext:
        return StageContext(self.state.run_id, self.config.seed, split, self.state.iteration, traces.place())

    def _check_usable(self, split: str) -> None:
        """See `check_stage`."""
        settings, providers, models = language_agents(self.config), self.config.providers, self.state.models()
        paid = {agent: models[group] for group, agents in self.groups.items() for agent in agents}
        hosted = {agent: model for agent, model in paid.items() if providers[settings[agent].provider].hosted}
        check_stage(self.config.talk, self._played(split), hosted)

    def _played(self, split: str) -> list[Dialogue]:
        return read_dialogues(rollout_file(self.folder.path, split, self.state.iteration), self.parts.by_id[split])

    def _write_transcripts(self, prefix: str, dialogues: Sequence[Dialogue]) -> None:
        records = (transcript_record(self.parts.scenario, dialogue) for dialogue in dialogues[:TRANSCRIPTS])
        iteration = self.state.iteration + 1
        self.tracker.transcripts(self.folder.write_transcripts(f"{prefix}{iteration:06d}", records), iteration)

    def _track_models(self) -> None:
        """Send trackers the models after an iteration: a folder with config and state, as `base_run` takes it."""
        try:
            with TemporaryDirectory() as made:
                for name in (CONFIG, STATE):
                    shutil.copyfile(self.folder.path / name, Path(made) / name)
                self.tracker.checkpoint(Path(made), self.state.iteration)
        except OSError as error:  # not of a tracker, which raises nothing
            say(f"warning: trackers do not get the models of iteration {self.state.iteration} ({error})")

    def _fine_tuning_set(self, group: str) -> FineTuningSet:
        items = self.parts.by_id["train"]
        return fine_tuning_set(
            self.config, self.parts.scenario, self.folder.path, items, self.state.iteration, self.groups[group]
        )

    def _figures(self, split: str) -> dict[str, float]:
        return dialogue_metrics(self._played(split), self.parts.scenario.protocol, self.parts.kind.groups)

    def _learning_figures(self, others: Iterable[str]) -> dict[str, float]:
        """Sizes of fine-tuning sets, and the rule's own metrics. others: taken names."""
        found: dict[str, float] = {}
        for group in self.trained_groups():
            found |= {f"learn/{name}": value for name, value in self._fine_tuning_set(group).figures.items()}
        rule = rule_of(self.rule)
        if rule.figures is not None:
            played = read_played(rule, self.folder.path, self.parts.by_id["train"], self.state.iteration)
            told = rule.told(
                played, self.parts.scenario.protocol, self.rule, [name.removeprefix("train/") for name in others]
            )
            found |= {f"train/{name}": value for name, value in told.items()}
        return found

    # ------------------------------------------------------------------------------------------------------------- jobs

    async def _start(
        self, sets: Mapping[str, FineTuningSet], iteration: int, method: Method, rule: FineTuningSettings
    ) -> dict[str, FineTuneJob]:
        """A job per group's fine-tuning set, created or found. Money for all is set aside before any is created."""
        data = {group: encode(made.lines) for group, made in sets.items()}
        specs = {group: self._spec(group, sets[group], data[group], iteration, method, rule) for group in sets}
        await self._reserve({spec.key: worst_of(spec) for spec in specs.values()})
        return {
            group: await ensure_job(
                self.parts.backend(group), self.parts.journal, spec, data[group], f"{iteration + 1:06d}-{group}.jsonl"
            )
            for group, spec in specs.items()
        }

    async def _finish(self, jobs: Mapping[str, FineTuneJob]) -> dict[str, FineTuneJob]:
        """The groups' jobs once all have succeeded, and are booked. Once all are over, raises TrainingError if one
        failed."""
        await self._hold(job.key for job in jobs.values())
        waiting = (self._awaited(group, job) for group, job in jobs.items())
        done = await asyncio.gather(*waiting, return_exceptions=True)  # so that the journal records how each ended
        for job in jobs.values():
            # The cost of the jobs with this key; an unfinished one stays reserved.
            spending = self.parts.new_bills(job.key)
            reservation = self._reserved.pop(job.key, None) if ended(self.parts.journal, job.key) is not None else None
            if reservation is None:
                self.parts.budget.book(spending)
            else:
                reservation.settle(spending)
        for job in done:
            if isinstance(job, BaseException):
                raise job
        return {group: job for group, job in zip(jobs, done, strict=True) if isinstance(job, FineTuneJob)}

    async def _awaited(self, group: str, job: FineTuneJob) -> FineTuneJob:
        """See `await_job`."""
        backend, journal = self.parts.backend(group), self.parts.journal
        if ended(journal, job.key) is not None:
            return await await_job(backend, journal, job)
        asked = next((entry["at"] for entry in journal.entries(key=job.key) if entry["kind"] == "submit"), None)
        intent = journal.last("intent", key=job.key) or {}
        with traces.span(
            f"fine_tune {intent.get('model')}",
            start_s=asked,
            gen_ai__operation__name="fine_tune",
            gen_ai__request__model=intent.get("model"),
            nip_ray__group=group,
            nip_ray__method=intent.get("method"),
            nip_ray__examples=intent.get("examples"),
        ) as told:
            done = await await_job(backend, journal, job)
            told(gen_ai__response__model=done.model, nip_ray__job=done.id, nip_ray__trained_tokens=done.trained_tokens)
        return done

    def _spec(
        self, group: str, made: FineTuningSet, data: bytes, iteration: int, method: Method, rule: FineTuningSettings
    ) -> FineTuneSpec:
        scratch, stands = (
            language_agents(self.config)[self.groups[group][0]].fine_tune_from_scratch,
            self.state.groups[group],
        )
        model = stands.base if scratch else stands.model

        def key_of(attempt: int) -> str:
            return job_key(self.state.run_id, iteration, group, data, method, model, attempt)

        return FineTuneSpec(
            key=key_of(next_attempt(self.parts.journal, key_of)),
            method=method,
            model=model,
            suffix=f"{self.config.name}-{iteration + 1}-{group}".replace("_", "-").replace(".", "-")[:40],
            num_examples=len(made.lines),
            num_tokens=self.parts.count_tokens(group, data, method),
            seed=self.config.seed,
            token_pusd=self.parts.training_price(group, model),
            **{
                name: getattr(rule, name)
                for name in (
                    "num_epochs",
                    "batch_size",
                    "learning_rate_multiplier",
                    "learning_rate",
                    "beta",
                    "nll_coefficient",
                )
            },
        )

    def _under_way(self) -> dict[str, str]:
        """Group -> the key of its job."""
        return {group: key for group in self.trained_groups() if (key := self.state.groups[group].job_key) is not None}

    async def _hold(self, keys: Iterable[str]) -> None:
        """Set money aside for the jobs with these keys, which an earlier process may have created."""
        intents = {key: intent for key in keys if (intent := self.parts.journal.last("intent", key=key)) is not None}
        await self._reserve({key: worst(intent) for key, intent in intents.items()})

    async def _reserve(self, jobs: Mapping[str, Amount]) -> None:
        """Set money aside for all jobs that are not over, or for none. jobs: key -> maximum cost."""
        due = {
            key: amount
            for key, amount in jobs.items()
            if key not in self._reserved and ended(self.parts.journal, key) is None
        }
        if due:
            held = await self.parts.budget.reserve_for_jobs(sum(due.values(), NOTHING))
            self._reserved |= zip(due, held.split(due.values()), strict=True)

    def final_record(self) -> Mapping[str, Any] | None:
        """The metrics of the last test, with intervals; None if there was none."""
        return last_test(
            self.folder.path,
            self.state.iteration,
            self.parts.by_id["test"],
            self.parts.scenario.protocol,
            self.parts.kind,
        )


# ----------------------------------------------------------------------------------------------------------------------
# Do all remaining stages of a run of language agents, from its folder to its report.

AnyTrainer: TypeAlias = "TextTrainer | PolicyGradientTrainer"
"""For rules with fine-tuning jobs, or on tokens."""


def train(
    config: TextExperimentConfig, folder: RunFolder, prepared: Prepared, state: TextState, quiet: bool
) -> ExperimentResult:
    """Do all remaining stages, then write the evaluation and the report."""
    say_stage(f"run {folder.path}", quiet)
    trainer = begin(config, folder, prepared, state)
    try:
        folder.replace_config(config_to_yaml(config))  # not before: a setting of a resume may be impossible
        with progress_line(config.name, state.iteration, config.iterations, quiet) as report:
            while not trainer.state.over:
                before = trainer.state.iteration
                stage = "warm-up" if trainer.state.stage == "format_warmup" else trainer.state.stage

                def show(over: int, total: int, done: int = before, stage: str = stage) -> None:
                    report(done, {"stage": f"{stage} {over}/{total}"})

                trainer.progress = show
                trainer.run_stage()
                if trainer.state.iteration > before or stage == "warm-up":
                    report(trainer.state.iteration, folder.figures())
        say_stage("evaluation", quiet)
        return finish(folder, trainer)
    finally:
        trainer.close()


def begin(
    config: TextExperimentConfig,
    folder: RunFolder,
    prepared: Prepared,
    state: TextState,
    *,
    group: str | None = None,
    in_trial: bool = False,
) -> AnyTrainer:
    """The trainer of a run, with its trackers. group: its sweep. in_trial: in a trial of Tune's.

    Logs from here on pass the filter of secrets. Raises UserError for missing keys and libraries.
    """
    Redactor(
        [name for provider in config.providers.values() if (name := getattr(provider, "api_key_variable", None))]
    ).install()
    first = learns_from_tokens(config) and not kept_iterations(folder.checkpoints)  # the trainer begins with a warm-up
    about = RunInfo(
        folder.path,
        run_id(folder, config.name, config.seed),
        config.name,
        config.model_dump(mode="json"),
        group,
        resumed_from=-1 if first else num_measured(state),
    )
    if learns_from_tokens(config):
        from nip_ray.text.training.policy_gradient import PolicyGradientTrainer

        return PolicyGradientTrainer(config, folder, prepared, state, open_trackers(config.tracking, about))
    parts = Parts(config, folder, prepared, in_trial=in_trial)
    return TextTrainer(config, folder, parts, state, open_trackers(config.tracking, about))


def finish(folder: RunFolder, trainer: AnyTrainer) -> ExperimentResult:
    """Write `evaluation.json`, `cost.json` and the report of a finished run."""
    record = trainer.final_record()
    if record is not None:
        folder.write_json("evaluation.json", record)
    trainer.write_cost()
    write_report(folder.path)
    mark_finished(folder)
    trainer.finished = True
    return ExperimentResult(folder.path, folder.figures(), trainer.config.iterations)


def num_measured(state: TextState) -> int:
    """Iterations with final metrics, which no remaining stage rewrites."""
    return state.iteration + (len(state.history) > state.iteration and state.stage != "test")


def new_state(config: TextExperimentConfig) -> TextState:
    """The initial state: with the models of the config, or those of its base run."""
    settings = language_agents(config)
    bases = {group: settings[agents[0]].model for group, agents in groups(config).items()}
    if config.base_run is not None:
        return base_state(config, first_state(bases))
    return replace(first_state(bases), stage="format_warmup" if config.algorithm.format_warmup else "sample")
