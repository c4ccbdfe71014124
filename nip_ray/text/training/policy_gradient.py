"""`PolicyGradientTrainer`: language models that play dialogues and learn from their own tokens.

    (warm-up ->) play groups of dialogues -> advantages of turns -> gradient steps -> the next iteration

Decisions that matter here:
- an iteration is a pure function of the models, the optimizers, the baselines and (seed, iteration). So a resumed run
  is, on a CPU, identical to an uninterrupted one; everything after the last checkpoint is repeated;
- a turn is one prompt and one reply. A learning agent's turn has one attempt: an unusable reply is a turn like any
  other, paid as an empty message;
- checkpoints are complete before `state.json` names them. At the end, and where a KL term refers to them, models are
  written as folders of their provider, for evaluation, attacks and other runs.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nip_ray.cluster.ray_session import start_ray
from nip_ray.cluster.resources import TOKEN_KEYS, check_cluster, token_actors
from nip_ray.config.changes import resumed_config
from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.plugins import send_by_value
from nip_ray.config.policy_gradient_rules import stage_config
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.errors import TrainingError, UserError
from nip_ray.learning.token_losses import MAXIMUM, is_ppo
from nip_ray.learning.token_rows import Turn
from nip_ray.play.dialogue import Dialogue, LanguageScenario
from nip_ray.play.transcripts import transcript_record
from nip_ray.progress import say
from nip_ray.protocols import from_settings
from nip_ray.seeding import generator
from nip_ray.settings.policy_gradient import CurriculumStage, TokenTrainingSettings
from nip_ray.settings.providers import ProviderSettings
from nip_ray.storage.checkpoint import kept_iterations, load_checkpoint, rewind_checkpoints, save_checkpoint
from nip_ray.storage.folder import RunFolder
from nip_ray.text.costs.prices import Spending, usd
from nip_ray.text.costs.token_bills import TokenBills, Use
from nip_ray.text.dialogues.records import total
from nip_ray.text.dialogues.runner import (
    Task,
    grouped,
    rollout_file,
    spoken_by,
    test_tasks,
    training_tasks,
    write_dialogues,
)
from nip_ray.text.items import stage_items, store_items, stored_items
from nip_ray.text.parts import Prepared, Stage, TextState, save_state
from nip_ray.text.training.credit import credit
from nip_ray.text.training.exact import ExactMetrics
from nip_ray.text.training.metrics import dialogue_metrics, last_test, warn_of_form
from nip_ray.text.training.model_play import ModelPlay, Reply
from nip_ray.text.training.past import PastAgents
from nip_ray.text.training.playing import Played, Playing, Plays
from nip_ray.text.training.policies import home_of, policy_for, start_folder, use_threads
from nip_ray.text.training.rules import rule_of
from nip_ray.text.training.warm_up import Example, WarmUpSaves, format_batches, scenario_examples
from nip_ray.text.written_models import write_models
from nip_ray.tracking import Tracker

CHECKPOINTS = "checkpoints"
PLAYED_BY = "played_by"
"""In a checkpoint, beside a model's state: the weights with which the next dialogues were played ahead."""
MOST_CUT = 0.5
"""The largest share of an agent's prompts in an iteration that may lose their middle; beyond it the run ends."""
TRANSCRIPTS = 50
"""Maximum number of stored dialogues of an iteration: of those among the current agents, and those against the past."""


