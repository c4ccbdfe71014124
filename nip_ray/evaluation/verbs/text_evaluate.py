"""What `evaluate_run` says of a run of language models: the figures of its last test, and the attack on the models that it ended with.

Nothing is asked of a model for the figures: the dialogues of the last test are in the run folder (an export has none, and plays them). So
they cannot be of other items, of an earlier iteration or with another seed, which is refused. Of an attack a few settings count, and the
others are refused as well.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.plugins import import_plugins
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.kept_attack import can_be_kept, keep
from nip_ray.evaluation.verbs.text_attack import SEARCHES, attack_text_run
from nip_ray.protocols import from_settings
from nip_ray.settings.attack import AttackSettings
from nip_ray.storage.folder import EXPORTED, RunFolder

_SETTINGS = tuple(f"evaluation.attack.{name}" for name in ("goals", "max_instances", "text_iterations", *SEARCHES))


def text_document(run_dir: Path, config: TextExperimentConfig) -> dict[str, Any] | None:
    """The figures of the newest stored test, as `evaluation.json` has them; None of a run that has tested nothing.

    Raises UserError for a damaged file.
    """
    from nip_ray.scenarios.language import language_kind
    from nip_ray.text.items import stored_items
    from nip_ray.text.training.metrics import last_test

    kind = language_kind(config.scenario)
    items = {item.id: item for item in (stored_items(run_dir, kind) or {}).get("test", [])}
    return last_test(run_dir, config.iterations, items, from_settings(config.protocol), kind)


def examined_text_run(folder: RunFolder, config: TextExperimentConfig) -> dict[str, Any]:
    """`text_document`; of an export, whose models play the test again. Raises UserError where there is no test as well."""
    import_plugins(config.plugins)
    if (folder.path / EXPORTED).is_file():
        from nip_ray.evaluation.verbs.text_replay import replayed_test

        return replayed_test(folder, config)
    document = text_document(folder.path, config)
    if document is None:
        raise UserError(
            f"{folder.path}: this run has no test dialogues to examine; algorithm.test_scheme or evaluate_every says when there are some"
        )
    return document


def attacked_text_run(
    folder: RunFolder, config: TextExperimentConfig, settings: AttackSettings, seed: int | None, quiet: bool
) -> dict[str, Any]:
    """The entries of an attack on the last models of a run, which are kept in its evaluation.json. seed: of all draws (None: the run's)."""
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
    """Raises UserError for what would be ignored. given: option of `evaluate_run` -> its value; settings: "evaluation.key=value"."""
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
