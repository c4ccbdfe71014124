"""`export_hf`: a run as two folders for the Hugging Face Hub, its models and its transcripts, each with a card.

    OUT/model/      README.md  config.yaml  evaluation.json  exported.json, and
                    manifest.json  state.json  AGENT.safetensors              of networks
                    PROVIDER/models/NAME/...                                  of language models whose weights are here
    OUT/dataset/    README.md  schema.json  data/SPLIT.parquet

Decisions that matter here:
- OUT/model is a run folder without the state for further learning: verbs on finished runs accept it (`nip-ray
  evaluate`), and give the metrics of the run, since the config makes the same data;
- a config names local files: only the last part of their paths is exported, and no settings of trackers. Data files are
  not exported, nor are the items of language models, which the config makes again or reads from files that the user
  must have;
- nothing is pickled, and weights in another form than safetensors are refused.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from nip_ray.config.changes import run_fingerprint
from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import config_to_yaml, load_config
from nip_ray.config.paths import mapped_paths
from nip_ray.config.plugins import import_plugins
from nip_ray.errors import UserError
from nip_ray.exports.hub_cards import write_dataset_card, write_model_card
from nip_ray.exports.hub_models import copy_models, with_models
from nip_ray.exports.hub_transcripts import write_transcripts
from nip_ray.settings.tracking import TrackingSettings
from nip_ray.storage.checkpoint import has_checkpoint, load_checkpoint, write_weights
from nip_ray.storage.folder import CONFIG, EXPORTED, RunFolder, write_document

MODEL, DATASET = "model", "dataset"
AnyConfig = ExperimentConfig | TextExperimentConfig
Config = TypeVar("Config", ExperimentConfig, TextExperimentConfig)


def export_hf(run_dir: Path | str, out: Path | str, checkpoint: int | None = None) -> Path:
    """Write OUT/model and OUT/dataset (the latter if the run has transcripts); returns OUT.

    out: a new or empty folder. checkpoint: an iteration of a run of networks (None: the newest). Metrics are exported
    only for the iteration of evaluation.json. Raises UserError for a run without weights, a folder that is in use or
    cannot be written, and an option that does not apply.
    """
    folder, target = RunFolder.open(run_dir), Path(out)
    if (folder.path / EXPORTED).is_file():
        raise UserError(f"{run_dir}: is an export itself, name the folder of a run")
    stored = load_config(folder.path / CONFIG, checked=False)
    if (target.is_dir() and any(target.iterdir())) or target.is_file():
        raise UserError(f"--out {out}: is not empty, name a new or empty folder")
    try:
        (target / MODEL).mkdir(parents=True)
        try:
            _write(folder, stored, target, checkpoint)
        except BaseException:
            shutil.rmtree(target / MODEL, ignore_errors=True)
            shutil.rmtree(target / DATASET, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror}), name a folder that can be") from error
    return target


def _write(folder: RunFolder, stored: AnyConfig, target: Path, checkpoint: int | None) -> None:
    model, data = target / MODEL, target / DATASET
    if isinstance(stored, ExperimentConfig):
        config, about = _write_networks(folder, stored, model, checkpoint)
    elif checkpoint is not None:
        raise UserError(
            "--checkpoint: is for runs of networks; of language models those of the last test are exported, leave"
            " it out"
        )
    else:
        config, about = _write_language_models(folder, stored, model)
    about = {**about, "plugins": [Path(name).name for name in stored.plugins]}
    documents = ("evaluation.json", "environment.json")
    evaluation, environment = (folder.read_json(name) if (folder.path / name).is_file() else {} for name in documents)
    figures = evaluation if evaluation.get("iteration") == about["iteration"] else {}
    (model / CONFIG).write_text(config_to_yaml(config), encoding="utf-8")
    if figures:
        write_document(model / "evaluation.json", figures)
    write_document(model / EXPORTED, about)
    write_model_card(model / "README.md", config, figures, about, environment)
    if splits := write_transcripts(folder, isinstance(stored, TextExperimentConfig), data):
        write_dataset_card(data / "README.md", config, splits)


def _write_networks(
    folder: RunFolder, stored: ExperimentConfig, model: Path, checkpoint: int | None
) -> tuple[ExperimentConfig, dict[str, Any]]:
    """Write the weights of a checkpoint; returns the exported config and the content of `exported.json`."""
    if not has_checkpoint(folder.checkpoints):
        raise UserError(
            f"{folder.path}: this run has no checkpoint to export; `nip-ray resume` continues with it until there"
            " is one"
        )
    found = load_checkpoint(folder.checkpoints, checkpoint, run_fingerprint(stored))
    import_plugins(stored.plugins)  # after the folder is known to be undamaged
    config, modules = portable(stored), found.tensors["training"]["modules"]
    write_weights(model, found.iteration, modules, run_fingerprint(config))
    return config, {"kind": "networks", "iteration": found.iteration, "agents": sorted(modules)}


def _write_language_models(
    folder: RunFolder, stored: TextExperimentConfig, model: Path
) -> tuple[TextExperimentConfig, dict[str, Any]]:
    """Copy the models that were tested last; returns the exported config and the content of `exported.json`."""
    kept = copy_models(folder, stored, model)
    about = {"models": kept.names, "elsewhere": kept.elsewhere, "bases": kept.bases, "files": kept.files}
    return portable(with_models(stored, kept.names)), {"kind": "language models", "iteration": kept.iteration, **about}


def portable(config: Config) -> Config:
    """`config` without local settings: folders of paths, trackers, other runs, and plugins, which are code."""
    kind = type(config)
    dumped = config.model_copy(update={"tracking": TrackingSettings(), "plugins": ()}).model_dump(mode="json")
    made = kind.model_validate(
        mapped_paths(dumped, kind, lambda sort, path, key: Path(path).name if Path(path).is_absolute() else path)
    )
    if isinstance(made, ExperimentConfig):  # other runs are not exported
        return made.model_copy(update={"evaluation": replace(made.evaluation, solo_run=None), "initial_weights": {}})
    return made.model_copy(update={"base_run": None})
