"""`export_inspect`: the stored test of a run of language models as an Inspect log, for `inspect view` and readers."""

from pathlib import Path

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.config.plugins import import_plugins
from nip_ray.errors import UserError, require
from nip_ray.exports.game import tested_iteration
from nip_ray.storage.folder import CONFIG, EXPORTED, RunFolder

SUFFIXES = (".eval", ".json")


def export_inspect(run_dir: Path | str, out: Path | str | None = None, iteration: int | None = None) -> Path:
    """Write the dialogues of a test of a run; returns the file.

    out: a file that ends in .eval or .json (none: RUN_DIR/inspect/NAME_ITERATION.eval), which is replaced. iteration:
    that was tested (none: the last one, as in `evaluation.json`). Raises UserError for a run of networks, one without
    such a test, and a file that cannot be written or read.
    """
    folder = RunFolder.open(run_dir)
    config = load_config(folder.path / CONFIG, checked=False)
    if not isinstance(config, TextExperimentConfig):
        raise UserError(
            f"{run_dir}: its agents are networks, and Inspect's logs are of language models; `nip-ray export hf`"
            " takes it"
        )
    require("inspect_ai", "inspect")
    import_plugins(config.plugins)
    if (folder.path / EXPORTED).is_file():
        raise UserError(f"{run_dir}: is an export, which holds no dialogues of a test; name the run")
    chosen = tested_iteration(folder.path, config, iteration)
    target = folder.path / "inspect" / f"{config.name}_{chosen:06d}.eval" if out is None else Path(out)
    if target.suffix not in SUFFIXES:
        raise UserError(f"--out {target}: name a file that ends in {' or '.join(SUFFIXES)}")
    from inspect_ai.log import write_eval_log

    from nip_ray.exports.inspect_samples import log_of

    log = log_of(folder, config, chosen)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_eval_log(log, str(target))
    except OSError as error:
        raise UserError(
            f"--out {target}: cannot be written ({error.strerror}), name a file in a folder that can be"
        ) from error
    return target
