"""`run_experiment`: from a config to a trained verifier in a run folder, and `resume_experiment`: from wherever it was stopped.

Decisions that matter here:
- a row of metrics is written before the checkpoint that relies on it; on resume rows after the checkpoint are dropped and made again;
- nothing random has a state to save: every draw is seeded by (seed, purpose, iteration), so checkpoints hold weights, optimizers
  and counters only, and a resumed run gives the numbers of one that was never stopped (CPU, same machine kind);
- the final evaluation and the report are made from the last checkpoint's weights, so that they can be made again at any time.
"""

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.errors import UserError
from nip_ray.runs.checkpoint import Checkpoint, fingerprint, has_checkpoint, load_checkpoint, rewind_checkpoints, save_checkpoint
from nip_ray.runs.folder import CONFIG, RunFolder, environment, write_atomically
from nip_ray.runs.progress import say

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # from malloc.h


@dataclass(frozen=True)
class ExperimentResult:
    """What a run came to. metrics: the last row of `metrics.jsonl`, with the last evaluation's figures. iterations: how many were done."""

    run_dir: Path
    metrics: dict[str, Any]
    iterations: int


def run_experiment(
    config: ExperimentConfig | TextExperimentConfig, run_dir: Path | str | None = None, *, quiet: bool = False
) -> ExperimentResult:
    """Train as `config` says, in the new run folder `run_dir` (none: ``runs/NAME-seedSEED``).

    Raises UserError for a config or a folder that cannot work, before Ray starts; TrainingError when training breaks down.
    """
    if isinstance(config, TextExperimentConfig):
        from nip_ray.text.run import run_text_experiment

        return run_text_experiment(config, run_dir, quiet=quiet)
    from nip_ray.config.load import config_to_yaml
    from nip_ray.config.rules import check

    check(config)
    config = with_absolute_paths(config)
    _try_files(config)
    path = Path(run_dir) if run_dir is not None else Path("runs") / f"{config.name}-seed{config.seed}"
    with RunFolder.create(path, config_to_yaml(config)) as folder:
        folder.write_json("environment.json", environment())
        return _Session(config, folder, quiet).run()


def resume_experiment(
    run_dir: Path | str, *, iterations: int | None = None, settings: Sequence[str] = (), quiet: bool = False
) -> ExperimentResult:
    """Go on with the run in `run_dir` from its newest undamaged checkpoint (from the start if there is none yet).

    iterations: a new total. settings: "key=value" to be changed, in a run of language models only.
    Raises UserError when `run_dir` is no run, its checkpoints belong to another config, or the new total
    is below what is done or changes an annealed learning rate.
    """
    from nip_ray.config.load import config_to_yaml, load_config

    with RunFolder.open(run_dir) as folder:
        config = load_config(folder.path / CONFIG, checked=False)
    if isinstance(config, TextExperimentConfig):
        from nip_ray.text.run import resume_text_experiment

        return resume_text_experiment(run_dir, iterations=iterations, settings=settings, quiet=quiet)
    if settings:
        raise UserError("--set: only runs of language models can change settings on the way; start a new run")
    with RunFolder.open(run_dir, write=True) as folder:
        if iterations is not None and iterations != config.iterations:
            if config.algorithm.anneal_lr:
                raise UserError(
                    "--iterations: the learning rate of this run is annealed over its own number of iterations; start a new run"
                )
            config = config.model_copy(update={"iterations": iterations})
        session = _Session(config, folder, quiet)
        checkpoint = session.newest()  # refuses before anything is changed
        write_atomically(folder.path / CONFIG, config_to_yaml(config).encode())
        return session.run(checkpoint)


def run_fingerprint(config: ExperimentConfig) -> str:
    """A hash of what a checkpoint depends on: not of the number of iterations, of what is kept, or of threads."""
    parts = config.model_dump(
        mode="json",
        exclude={"name", "iterations", "evaluation", "checkpoint", "runtime", "learners"},
        exclude_defaults=True,  # so that a later version's new options leave it as it is
    )
    for key in ("num_cpus_per_env_runner", "num_gpus_per_env_runner"):
        parts.get("play", {}).pop(key, None)
    parts.get("pretraining", {}).pop("cache", None)
    return fingerprint(parts)


