"""`evaluate_run`: evaluate a run's verifier from a checkpoint, on its held-out split or on a file of instances.

Decisions that matter here:
- one checkpoint here, all of them in `nip_ray.evaluation.verbs.rerun`; both use `bench`, which prepares what
  checkpoints have in common, and `examine`, whose document has the shape of `evaluation.json`;
- evaluating writes nothing. An attack takes minutes, so its results are kept (`nip_ray.evaluation.verbs.kept_attack`);
- attackers learn on the run's own training instances, also when the verifier is measured on a file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from nip_ray.cluster.process import prepare_process
from nip_ray.config.changes import changes_of, run_fingerprint
from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.learning_rules import message_regression
from nip_ray.config.load import apply_overrides, config_from_dict, config_to_yaml, load_config, plain
from nip_ray.config.plugins import import_plugins
from nip_ray.config.search_rules import searching
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.errors import UserError
from nip_ray.evaluation.examine import Examination, players
from nip_ray.evaluation.report.findings import MODES
from nip_ray.evaluation.solo_run import solo_run_score
from nip_ray.evaluation.verbs.attack import attack, check_attack
from nip_ray.evaluation.verbs.instances import instances_of_networks, instances_of_text
from nip_ray.evaluation.verbs.kept_attack import can_be_kept, keep
from nip_ray.scenarios.registry import played_scenario
from nip_ray.storage.checkpoint import Checkpoint, has_checkpoint, load_checkpoint
from nip_ray.storage.folder import CONFIG, RunFolder, write_lines

_OF_TRAINING = ("interval", "greedy", "sampled", "num_transcripts")  # keys of `evaluation` without a part in `evaluate`
_OF_HELD_OUT = ("max_instances", "solo_run")
_PARTS = (
    "greedy",
    "sampled",
    "searched",
    "unseen",
    "message_regression",
    "exact",
    "figures",
    "calibration",
    "message_value",
    "worst_case",
)


@dataclass(frozen=True)
class Bench:
    """The shared parts for evaluating the checkpoints of a run. networks: agent -> a network to load weights into.
    dataset: None for the run's own held-out split. seed: of sampled actions."""

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
    instances: Path | str | None = None,
    quiet: bool = True,
) -> dict[str, Any]:
    """Flat metrics: ``eval/…`` (greedy), ``eval_sampled/…`` and ``eval_searched/…`` (greedy, against provers that
    search) as in `docs/metrics.md`, each with ``…/n`` and, where there is an interval (95 %), ``…/lower`` and
    ``…/upper``, ``unseen/…`` for the same on unseen instances where these differ, and what was evaluated: run_dir,
    iteration, dataset, num_instances, held_out, overlap, solo_baseline_by, seed. Then the parts of docs/evaluation.md:
    greedy, sampled, searched, unseen, message_regression, exact, figures, calibration, message_value, worst_case, and
    with `attacked` those of an attack (`nip_ray.evaluation.attack_table.ENTRIES`) and attack.

    dataset: a file of pairs of any readable kind (none: the run's own held-out split). checkpoint: an iteration (none:
    the newest). settings: "evaluation.key=value" in place of the run's. instances: a file for a JSON line about every
    instance. quiet: no progress line of an attack. Language models are evaluated on the stored dialogues of the last
    test; of the options only seed and some settings apply, to an attack. Needs torch only; no Ray is started. Raises
    UserError for unreadable or incompatible input, and without an agent to attack; TrainingError when an attacker's
    training fails.
    """
    folder = RunFolder.open(run_dir)
    stored = load_config(folder.path / CONFIG, checked=False)
    if isinstance(stored, TextExperimentConfig):
        found = _of_text(
            folder, stored, {"dataset": dataset, "checkpoint": checkpoint, "seed": seed}, attacked, settings, quiet
        )
        if instances is not None:
            write_lines(Path(instances), instances_of_text(folder, stored))
        return found
    config = with_settings(stored, settings)
    refuse_unused(stored, config, attacked, dataset)
    newest = newest_or(folder, checkpoint, config)
    if attacked:
        import_plugins(config.plugins)
        check_attack(config)
    made = bench(folder.path, config, dataset, seed)
    scenario, held_out, own = made.examination.scenario, made.examination.ids, made.dataset is None
    about = {"iteration": newest.iteration, "split": made.examination.split, "num_instances": len(held_out)}
    whole = len(held_out) == len(scenario.ids(made.examination.split))
    wanted = attacked and own and can_be_kept(folder, about, same_instances=whole or made.seed == config.seed)
    document = examine(made, newest, deep=True)
    if instances is not None:
        write_lines(Path(instances), instances_of_networks(made.examination, trained(made, newest)))
    figures = {**flat_figures(made, document), **parts(document)}
    if not attacked:
        return figures
    entries = attack(
        config, scenario, made.networks, made.examination.unseen_ids(), made.seed, config.evaluation.attack, quiet=quiet
    )
    if wanted:
        keep(folder, document, entries)
    return {**figures, **entries}


