"""`Session`: one process's work on a run with networks, an iteration at a time.

Decisions that matter here:
- `run_experiment`, `resume_experiment` and a trial of a sweep all drive this one loop, so a sweep's results are those
  of single runs;
- all files of a run are in its folder, and a session can start from any of its checkpoints: later output is dropped,
  and reproduced identically (CPU, same config and seed);
- a lost learner costs the iterations since the newest checkpoint, not the run. Written and tracked data are not
  duplicated by that;
- an interrupt ends the run after the current iteration, with a checkpoint. That iteration may take too long, so the
  state after a complete one is kept in memory and saved instead: before each evaluation, else every `_KEPT_EVERY_S`
  seconds, because a copy after every fast iteration would slow runs whose learners are remote or have replay buffers.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from nip_ray.cluster.interrupts import finishing
from nip_ray.cluster.liveness import REMEMBERED
from nip_ray.cluster.process import prepare_process
from nip_ray.config.changes import begun, run_fingerprint
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.search_rules import searching
from nip_ray.errors import LearnerLost, TrainingError, UserError
from nip_ray.evaluation.examine import Examination, players
from nip_ray.evaluation.solo_run import solo_run_score
from nip_ray.progress import progress_line, say, say_stage
from nip_ray.redaction import Redactor
from nip_ray.runs.profiling import profiler
from nip_ray.runs.stopping import stopped_at
from nip_ray.storage.checkpoint import Checkpoint, has_checkpoint, load_checkpoint, rewind_checkpoints, save_checkpoint
from nip_ray.storage.files import cannot_write
from nip_ray.storage.folder import METRICS, RunFolder
from nip_ray.storage.identity import mark_finished, run_id
from nip_ray.tracking import Tracker, open_trackers
from nip_ray.tracking.base import RunInfo

WARNINGS = "warnings.log"
# maximum time of complete iterations that an interrupt may lose if it cuts the next one off; or, if that is more,
_KEPT_EVERY_S = 2.0
_COPY_SHARE = 50  # this many times the time of a copy: replay buffers are large


class Session:
    """Call `start`, then `step` until `over`, then `finish`; `close` in any case.

    config: of the run. folder: its folder, open for writing. group: its sweep.
    """

    def __init__(
        self, config: ExperimentConfig, folder: RunFolder, *, quiet: bool = False, group: str | None = None
    ) -> None:
        self.config, self.folder, self.quiet, self.group = config, folder, quiet, group
        self.algorithm: Any = None
        self.iteration = 0
        self.last_row: dict[str, Any] = {}
        self.last_evaluation: dict[str, float] = {}
        self.stopped = False  # by the setting `stop`
        self.saved_at, self._saved_s, self._told = 0, 0.0, 0  # saved_at: the iteration of the newest checkpoint
        self._whole = False  # True if the algorithm is after a complete iteration
        # an iteration after the newest checkpoint, and its state
        self._kept: tuple[int, dict[str, Any]] | None = None
        # time of that copy or of the last checkpoint; duration of the last copy
        self._kept_at, self._copy_s = 0.0, 0.0
        self._durations: deque[float] = deque(maxlen=REMEMBERED)  # outlives an algorithm whose learners were lost
        self._tracker: Tracker | None = None
        self._open = ExitStack()
        self._profiled: Callable[[], None] | None = None
        self._failed = True

    @property
    def over(self) -> bool:
        """True if all iterations are done, or `stop` has ended the run."""
        return self.stopped or self.iteration >= self.config.iterations

    @property
    def figures(self) -> dict[str, Any]:
        """The newest row, with the newest evaluation's metrics unless it has its own."""
        return {**self.last_evaluation, **self.last_row}

    def start(self, checkpoint: Checkpoint | None = None, *, foreign: bool = False) -> None:
        """Build everything and continue from `checkpoint` (None: the beginning, with the config's initial weights).

        foreign: it belongs to another run; this run's rows up to its iteration are kept. Its own checkpoints stay until
        the caller has saved this one, and removes them. Raises UserError when the checkpoint does not fit, or the
        cluster is too small.
        """
        from nip_ray.rllib.cluster import build_algorithm, start_ray
        from nip_ray.runs.initial_weights import initial_weights, put_weights

        prepare_process(self.config.runtime.num_threads)
        self.iteration = 0 if checkpoint is None else checkpoint.iteration
        if checkpoint is None and self.config.pretraining.agents:
            start_ray(self.config)  # a cluster that is too small is reported before minutes of pretraining
        given: dict[str, dict[str, Any]] = {}
        if checkpoint is None:  # initial weights from elsewhere
            pretrained = self._pretrained() if self.config.pretraining.agents else {}
            taken, notes = initial_weights(self.config, self.folder.path)
            for note in notes:
                say(f"warning: {note}")
            given = {**pretrained, **taken}
        self.algorithm = build_algorithm(self.config if checkpoint is None else begun(self.config))
        self.algorithm.durations = self._durations
        if given:
            put_weights(self.algorithm, given)
        if checkpoint is not None:
            try:
                self.algorithm.load_training_state(
                    {**checkpoint.tensors["training"], "counters": checkpoint.state["counters"]}
                )
            except (KeyError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"{checkpoint.path} does not fit this version of nip_ray: {error}; start a new run"
                ) from error
        if not foreign:
            rewind_checkpoints(self.folder.checkpoints, self.iteration)
        self.folder.rewind_metrics(self.iteration)
        if mended := self.folder.mend_metrics(range(1, self.iteration + 1)):
            self.warn(mended)
        self.folder.rewind_transcripts(self.iteration)
        self.saved_at = -1 if foreign else self.iteration
        self._whole, self._kept, self._kept_at = True, None, time.monotonic()
        rows = self.folder.metrics()
        self.last_row = rows[-1] if rows else {}
        self.stopped = stopped_at(rows, self.config.stop) is not None
        self.last_evaluation = next((found for row in reversed(rows) if (found := _of_evaluation(row))), {})
        if self._tracker is None:
            identity, plain = (
                run_id(self.folder, self.config.name, self.config.seed),
                self.config.model_dump(mode="json"),
            )
            info = RunInfo(self.folder.path, identity, self.config.name, plain, self.group, self.iteration, foreign)
            self._tracker = open_trackers(self.config.tracking, info)
            self._told = self.iteration
        if self._profiled is None:
            self._profiled = self._open.enter_context(profiler(self.config.profiling, self.folder.path, self.iteration))

    def step(self) -> dict[str, Any]:
        """Do one iteration and record it, with an evaluation and a checkpoint if due. Returns its row.

        Raises LearnerLost when a learner is gone: `restart` then continues. Raises TrainingError when training fails.
        """
        iteration, settings = self.iteration + 1, self.config
        evaluated = iteration == settings.iterations or _due(iteration, settings.evaluation.interval)
        if evaluated:
            self._keep()
        self._whole = False
        row = self._trained(iteration)
        if evaluated:
            row |= self._evaluate(iteration)
        self.folder.append_metrics(row)
        self.iteration, self.last_row, self._whole = iteration, row, True
        if evaluated and self.config.stop is not None:
            try:
                self.stopped = stopped_at(self.folder.metrics(), self.config.stop) is not None
            except TrainingError:  # a metric that evaluations do not log
                self.save()
                raise
        if iteration > self._told and self._tracker is not None:  # repeated ones after a restart are already tracked
            self._tracker.log(row)
            self._told = iteration
        if self._profiled is not None:
            self._profiled()
        self._saved_s = 0.0
        if self.over or _due(iteration, settings.checkpoint.interval):
            self.save()
        elif time.monotonic() - self._kept_at > max(_KEPT_EVERY_S, _COPY_SHARE * self._copy_s):
            self._keep()
        return row

    def save(self) -> None:
        """Write a checkpoint, unless this iteration has one."""
        if self.saved_at == self.iteration:
            return
        began = time.perf_counter()
        iteration, state = self._kept or (-1, {})
        state = dict(state) if iteration == self.iteration else self.algorithm.training_state()
        counters = state.pop("counters")
        self.folder.sync()
        keep, mark = self.config.checkpoint.keep, run_fingerprint(self.config)
        plain = {"counters": counters, "rows": self.folder.row_sums()}
        path = save_checkpoint(self.folder.checkpoints, self.iteration, {"training": state}, plain, mark, keep)
        self.saved_at, self._saved_s = self.iteration, time.perf_counter() - began
        self._kept, self._kept_at = None, time.monotonic()
        if self._tracker is not None:
            self._tracker.checkpoint(path, self.iteration)

    def save_interrupted(self) -> None:
        """Write a checkpoint of the last complete iteration, or of the kept one, and return to that."""
        if self._whole and self.algorithm is not None:
            self.save()
        elif self._kept is not None:
            self.iteration = self._kept[0]
            self.folder.rewind_metrics(self.iteration)  # the checkpoint has the sums of all rows; later ones repeat
            self.save()
        if not self.quiet and self.saved_at > 0:
            say(f"checkpoint of iteration {self.saved_at} of {self.config.iterations}")

    def restart(self) -> None:
        """Recreate everything and continue from the newest checkpoint, or from the beginning if there is none."""
        self._whole, self._kept = False, None  # its rows may be dropped from here on
        self._stop_algorithm()
        self.start(self.newest())

    def finish(self) -> dict[str, Any]:
        """The final evaluation, with intervals, and the report; then the attack, if enabled, and the report with it.

        Returns the last row with the last evaluation's metrics.
        """
        from nip_ray.evaluation.report import write_report
        from nip_ray.evaluation.verbs.kept_attack import carried, merged

        settings = self.config.evaluation
        say_stage("evaluation", self.quiet)
        document = self._examination().document(
            players(self.config, self.algorithm.networks()),
            self.iteration,
            settings.greedy,
            settings.sampled or not settings.greedy,
            settings.message_regression,
            settings.worst_case_episodes,
        )
        document = carried(self.folder, document)
        self.folder.write_json("evaluation.json", document)
        write_report(self.folder.path)
        if settings.attack.enabled:  # takes minutes: the rest is complete if it is interrupted
            from nip_ray.evaluation.verbs.attack import attack

            examination, networks = self._examination(), self.algorithm.networks()
            unseen, seed = examination.unseen_ids(), self.config.seed
            figures = attack(
                self.config, examination.scenario, networks, unseen, seed, settings.attack, quiet=self.quiet
            )
            self.folder.write_json("evaluation.json", merged(document, figures))
            write_report(self.folder.path)
        mark_finished(self.folder)
        self._failed = False
        return {**self.last_row, **self.last_evaluation}

    def close(self) -> None:
        """Close actors and trackers; the folder stays open."""
        try:
            self._open.close()
            self._stop_algorithm()
        finally:
            if self._tracker is not None:  # last: it may wait for an upload, and should find everything
                self._tracker.finish(self._failed)
                self._tracker = None

    def warn(self, text: str) -> None:
        """Print it on stderr, and append it to `warnings.log`, since a trial's output on another machine is not
        visible. Raises UserError if it cannot be written."""
        text = Redactor()(text)
        say(f"warning: {text}")
        path = self.folder.path / WARNINGS
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except OSError as error:
            cannot_write(path, error)

    def newest(self) -> Checkpoint | None:
        """The newest undamaged checkpoint of this run, if any; damaged ones and changed rows are reported by `warn`."""
        checkpoints = self.folder.checkpoints
        if not has_checkpoint(checkpoints):
            return None
        checkpoint = load_checkpoint(checkpoints, fingerprint=run_fingerprint(self.config))
        for reason in checkpoint.skipped:
            self.warn(f"{reason}; continuing from iteration {checkpoint.iteration}")
        stated = checkpoint.state.get("rows")  # earlier versions kept none, or one sum of all
        if isinstance(stated, list) and (changed := self.folder.changed_rows(stated)):
            which = f"iterations {', '.join(map(str, changed[:5]))}{' ...' if len(changed) > 5 else ''}"
            self.warn(
                f"{self.folder.path / METRICS}: rows of {which} are not as they were when they were written; do not"
                " rely on them"
            )
        if checkpoint.iteration > self.config.iterations:
            done = f"{self.folder.path}: {checkpoint.iteration} iterations are done already"
            raise UserError(f"{done}; ask for more than that (--iterations)")
        return checkpoint

    def _keep(self) -> None:
        """Copy the current state, unless it is already copied or saved."""
        if self.saved_at != self.iteration and (self._kept is None or self._kept[0] != self.iteration):
            began = time.monotonic()
            self._kept = self.iteration, self.algorithm.training_state()
            self._kept_at = time.monotonic()
            self._copy_s = self._kept_at - began

    def _pretrained(self) -> dict[str, dict[str, Any]]:
        from nip_ray.runs.pretraining import pretrain

        settings = self.config.pretraining
        cache = self.folder.path.parent / "pretrained" if settings.cache is None else Path(settings.cache)
        epochs = settings.num_epochs
        with progress_line(self.config.name, 0, epochs * len(settings.agents), self.quiet, "pretraining") as show:

            def report(agent: str, epoch: int, found: dict[str, float]) -> None:
                show(settings.agents.index(agent) * epochs + epoch, {"pretraining/accuracy": found["accuracy"]})

            made = pretrain(self.config, cache, report)
        for agent in made:
            for note in made[agent].notes:
                say(f"warning: {note}")
        self.folder.write_json("pretraining.json", {"agents": {agent: found.figures for agent, found in made.items()}})
        return {agent: found.weights for agent, found in made.items()}

    def _trained(self, iteration: int) -> dict[str, Any]:
        from nip_ray.evaluation.metrics import rollout_metrics

        began = time.perf_counter()
        self.algorithm.train()
        found = rollout_metrics(self.algorithm.scenario.protocol, self.algorithm.rollout.among_current(), {})
        row = {
            "iteration": iteration,
            **self.algorithm.row,
            **{f"train/{name}": value for name, value in found.items()},
        }
        row["time/iteration_s"] = time.perf_counter() - began
        row["env_steps_per_s"] = row["env_steps"] / row["time/iteration_s"]
        row["time/checkpoint_s"] = self._saved_s
        return row

    def _evaluate(self, iteration: int) -> dict[str, float]:
        from nip_ray.evaluation.transcripts import keep_pictures, transcript_records

        began = time.perf_counter()
        settings, examination = self.config.evaluation, self._examination()
        networks = players(self.config, self.algorithm.networks())
        figures: dict[str, Any] = examination.exact(networks)
        rollout = None
        for name, wanted, greedy in (("eval", settings.greedy, True), ("eval_sampled", settings.sampled, False)):
            if wanted:
                rollout = examination.rollout(networks, greedy)
                figures |= examination.metrics(rollout, name)
                if settings.num_transcripts and (greedy or not settings.greedy):
                    records = list(
                        transcript_records(self.algorithm.scenario, rollout, settings.num_transcripts, networks)
                    )
                    file = self.folder.write_transcripts(f"{iteration:06d}", records)
                    keep_pictures(self.folder.path, self.algorithm.scenario, [record["instance"] for record in records])
                    if self._tracker is not None and iteration > self._told:
                        self._tracker.transcripts(file, iteration)
        scores = examination.regression(networks, settings.message_regression, rollout if settings.sampled else None)
        figures |= {f"eval/{agent}/message_regression": score.estimate for agent, score in scores.items()}
        figures["time/evaluate_s"] = time.perf_counter() - began
        self.last_evaluation = _of_evaluation(figures)
        return figures

    def _examination(self) -> Examination:
        config = self.config
        examination = Examination(
            self.algorithm.scenario, config.seed, config.evaluation.max_instances, search=searching(config)
        )
        examination.alone = solo_run_score(config)
        return examination

    def _stop_algorithm(self) -> None:
        if self.algorithm is None:
            return
        algorithm, self.algorithm = self.algorithm, None
        try:
            algorithm.stop()
        except Exception as error:
            from ray.exceptions import RayError

            if not isinstance(error, RayError):  # of lost processes; everything important is already written
                raise