def with_absolute_paths(config: ExperimentConfig) -> ExperimentConfig:
    """Data files, plugins and other runs by absolute path, so that a run can be resumed from anywhere and workers find them."""
    update: dict[str, Any] = {"plugins": tuple(os.path.abspath(p) if p.endswith(".py") else p for p in config.plugins)}
    scenario = config.model_dump(mode="json")["scenario"]
    if "data" in scenario:
        for key in ("train", "test"):
            if scenario["data"][key] is not None:
                scenario["data"][key] = os.path.abspath(scenario["data"][key])
    dumped = config.model_dump(mode="json")
    for source in dumped["initial_weights"].values():
        source["run_dir"] = os.path.abspath(source["run_dir"])
    if dumped["pretraining"]["cache"] is not None:
        dumped["pretraining"]["cache"] = os.path.abspath(dumped["pretraining"]["cache"])
    return ExperimentConfig.model_validate({**dumped, **update, "scenario": scenario})


def _try_files(config: ExperimentConfig) -> None:
    """Read what the user wrote (data, plugins, other runs) before a run folder is made for it. What is built is kept for the run."""
    data = getattr(config.scenario, "data", None)
    if config.plugins or (data is not None and (data.train or data.test)):
        from nip_ray.rllib.shared import scenario_of

        prepare_process(config.runtime.num_threads)
        scenario_of(config.model_dump(mode="json"))
    if config.initial_weights:
        from nip_ray.runs.initial_weights import initial_weights

        initial_weights(config)