def parts(document: Mapping[str, Any]) -> dict[str, Any]:
    """The records of a document in the shape of `evaluation.json` that `evaluate_run` returns unchanged."""
    return {key: document[key] for key in _PARTS if key in document}


def _of_text(
    folder: RunFolder,
    config: TextExperimentConfig,
    given: Mapping[str, Any],
    attacked: bool,
    settings: Sequence[str],
    quiet: bool,
) -> dict[str, Any]:
    """The same for a run of language models. given: the options of `evaluate_run` that choose what is evaluated."""
    from nip_ray.evaluation.verbs.text_evaluate import attacked_text_run, examined_text_run, refuse_unused

    usual = config_from_dict({})
    assert isinstance(usual, ExperimentConfig)
    chosen = with_settings(usual, settings).evaluation.attack  # a language config has no key for it
    refuse_unused(given, settings, attacked)
    if attacked:
        return {"run_dir": str(folder.path), **attacked_text_run(folder, config, chosen, given["seed"], quiet)}
    document = examined_text_run(folder, config)
    about = {"run_dir": str(folder.path), **{key: document[key] for key in ("iteration", "num_instances")}}
    return {**about, **dict(_figures(document)), **parts(document)}


def with_settings(config: ExperimentConfig, settings: Sequence[str]) -> ExperimentConfig:
    """`config` overlaid with "evaluation.key=value". Raises UserError for another key or an invalid value."""
    for setting in settings:
        if setting.partition("=")[0].strip().partition(".")[0] != "evaluation":
            raise UserError(f"--set {setting}: an evaluation can change evaluation.… only")
    if not settings:
        return config
    changed = config_from_dict(apply_overrides(parse_yaml(config_to_yaml(config), CONFIG), settings))
    assert isinstance(changed, ExperimentConfig)
    if faults := [*message_regression(changed)]:
        raise UserError(*faults)
    return changed


def refuse_unused(
    stored: ExperimentConfig, config: ExperimentConfig, attacked: bool, dataset: Path | str | None
) -> None:
    """Raise UserError for a setting of `config` that differs from the run's (`stored`) and would be ignored."""
    changed = (
        change.partition("=")[0].removeprefix("evaluation.") for change in changes_of(plain(stored), plain(config))
    )
    for key in changed:
        hint = "leave it out"
        if key in _OF_TRAINING:
            why = "is of evaluations while a run trains; set it in the config of a new run"
            hint = "--instances FILE writes every instance" if key == "num_transcripts" else hint
        elif key.startswith("attack.text_") or key == "attack.enabled":
            why = (
                "has no part in an attack on networks"
                if key != "attack.enabled"
                else "is of a training's end; --attack attacks now"
            )
        elif key.startswith("attack.") and not attacked:
            why, hint = "is of an attack, which is not requested", "add --attack, or leave it out"
        elif key in _OF_HELD_OUT and dataset is not None:
            why = "is of the run's own held-out split, and --dataset is evaluated whole"
        else:
            continue
        raise UserError(f"--set evaluation.{key}: {why}; {hint}")