@contextmanager
def saving_at_interrupts(session: Session) -> Iterator[None]:
    """Let an interrupt save a checkpoint before it takes effect."""
    try:
        yield
    except KeyboardInterrupt:
        try:
            session.save_interrupted()
        except (TrainingError, UserError) as error:  # learners were taken away too, or the disk is full
            say(f"warning: no checkpoint could be saved: {error}")
        raise


def to_the_end(session: Session) -> dict[str, Any]:
    """Do all remaining steps, continuing after lost learners as often as the config allows; then finish.

    Raises TrainingError when learners are lost more often than that.
    """
    limit, failures, stands = session.config.fault_tolerance.max_learner_failures, 0, True
    with (
        saving_at_interrupts(session),
        progress_line(session.config.name, session.iteration, session.config.iterations, session.quiet) as report,
    ):
        # learners can also be lost during recreation, and while the final evaluation requests their weights
        while True:
            try:
                if not stands:
                    session.restart()
                    stands = True
                if session.over:
                    return session.finish()
                with finishing():
                    session.step()
            except LearnerLost as lost:
                failures, stands = failures + 1, False
                if failures > limit:
                    hint = "`nip-ray resume` continues from the newest checkpoint"
                    times = f"{failures} times (fault_tolerance.max_learner_failures: {limit})"
                    raise TrainingError(f"learners were lost {times}, at last so: {lost}; {hint}") from lost
                session.warn(f"{lost}; continuing from the newest checkpoint")
            else:
                report(session.iteration, session.figures)


def _due(iteration: int, interval: int) -> bool:
    return interval > 0 and iteration % interval == 0


def _of_evaluation(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in figures.items() if key.startswith("eval")}