class _Session:
    """One process's work on a run."""

    def __init__(self, config: ExperimentConfig, folder: RunFolder, quiet: bool) -> None:
        self.config, self.folder, self.quiet = config, folder, quiet
        self.last_evaluation: dict[str, float] = {}

    def run(self, checkpoint: Checkpoint | None = None) -> ExperimentResult:
        """Train from `checkpoint` (None: from the start) to the end, examine, report."""
        from nip_ray.rllib.cluster import build_algorithm
        from nip_ray.runs.initial_weights import put_weights
        from nip_ray.runs.progress import progress_line

        prepare_process(self.config.runtime.num_threads)
        start = 0 if checkpoint is None else checkpoint.iteration
        given = self._first_weights() if checkpoint is None else {}
        algorithm = build_algorithm(self.config)
        try:
            if given:
                put_weights(algorithm, given)
            if checkpoint is not None:
                try:
                    algorithm.load_training_state({**checkpoint.tensors["training"], "counters": checkpoint.state["counters"]})
                except (KeyError, ValueError, RuntimeError) as error:
                    raise UserError(f"{checkpoint.path} does not fit this version of nip_ray: {error}; start a new run") from error
            self._forget_after(start)
            with progress_line(self.config.name, start, self.config.iterations, self.quiet) as report:
                row = self._train(algorithm, start, report)
            self._finish(algorithm)
        finally:
            algorithm.stop()
        row = row or next(iter(self.folder.metrics()[-1:]), {})
        return ExperimentResult(self.folder.path, {**row, **self.last_evaluation}, self.config.iterations)

    def _first_weights(self) -> dict[str, dict[str, Any]]:
        """What agents start with other than their own first weights: pretrained bodies, then weights of other runs."""
        from nip_ray.runs.initial_weights import initial_weights

        pretrained = self._pretrained() if self.config.pretraining.agents else {}
        taken, notes = initial_weights(self.config)
        for note in notes:
            say(f"warning: {note}")
        return {**pretrained, **taken}

    def _pretrained(self) -> dict[str, dict[str, Any]]:
        from nip_ray.runs.pretraining import pretrain
        from nip_ray.runs.progress import progress_line

        settings = self.config.pretraining
        cache = self.folder.path.parent / "pretrained" if settings.cache is None else Path(settings.cache)
        epochs = settings.num_epochs
        with progress_line(f"{self.config.name}: pretraining", 0, epochs * len(settings.agents), self.quiet) as show:

            def report(agent: str, epoch: int, found: dict[str, float]) -> None:
                show(settings.agents.index(agent) * epochs + epoch, {"pretraining/accuracy": found["accuracy"]})

            made = pretrain(self.config, cache, report)
        for agent in made:
            for note in made[agent].notes:
                say(f"warning: {note}")
        self.folder.write_json("pretraining.json", {"agents": {agent: found.figures for agent, found in made.items()}})
        return {agent: found.weights for agent, found in made.items()}

    def newest(self) -> Checkpoint | None:
        """The newest undamaged checkpoint, if there is any; damaged ones are named on stderr."""
        checkpoints = self.folder.checkpoints
        if not has_checkpoint(checkpoints):
            return None
        checkpoint = load_checkpoint(checkpoints, fingerprint=run_fingerprint(self.config))
        for reason in checkpoint.skipped:
            say(f"warning: {reason}; going on from iteration {checkpoint.iteration}")
        if checkpoint.iteration > self.config.iterations:
            done = f"{self.folder.path}: {checkpoint.iteration} iterations are done already"
            raise UserError(f"{done}; ask for more than that (--iterations)")
        return checkpoint

    def _forget_after(self, iteration: int) -> None:
        rewind_checkpoints(self.folder.checkpoints, iteration)
        self.folder.rewind_metrics(iteration)
        self.folder.rewind_transcripts(iteration)

    def _train(self, algorithm: Any, start: int, report: Callable[[int, dict[str, Any]], None]) -> dict[str, Any]:
        from nip_ray.evaluation.metrics import rollout_metrics

        row: dict[str, Any] = {}
        saved_s = 0.0
        for iteration in range(start + 1, self.config.iterations + 1):
            began = time.perf_counter()
            algorithm.train()
            found = rollout_metrics(algorithm.scenario.protocol, algorithm.rollout, {})
            row = {"iteration": iteration, **algorithm.row, **{f"train/{name}": value for name, value in found.items()}}
            trained_s = time.perf_counter() - began
            row["time/iteration_s"] = trained_s
            row["env_steps_per_s"] = row["env_steps"] / trained_s
            row["time/checkpoint_s"] = saved_s
            interval = self.config.evaluation.interval
            if iteration == self.config.iterations or (interval and iteration % interval == 0):
                row |= self._evaluate(algorithm, iteration)
            self.folder.append_metrics(row)
            report(iteration, {**self.last_evaluation, **row})
            if iteration == self.config.iterations or iteration % self.config.checkpoint.interval == 0:
                saved_s = self._save(algorithm, iteration)
            else:
                saved_s = 0.0
        return row

    def _evaluate(self, algorithm: Any, iteration: int) -> dict[str, float]:
        from nip_ray.evaluation.transcripts import transcript_records

        began = time.perf_counter()
        settings, examination = self.config.evaluation, self._examination(algorithm)
        figures: dict[str, float] = examination.exact(algorithm.networks())
        rollout = None
        for name, wanted, greedy in (("eval", settings.greedy, True), ("eval_sampled", settings.sampled, False)):
            if wanted:
                rollout = examination.rollout(algorithm.networks(), greedy)
                figures |= examination.metrics(rollout, name)
                if settings.num_transcripts and (greedy or not settings.greedy):
                    records = transcript_records(algorithm.scenario, rollout, settings.num_transcripts)
                    self.folder.write_transcripts(f"{iteration:06d}", records)
        scores = examination.regression(algorithm.networks(), settings.message_regression, rollout if settings.sampled else None)
        figures |= {f"eval/{agent}/message_regression": score.estimate for agent, score in scores.items()}
        figures["time/evaluate_s"] = time.perf_counter() - began
        self.last_evaluation = {key: value for key, value in figures.items() if key.startswith("eval")}
        return figures

    def _save(self, algorithm: Any, iteration: int) -> float:
        began = time.perf_counter()
        state = algorithm.training_state()
        counters = state.pop("counters")
        self.folder.sync()
        save_checkpoint(
            self.folder.checkpoints,
            iteration,
            {"training": state},
            {"counters": counters},
            run_fingerprint(self.config),
            self.config.checkpoint.keep,
        )
        return time.perf_counter() - began

    def _finish(self, algorithm: Any) -> None:
        """The final examination, with intervals, and the report."""
        from nip_ray.evaluation.report import write_report

        settings = self.config.evaluation
        document = self._examination(algorithm).document(
            algorithm.networks(),
            self.config.iterations,
            settings.greedy,
            settings.sampled or not settings.greedy,
            settings.message_regression,
        )
        self.folder.write_json("evaluation.json", document)
        if not self.last_evaluation:
            rows = self.folder.metrics()[-1:]
            self.last_evaluation = {key: value for row in rows for key, value in row.items() if key.startswith("eval")}
        write_report(self.folder.path)

    def _examination(self, algorithm: Any) -> Any:
        from nip_ray.evaluation.examine import Examination

        return Examination(algorithm.scenario, self.config.seed, self.config.evaluation.max_instances)


def prepare_process(num_threads: int | None) -> None:
    """Torch threads of this process (None: $OMP_NUM_THREADS, else the cores that it may use, at most 8), and a calmer allocator.

    Small networks allocate and free megabytes thousands of times a second; glibc by default gives them back to the system each
    time and faults them in again. Keeping them is worth some per cent of an iteration.
    """
    import torch

    asked = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(num_threads or (int(asked) if asked.isdigit() else min(8, len(os.sched_getaffinity(0)))))
    with suppress(OSError, AttributeError):  # another C library: nothing to tune
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in ((_M_TRIM_THRESHOLD, 1 << 30), (_M_MMAP_THRESHOLD, 1 << 30), (_M_TOP_PAD, 64 << 20)):
            mallopt(option, value)