def newest_or(folder: RunFolder, checkpoint: int | None, config: ExperimentConfig) -> Checkpoint:
    """The checkpoint of an iteration (None: the newest). Raises UserError if there is none or it is unusable."""
    if not has_checkpoint(folder.checkpoints):
        raise UserError(
            f"{folder.path}: this run has no checkpoint to examine; `nip-ray resume` continues with it until there"
            " is one"
        )
    return load_checkpoint(folder.checkpoints, checkpoint, run_fingerprint(config))


def bench(run_dir: Path, config: ExperimentConfig, dataset: Path | str | None, seed: int | None) -> Bench:
    """The run's scenario and networks. dataset, seed: as in `evaluate_run`.

    Raises UserError for data that cannot be read.
    """
    prepare_process(config.runtime.num_threads)
    import_plugins(config.plugins)
    dataset = None if dataset is None else str(dataset)
    scenario = played_scenario(config.protocol, config.scenario, config.algorithm, dataset)
    networks = {agent: scenario.build_agent(agent, 0) for agent in scenario.protocol.agents}
    seed = config.seed if seed is None else seed
    most = config.evaluation.max_instances if dataset is None else None
    examination = Examination(scenario, seed, most, search=searching(config))
    return Bench(run_dir, config, examination, networks, dataset, seed)


def trained(made: Bench, checkpoint: Checkpoint) -> dict[str, nn.Module]:
    """Agent -> its player, with the checkpoint's weights."""
    for agent, network in made.networks.items():
        network.load_state_dict(checkpoint.tensors["training"]["modules"][agent])
    return players(made.config, made.networks)


def examine(made: Bench, checkpoint: Checkpoint, *, deep: bool = False) -> dict[str, Any]:
    """The metrics of one checkpoint with intervals, greedy and sampled, in the shape of `evaluation.json`.

    deep: include calibration, worst case and the value of messages.
    """
    networks = trained(made, checkpoint)
    settings = made.config.evaluation
    episodes = settings.worst_case_episodes if deep else None
    made.examination.alone = solo_run_score(made.config) if made.dataset is None else None
    return made.examination.document(
        networks, checkpoint.iteration, regression=settings.message_regression, episodes=episodes
    )


def flat_figures(made: Bench, document: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a document of `examine` by the keys of `docs/metrics.md`, and their subject, as `evaluate_run`
    returns them."""
    return {
        "run_dir": str(made.run_dir),
        "iteration": document["iteration"],
        "dataset": made.dataset,
        "num_instances": document["num_instances"],
        "held_out": document["held_out"],
        "overlap": document["overlap"],
        **{key: document[key] for key in ("solo_baseline_by",) if document[key] is not None},
        "seed": made.seed,
        **dict(_figures(document)),
    }


def _figures(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys as in `docs/metrics.md`; undefined values (shares of nothing) have no key."""
    yield from ((f"eval/{name}", value) for name, value in document.get("exact", {}).items())
    for name, record in document.get("figures", {}).items():
        yield from _figure(f"eval/{name}", record)
    for start, part in (("", document), ("unseen/", document.get("unseen", {}))):
        for mode, prefix in MODES.items():
            for name, record in part.get(mode, {}).items():
                yield from _figure(f"{start}{prefix}/{name}", record)
        if part.get("wl_bound") is not None:
            yield f"{start}eval/verifier/wl_bound", part["wl_bound"]
        if part.get("solo_baseline") is not None:
            yield from _figure(f"{start}eval/verifier/solo_baseline", part["solo_baseline"])
    for agent, score in document.get("message_regression", {}).items():
        yield from _figure(f"eval/{agent}/message_regression", score)


def _figure(key: str, record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A record as flat keys: the estimate, the ends of its interval if any, and n."""
    if record["estimate"] is None:
        return
    yield key, record["estimate"]
    yield from ((f"{key}/{end}", record[end]) for end in ("lower", "upper") if record[end] is not None)
    yield f"{key}/n", record["n"]