class PolicyGradientTrainer:
    """The trainer of a run on tokens, as `TextTrainer` is for rules with fine-tuning jobs. folder: open for writing.

    It starts from the newest checkpoint of the folder; `state` is its position. finished: see `TextTrainer`.
    """

    def __init__(
        self, config: TextExperimentConfig, folder: RunFolder, prepared: Prepared, state: TextState, tracker: Tracker
    ) -> None:
        """Load all models. Raises UserError for an unusable model or checkpoint."""
        assert isinstance(config.algorithm, TokenTrainingSettings)
        rule = rule_of(config.algorithm)
        assert rule.advantages is not None
        self._advantages, self._loss = rule.advantages, rule.loss
        self.config, self.folder, self.tracker, self.rule = config, folder, tracker, config.algorithm
        self.scenario, self.items, self.kind, self._drawn = (
            prepared.scenario,
            prepared.items,
            prepared.kind,
            prepared.drawn,
        )
        if stored_items(folder.path, self.kind) is None:
            store_items(folder.path, self.items, self.kind)
        self.state, self.finished = state, False
        self.progress: Callable[[int, int], None] | None = None
        self.groups, self.agents = groups(config), language_agents(config)
        self._group_of = {agent: group for group, members in self.groups.items() for agent in members}
        self._longest = {group: max(self.agents[one].reply_tokens for one in own) for group, own in self.groups.items()}
        self._bills = TokenBills(config, folder.path, total(folder.path))
        self._baselines: dict[str, float] = {}
        self._stages = [(stage.until_iteration, self._easier(stage)) for stage in self.rule.curriculum]
        write_models(config, self.scenario, self.items["train"], folder.path)
        use_threads(config)
        if self.rule.num_rollout_workers or self.rule.num_learners:
            actors = token_actors(config)
            send_by_value(type(self.scenario), type(self.rule), self._loss)
            start_ray(config.runtime, max(1.0, sum(bundle.get("CPU", 0) for bundle in actors)))
            check_cluster(actors, autoscaling=config.runtime.autoscaling, keys=TOKEN_KEYS)
        self.models = {group: policy_for(config, group, folder.path) for group in self.groups}
        self.past = None if config.opponents is None else PastAgents(config, config.opponents, folder.path)
        learning = {group: self.models[group] for group in self._learners()}
        if self.rule.num_rollout_workers:
            from nip_ray.text.training.play_workers import PlayWorkers

            plays: Plays = PlayWorkers(config, folder.path, self.models, self._bills)
        else:
            plays = ModelPlay(config, self.models, self._bills, None if self.past is None else self.past.load)
        self._playing = Playing(plays, learning, self.groups, self._train_tasks)
        self._exact = ExactMetrics(config, self.scenario, self.models, self._bills, self.rule.micro_batch_tokens)
        self._start_of: dict[str, str] = {}
        self._starts = set[str]()  # groups with a saved model after the warm-up
        self._warned: set[str] = set()
        self._warm_up_saves = WarmUpSaves(folder.path, state.run_id)
        self._continue_from_checkpoint()

    # ------------------------------------------------------------------------------------------------- what others call

    def run_stage(self) -> Stage:
        """The warm-up, an iteration, or the end of a run that ends at its last checkpoint; returns which.

        Raises TrainingError (BudgetExhausted too); the last checkpoint stays.
        """
        stage = self.state.stage
        if stage == "test":
            rows = self.folder.metrics()
            if rows and "time/test_s" not in rows[-1]:  # learning broke off between tests
                self.folder.append_metrics(rows[-1] | self.test(self.state.iteration - 1))
                self.folder.mend_metrics(())
            self._end(self.state.iteration)
            save_state(self.folder, self.state)
            return stage
        done = 0 if stage == "format_warmup" else self.state.iteration + 1
        row = self._iteration(self.state.iteration) if done else self._beginning()
        if len(row) > 1:
            spent = self.spending().amount
            row |= {"cost/usd": usd(spent.pusd), "cost/tokens": spent.tokens, "cost/jobs": 0}
            self.folder.append_metrics(row)
            self.tracker.log(row)
        self._advance(done)
        return stage

    def close(self) -> None:
        """Close models, trackers and files."""
        for part in (self._playing, self._bills, *self.models.values()):
            part.close()
        self.tracker.finish(not self.finished)

    def write_cost(self) -> None:
        """Write `cost.json`."""
        self.folder.write_json("cost.json", self.spending().summary())

    def spending(self) -> Spending:
        """Spending by model, up to the present state of the run."""
        return self._bills.spending()

    def final_record(self) -> Mapping[str, Any] | None:
        """The metrics of the last test, with intervals, and the exact ones; None if there was none."""
        by_id = {item.id: item for item in self.items["test"]}
        return last_test(self.folder.path, self.state.iteration, by_id, self.scenario.protocol, self.kind)

    # -------------------------------------------------------------------------------------------------------- iteration

    def _beginning(self) -> dict[str, Any]:
        """Warm up, and test if tests are due at all; return the row of metrics of iteration 0."""
        row: dict[str, Any] = {"iteration": 0, **self._warm_up()}
        return row | self.test(-1) if self.rule.evaluate_every else row

    def _iteration(self, iteration: int) -> dict[str, Any]:
        """Play, learn, test if due; return the row of metrics."""
        seconds: dict[str, float] = {}
        began = time.perf_counter()
        last = iteration + 1 == self.config.iterations
        played = self._playing.of(iteration)
        scenario, tasks, dialogues = played.scenario, played.tasks, played.talk.dialogues
        seconds["play"] = time.perf_counter() - began
        row: dict[str, Any] = {"iteration": iteration + 1}
        current = [dialogue for task, dialogue in zip(tasks, dialogues, strict=True) if not task.past]
        row |= {
            f"train/{name}": value
            for name, value in dialogue_metrics(current, scenario.protocol, self.kind.groups).items()
        }
        if iteration == 0:
            warn_of_form(row, [agent for agent, settings in self.agents.items() if not settings.frozen])
        row |= {} if self.past is None else self.past.record(tasks, dialogues)
        row |= self._cut_prompts("train", iteration, played.talk.replies)
        began = time.perf_counter()
        row |= self._learn(iteration, played)
        seconds["learn"] = time.perf_counter() - began
        began = time.perf_counter()
        self._playing.wait()
        seconds["play"] += time.perf_counter() - began
        if last or iteration == 0:
            write_dialogues(
                rollout_file(self.folder.path, "train", iteration), scenario, tasks, dialogues, played.version
            )
        if last or (self.rule.evaluate_every and (iteration + 1) % self.rule.evaluate_every == 0):
            row |= self.test(iteration)
            self._write_transcripts("", played.version, scenario, tasks, dialogues, iteration)
        return {**row, **{f"time/{name}_s": spent for name, spent in seconds.items()}}

    def _easier(self, stage: CurriculumStage) -> tuple[LanguageScenario, list[Any]]:
        """The scenario of a stage of the curriculum, and its training items, without the run's held-out items."""
        config = stage_config(self.config, stage)
        scenario = self.kind.build(from_settings(config.protocol), config.scenario)
        items = stage_items(config, self.items["test"])
        if not items:
            raise UserError(
                f"algorithm.curriculum: all training items with {', '.join(stage.changes)} are held out; change the"
                " task more"
            )
        return scenario, items

    def _task_of(self, iteration: int) -> tuple[LanguageScenario, list[Any]]:
        """(scenario, training items) of an iteration (from 0)."""
        return next((task for until, task in self._stages if iteration < until), (self.scenario, self.items["train"]))

    def _train_tasks(self, iteration: int) -> tuple[LanguageScenario, list[Task]]:
        """The dialogues of an iteration, those of a group next to each other."""
        scenario, items = self._task_of(iteration)
        size = self.rule.group_size
        about = training_tasks(items, self.config.seed, iteration, self.rule.rollouts_per_iteration // size)
        if self.past is not None:
            about = self.past.arranged(
                about, [agent for agent in self.agents if self.rule.learns(agent, iteration)], iteration
            )
        return scenario, self._drawn(grouped(about, size))

    # --------------------------------------------------------------------------------------------------------- learning

    def _learn(self, iteration: int, played: Played) -> dict[str, float]:
        """Gradient steps of all learners of this iteration; returns metrics by group."""
        own = [reply for reply in played.talk.replies if not self.agents[reply.agent].frozen]
        found = credit(
            self._advantages, self.rule, played.scenario.protocol, played.talk.dialogues, own, self._baselines
        )
        self._baselines, row = found.memory, found.figures
        due: dict[str, list[Turn]] = {}
        for group, members in self.groups.items():
            learning = [
                agent for agent in members if not self.agents[agent].frozen and self.rule.learns(agent, iteration)
            ]
            if turns := [turn for reply, turn in found.replies if reply.agent in learning]:
                due[group] = turns
        bills = self._bills.ask_all({group: self._most(group, turns, iteration) for group, turns in due.items()})
        if self.rule.max_staleness and iteration + 1 < self.config.iterations:
            self._playing.begin(iteration + 1)

        def steps(group: str) -> dict[str, float]:
            return self._steps(group, due[group], iteration, played.differences.get(group))

        with ThreadPoolExecutor(len(self.groups)) as pool:
            at_once = pool.map if self.rule.num_learners else map  # models with separate learners
            for group, figures in zip(due, at_once(steps, due), strict=True):
                self._bills.book(bills[group])
                if self.rule.max_staleness:
                    figures["staleness"] = float(iteration - played.version)
                row |= {f"learn/{group}/{name}": value for name, value in figures.items()}
        if self.rule.average_weights is not None:
            for group in self._learners():
                self.models[group].average(self.rule.average_weights)
        return row

    def _cut_prompts(self, split: str, iteration: int, replies: Sequence[Reply]) -> dict[str, float]:
        """Metrics: the share of each agent's prompts that lost the middle, if any. Raises TrainingError if most did."""
        row = {}
        for agent in self.agents:
            own = [reply.cut for reply in replies if reply.agent == agent]
            if not any(own):
                continue
            share = row[f"{split}/{agent}/prompt_cut_share"] = sum(own) / len(own)
            told = f"{sum(own)} of {len(own)} prompts of {agent} lost their middle in iteration {iteration + 1}"
            advice = "raise providers.<name>.max_length, or shorten items, replies or rounds"
            if share > MOST_CUT:
                raise TrainingError(f"{told}, so that it does not see the whole item; {advice}")
            if agent not in self._warned:
                say(f"warning: {told}; {advice}")
                self._warned.add(agent)
        return row

    def _most(self, group: str, turns: Sequence[Turn], iteration: int) -> Use:
        """Tokens of all steps on these turns."""
        rule = self._rule_of(group, iteration)
        passes = rule.num_epochs * self._provider(group).passes(is_ppo(rule, self._loss), bool(rule.kl_coefficient))
        return Use(training=passes * sum(len(turn.prompt) + len(turn.reply) for turn in turns))

    def _rule_of(self, group: str, iteration: int) -> TokenTrainingSettings:
        """The rule for a group in an iteration."""
        return self.rule.seen_by(self.groups[group][0]).annealed(1 - iteration / self.config.iterations)

    def _steps(self, group: str, turns: Sequence[Turn], iteration: int, difference: float | None) -> dict[str, float]:
        """All gradient steps of a group's model on its turns of an iteration; returns means over steps.

        difference: of sampler and learner, if the playing weights differed (None: the first step shows it).
        """
        rule = self._rule_of(group, iteration)
        model, size = self.models[group], rule.minibatch_size or len(turns)
        start = self._start_name(group, iteration)
        if rule.kl_coefficient and self._start_of.get(group) != start:
            kept = self._folder(group, start)
            if (start != self._start_name(group, 0) or group in self._starts) and not kept.is_dir():
                raise TrainingError(f"{kept}: the model that the KL term refers to is missing, copy it back")
            model.keep_start(kept if kept.is_dir() else start_folder(self.config, group, self.folder.path))
            self._start_of[group] = start
        told: list[dict[str, float]] = []
        if difference is not None:
            self._check_difference(group, difference)
        for epoch in range(rule.num_epochs):
            order = torch.randperm(
                len(turns), generator=generator(self.config.seed, "minibatches", iteration, epoch, group)
            ).tolist()
            for begin in range(0, len(turns), size):
                chosen = [turns[number] for number in order[begin : begin + size]]
                with self._naming(f"{group}, iteration {iteration + 1}"):
                    told.append(model.step(chosen, rule, self._longest[group], self._loss))
                if difference is None:  # later ones are of changed weights
                    difference = told[0]["logprob_difference"]
                    self._check_difference(group, difference)
        means = {name: sum(step[name] for step in told) / len(told) for name in told[0]}
        maxima = {name: max(step[name] for step in told) for name in told[0] if name.endswith(MAXIMUM)}
        return {**means, **maxima, "logprob_difference": difference or 0.0, "steps": len(told)}

    def _check_difference(self, group: str, difference: float) -> None:
        bound = self.rule.max_logprob_difference
        if bound is not None and difference > bound:
            raise TrainingError(
                f"{group}: sampler and learner differ by {difference:.3g} in a token's log-probability, more than"
                f" algorithm.max_logprob_difference ({bound:g}); learn in single precision (providers.<name>.dtype:"
                " float32), or raise it"
            )

    # ---------------------------------------------------------------------------------------------------------- warm-up

    def _warm_up(self) -> dict[str, float]:
        """Supervised steps, first on the form of replies, then on the scenario's own examples. Continues from the last
        save of an interrupted one. Returns the mean loss of the last tenth of each group's steps, and the time."""
        rule, first, saves, began = self.rule, 0, self._warm_up_saves, time.perf_counter()
        losses: dict[str, list[float]] = {group: [] for group in self._learners()}
        form = format_batches(self.scenario, self.items["train"], self.groups, rule, self.config.seed)
        begins = max((len(form[group]) for group in losses), default=0)  # the second part
        if (found := saves.newest()) is not None:
            for group in self._learners():
                self.models[group].set_state(found.tensors[group])
            self._bills.set_state(found.state["tokens"])
            first, losses = found.iteration, losses | found.state["losses"]
            began -= found.state.get("seconds", 0.0)
        scenarios = [*(task for _, task in self._stages), (self.scenario, self.items["train"])]

        def save(step: int) -> None:
            tensors = {group: self.models[group].state() for group in losses}
            tokens, seconds = self._bills.state(self._playing.uncounted()), time.perf_counter() - began
            saves.save(step, tensors, {"tokens": tokens, "losses": losses, "seconds": seconds})

        for step in range(first, begins + rule.warmup_steps):
            if saves.due():
                save(step)
            left = 1 - max(step - begins, 0) / max(rule.warmup_steps, 1)
            for group in losses:
                own = form[group][step] if step < len(form[group]) else []
                if step >= begins:
                    own = scenario_examples(scenarios, self.groups[group], rule, step - begins, self.config.seed)
                if own:
                    losses[group].append(self._supervised(group, own, left))
            if self.progress is not None:
                self.progress(step + 1, begins + rule.warmup_steps)
        if rule.evaluate_every and any(losses.values()):  # the first test may take long
            save(begins + rule.warmup_steps)
        for group in self._learners():
            model = self.models[group]
            if model.steps:
                # Adam's second moments of the larger supervised gradients would shrink the first hundreds of steps
                model.forget_moments()
                if self.rule.follows_start(self.groups[group][0]):
                    model.save(self._folder(group, self._start_name(group, 0)))
                    self._starts.add(group)
        last = {group: found[-max(1, len(found) // 10) :] for group, found in losses.items() if found}
        means = {f"learn/{group}/warmup_loss": sum(found) / len(found) for group, found in last.items()}
        return means and means | {"time/warmup_s": time.perf_counter() - began}

    def _learners(self) -> list[str]:
        return [group for group, members in self.groups.items() if not self.agents[members[0]].frozen]

    def _supervised(self, group: str, examples: Sequence[Example], left: float) -> float:
        model = self.models[group]
        turns = [Turn(*model.chat.example(chat, reply, self._longest[group])) for chat, reply in examples]
        bill = self._bills.ask(group, Use(training=sum(len(turn.prompt) + len(turn.reply) for turn in turns)))
        with self._naming(f"{group}, warm-up"):
            loss = model.supervised_step(turns, self.rule.seen_by(self.groups[group][0]).warming(left))["loss"]
        self._bills.book(bill)
        return loss

    # ------------------------------------------------------------------------------------------------------------- test

    def test(self, iteration: int) -> dict[str, float]:
        """Play held-out items as in training, with the agents' own temperatures, and get the scenario's exact metrics.

        iteration: the last finished one (from 0; -1: before the first), whose test rollouts are written.
        """
        began = time.perf_counter()
        tasks = self._drawn(
            test_tasks(self.items["test"], self.config.seed, self.rule.num_test_items, self.rule.num_test_repeats)
        )
        with self._averages():
            talk = self._playing.now(self.scenario, tasks, "test", iteration)
            exact = self._exact.of(self.scenario, self.items["test"][: self.rule.num_test_items])
        dialogues, cut = talk.dialogues, self._cut_prompts("eval_sampled", iteration, talk.replies)
        write_dialogues(
            rollout_file(self.folder.path, "test", iteration), self.scenario, tasks, dialogues, iteration + 1
        )
        self._write_transcripts("test-", iteration + 1, self.scenario, tasks, dialogues, iteration)
        sampled = dialogue_metrics(dialogues, self.scenario.protocol, self.kind.groups)
        return {
            **cut,
            **{f"eval_sampled/{name}": value for name, value in sampled.items()},
            **{f"eval/{name}": value for name, value in exact.items()},
            "time/test_s": time.perf_counter() - began,
        }

    def _write_transcripts(
        self,
        prefix: str,
        version: int,
        scenario: LanguageScenario,
        tasks: Sequence[Task],
        dialogues: Sequence[Dialogue],
        iteration: int,
    ) -> None:
        """Write the first of those among the current agents, and of those against the past."""
        made = list(zip(tasks, dialogues, strict=True))
        shown = [
            one for past in (False, True) for one in [one for one in made if bool(one[0].past) == past][:TRANSCRIPTS]
        ]
        records = ({**spoken_by(task, version), **transcript_record(scenario, dialogue)} for task, dialogue in shown)
        self.tracker.transcripts(self.folder.write_transcripts(f"{prefix}{iteration + 1:06d}", records), iteration + 1)

    # ------------------------------------------------------------------------------------------------------------ state

    def _advance(self, iteration: int) -> None:
        """Record that `iteration` iterations are done, and write a snapshot or a checkpoint if due."""
        if self.past is not None:
            self.past.take(iteration, {group: self.models[group] for group in self._learners()})
        over = iteration >= self.config.iterations
        self.state = replace(self.state, iteration=iteration, stage="sample")
        self._refresh_starts(iteration)
        if over:
            self._end(iteration)
        if over or iteration % self.rule.checkpoint_every == 0:
            self._save(iteration)

    def _start_name(self, group: str, iteration: int) -> str:
        """The reference of a group's KL term in an iteration (from 0): the model after the warm-up, or a later one."""
        since = 0 if self.rule.kl_refresh is None else iteration - iteration % self.rule.kl_refresh
        return f"{group}-start-{since:06d}" if since else f"{group}-start"

    def _refresh_starts(self, iteration: int) -> None:
        """Save what the KL terms refer to from now on, and delete what no kept checkpoint needs."""
        every = self.rule.kl_refresh
        if not iteration or every is None or iteration % every:
            return
        kept = (*kept_iterations(self.folder.path / CHECKPOINTS), iteration)
        for group in self._learners():
            if self.rule.follows_start(self.groups[group][0]):
                needed = [self._folder(group, self._start_name(group, one)) for one in kept]
                self.models[group].save(needed[-1])
                for folder in needed[-1].parent.glob(f"{group}-start-??????"):
                    if folder not in needed:
                        shutil.rmtree(folder)

    def _end(self, iteration: int) -> None:
        """Save the models of a finished run."""
        with self._averages():
            for group in self._learners():
                name = self.models[group].save(self._folder(group, f"{group}-{iteration:06d}"))
                self.state = self.state.group(group, model=name)
        self.state = replace(self.state, stage="sample", over=True)

    def _save(self, iteration: int) -> None:
        self.folder.sync()
        ahead = self._playing.state()
        played_by = {group: {PLAYED_BY: weights} for group, weights in ahead.items()}
        tensors = {group: {**self.models[group].state(), **played_by.get(group, {})} for group in self._learners()}
        plain = {
            "baselines": self._baselines,
            "tokens": self._bills.state(self._playing.uncounted()),
            "ahead": self._playing.arranged(),
            "starts": sorted(self._starts),
            **({} if self.past is None else {"past": self.past.state()}),
        }
        where = self.folder.path / CHECKPOINTS
        saved = save_checkpoint(where, iteration, tensors, plain, self.state.run_id, self.rule.keep_checkpoints)
        save_state(self.folder, self.state)
        if self.past is not None:
            self.past.tidy(kept_iterations(where)[0] - self.rule.max_staleness)
        self.write_cost()
        if iteration:
            self.tracker.checkpoint(saved, iteration)
        else:
            self._warm_up_saves.remove()

    def _continue_from_checkpoint(self) -> None:
        """Continue from the newest undamaged checkpoint; without any, from the beginning."""
        where = self.folder.path / CHECKPOINTS
        if not kept_iterations(where):
            self.state = replace(self.state, iteration=0, over=False, stage="format_warmup")
            self.folder.rewind_metrics(-1)
            return
        found = load_checkpoint(where, None, self.state.run_id)
        self._warm_up_saves.remove()  # of a run that was killed before that
        for line in found.skipped:
            say(f"warning: {line}; continuing from iteration {found.iteration}")
        for group in self._learners():
            self.models[group].set_state(found.tensors[group])
        ahead = {
            group: found.tensors[group][PLAYED_BY] for group in self._learners() if PLAYED_BY in found.tensors[group]
        }
        self._playing.set_state(found.iteration, ahead, found.state.get("ahead", []))
        self._baselines = dict(found.state["baselines"])
        self._starts = set(found.state.get("starts", []))
        self._bills.set_state(found.state["tokens"])
        if self.past is not None:
            self.past.load_state(found.state["past"])
        rewind_checkpoints(where, found.iteration)
        self.folder.rewind_metrics(found.iteration)
        self.folder.rewind_transcripts(found.iteration)
        ends = found.iteration >= self.config.iterations
        over = ends and self.state.over  # else it ends here unplanned, or was killed when it did
        self.state = replace(
            self.state, iteration=found.iteration, stage="test" if ends and not over else "sample", over=over
        )

    def _provider(self, group: str) -> ProviderSettings:
        return self.config.providers[self.agents[self.groups[group][0]].provider]

    def _folder(self, group: str, name: str) -> Path:
        """The folder of a group's model with a name."""
        return home_of(self.config, group, self.folder.path) / "models" / name

    @contextmanager
    def _averages(self) -> Iterator[None]:
        """Use the averages of the weights, where they are kept."""
        models = [self.models[group] for group in self._learners() if self.rule.average_weights is not None]
        for model in models:
            model.show_averages(True)
        try:
            yield
        finally:
            for model in models:
                model.show_averages(False)

    @contextmanager
    def _naming(self, place: str) -> Iterator[None]:
        """Add to errors where learning broke off, and where the last good weights are."""
        try:
            yield
        except TrainingError as error:
            ending = ""
            if kept := max(kept_iterations(self.folder.path / CHECKPOINTS), default=0):
                with suppress(UserError):  # of a run whose length stays
                    resumed_config(self.config, [], kept)
                    command = f"nip-ray resume {self.folder.path} --iterations {kept}"
                    ending = f"; `{command}` ends this one with its last checkpoint"
            raise type(error)(f"{place}: {error}{ending}") from None
