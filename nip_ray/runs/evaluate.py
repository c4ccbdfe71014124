"""`evaluate_run`: examine a run's verifier again, from a checkpoint, on its own held-out split or on a file of instances.

Decisions that matter here:
- one checkpoint here, all of them in `nip_ray.runs.rerun`; both are `bench`, which makes ready what checkpoints have in common, and
  `examine`, whose document has the shape of `evaluation.json`;
- examining writes nothing. An attack takes minutes, so what it found is kept: it joins the run's `evaluation.json`, and the report is
  written anew, where it was made of the iteration and the instances that the file is about;
- attackers learn on the run's own training instances, also when the verifier is measured on a file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import apply_overrides, config_from_dict, config_to_yaml, load_config, load_stored_config, parse_yaml
from nip_ray.config.plugins import import_plugins
from nip_ray.errors import UserError
from nip_ray.evaluation.examine import Examination
from nip_ray.runs.attack import attack, check_attack
from nip_ray.runs.checkpoint import Checkpoint, has_checkpoint, load_checkpoint
from nip_ray.runs.fingerprint import run_fingerprint
from nip_ray.runs.folder import CONFIG, RunFolder
from nip_ray.runs.players import players
from nip_ray.runs.process import prepare_process
from nip_ray.runs.progress import say
from nip_ray.scenarios.registry import played_scenario

EVALUATION = "evaluation.json"

_MODES = (("greedy", "eval"), ("sampled", "eval_sampled"))
_PARTS = ("calibration", "message_value", "worst_case")


@dataclass(frozen=True)
class Bench:
    """What all checkpoints of a run are examined with. networks: agent -> a network for weights to be put into. dataset: None for the
    run's own held-out split. seed: of sampled actions.
    """

    run_dir: Path
    config: ExperimentConfig
    examination: Examination
    networks: Mapping[str, nn.Module]
    dataset: str | None
    seed: int


def evaluate_run(
    run_dir: Path | str,
    *,
    dataset: Path | str | None = None,
    checkpoint: int | None = None,
    seed: int | None = None,
    attacked: bool = False,
    settings: Sequence[str] = (),
    quiet: bool = True,
) -> dict[str, Any]:
    """Flat figures: ``eval/…`` (greedy) and ``eval_sampled/…`` as in `docs/metrics.md`, each accuracy with ``…/lower`` and ``…/upper``
    (95 %, exact), and what was examined: run_dir, iteration, dataset, num_instances, seed. Then the parts of docs/evaluation.md:
    calibration, message_value, worst_case, and with `attacked` soundness_under_attack, completeness_under_attack, attack.

    dataset: a file of pairs of any readable kind (none: the run's own held-out split). checkpoint: an iteration (none: the newest).
    settings: "evaluation.key=value" to be used instead of the run's. quiet: no progress line of an attack.
    Needs torch only; no Ray is started. Raises UserError for what cannot be read or does not fit, and where there is nobody to attack;
    TrainingError when an attacker's training breaks down.
    """
    folder = RunFolder.open(run_dir)
    if attacked and isinstance(spoken := load_config(folder.path / CONFIG, checked=False), TextExperimentConfig):
        return _attack_on_text(folder, spoken, dataset, checkpoint, settings, quiet)
    config = with_settings(load_stored_config(folder.path / CONFIG), settings)
    found = newest_or(folder, checkpoint, config)
    if attacked:
        import_plugins(config.plugins)
        check_attack(config)
    made = bench(folder.path, config, dataset, seed, with_training=attacked)
    document = examine(made, found, deep=True)
    figures = {**flat_figures(made, document), **{key: document[key] for key in _PARTS if key in document}}
    if not attacked:
        return figures
    scenario, held_out = made.examination.scenario, made.examination.ids
    entries = attack(config, scenario, made.networks, held_out, made.seed, config.evaluation.attack, quiet=quiet)
    _keep(folder, made, {**document, **entries})
    return {**figures, **entries}


def _attack_on_text(
    folder: RunFolder,
    config: TextExperimentConfig,
    dataset: Path | str | None,
    checkpoint: int | None,
    settings: Sequence[str],
    quiet: bool,
) -> dict[str, Any]:
    """The attack on the last models of a run of language models, kept in its evaluation.json."""
    from nip_ray.evaluation.report import write_report
    from nip_ray.runs.text_attack import attack_text_run

    if dataset is not None or checkpoint is not None:
        raise UserError("--attack: of language models the last ones are attacked, about the run's own items; leave out the rest")
    usual = config_from_dict({})
    assert isinstance(usual, ExperimentConfig)
    chosen = with_settings(usual, settings).evaluation.attack  # a config of language models has no key for it
    import_plugins(config.plugins)
    entries = attack_text_run(folder.path, config, chosen, quiet=quiet)
    if (folder.path / EVALUATION).exists():
        folder.write_json(EVALUATION, {**folder.read_json(EVALUATION), **entries})
        write_report(folder.path)
    return {"run_dir": str(folder.path), **entries}


def with_settings(config: ExperimentConfig, settings: Sequence[str]) -> ExperimentConfig:
    """`config` with "evaluation.key=value" laid over it. Raises UserError for another key, and for a value that cannot be."""
    for setting in settings:
        if setting.partition("=")[0].strip().partition(".")[0] != "evaluation":
            raise UserError(f"--set {setting}: an evaluation can change evaluation.… only")
    if not settings:
        return config
    changed = config_from_dict(apply_overrides(parse_yaml(config_to_yaml(config), CONFIG), settings))
    assert isinstance(changed, ExperimentConfig)
    return changed


def newest_or(folder: RunFolder, checkpoint: int | None, config: ExperimentConfig) -> Checkpoint:
    """The checkpoint of an iteration (None: the newest). Raises UserError for a run without any, and for one that cannot be used."""
    if not has_checkpoint(folder.checkpoints):
        raise UserError(f"{folder.path}: this run has no checkpoint to examine; `nip-ray resume` goes on with it until there is one")
    return load_checkpoint(folder.checkpoints, checkpoint, run_fingerprint(config))


def bench(run_dir: Path, config: ExperimentConfig, dataset: Path | str | None, seed: int | None, *, with_training: bool = False) -> Bench:
    """The run's scenario and networks. dataset, seed: as in `evaluate_run`. with_training: beside a file, the run's training instances too.

    Raises UserError for data that cannot be read.
    """
    prepare_process(config.runtime.num_threads)
    import_plugins(config.plugins)
    scenario = played_scenario(config.protocol, examined(config, dataset, with_training), config.algorithm)
    networks = {agent: scenario.build_agent(agent, 0) for agent in scenario.protocol.agents}
    seed = config.seed if seed is None else seed
    examination = Examination(scenario, seed, config.evaluation.max_instances if dataset is None else None)
    return Bench(run_dir, config, examination, networks, None if dataset is None else str(dataset), seed)


def examine(made: Bench, checkpoint: Checkpoint, *, deep: bool = False) -> dict[str, Any]:
    """The figures of one checkpoint with intervals, greedy and sampled, in the shape of `evaluation.json`.

    deep: with calibration, worst case and the value of messages.
    """
    for agent, network in made.networks.items():
        network.load_state_dict(checkpoint.tensors["training"]["modules"][agent])
    settings = made.config.evaluation
    episodes = settings.worst_case_episodes if deep else None
    networks = players(made.config, made.networks)
    return made.examination.document(networks, checkpoint.iteration, regression=settings.message_regression, episodes=episodes)


def _keep(folder: RunFolder, made: Bench, document: Mapping[str, Any]) -> None:
    """Put what an attack found beside the run's other figures, if it is about the same checkpoint and the run's own held-out split."""
    if made.dataset is not None:
        return
    kept: dict[str, Any] = {}
    if (folder.path / EVALUATION).exists():
        kept = folder.read_json(EVALUATION)
        if kept.get("iteration") != document["iteration"]:
            say(f"{folder.path / EVALUATION} is about iteration {kept.get('iteration')}; what the attack found is not written there")
            return
    from nip_ray.evaluation.report import write_report

    folder.write_json(EVALUATION, {**kept, **document})
    write_report(folder.path)


def flat_figures(made: Bench, document: Mapping[str, Any]) -> dict[str, Any]:
    """A document of `examine` as `evaluate_run` returns it."""
    return {
        "run_dir": str(made.run_dir),
        "iteration": document["iteration"],
        "dataset": made.dataset,
        "num_instances": document["num_instances"],
        "seed": made.seed,
        **dict(_figures(document)),
    }


def _figures(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys as in `docs/metrics.md`; what has no value, being a share of nothing, has no key."""
    yield from ((f"eval/{name}", value) for name, value in document.get("exact", {}).items())
    for name, record in document.get("figures", {}).items():
        if record["estimate"] is not None:
            yield f"eval/{name}", record["estimate"]
            yield from _bounds(f"eval/{name}", record)
    for mode, prefix in _MODES:
        for name, record in document[mode].items():
            if record["estimate"] is not None:
                yield f"{prefix}/{name}", record["estimate"]
                if name.startswith("verifier/") and "=" not in name:
                    yield from _bounds(f"{prefix}/{name}", record)
    if document["wl_ceiling"] is not None:
        yield "eval/verifier/wl_ceiling", document["wl_ceiling"]
    for agent, score in document.get("message_regression", {}).items():
        yield f"eval/{agent}/message_regression", score["estimate"]
        yield from _bounds(f"eval/{agent}/message_regression", score)


def _bounds(key: str, record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((f"{key}/{end}", record[end]) for end in ("lower", "upper"))


def examined(config: ExperimentConfig, dataset: Path | str | None, with_training: bool) -> Any:
    """The scenario's settings, with the held-out split from `dataset`, and the run's training instances where they are needed."""
    if dataset is None:
        return config.scenario
    if config.scenario.name != "graph_isomorphism":
        raise UserError(f"--dataset: the scenario {config.scenario.name!r} of this run has no data sets; leave it out")
    if with_training:
        return replace(config.scenario, data=replace(config.scenario.data, test=str(dataset), num_test=None))
    # training pairs are not needed: the file serves as both splits
    data = replace(config.scenario.data, train=str(dataset), test=str(dataset), num_train=None, num_test=None, min_wl_score=None)
    return replace(config.scenario, data=data)
