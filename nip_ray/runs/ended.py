"""Runs that are finished under their present config: nothing is left to be done."""

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import config_to_yaml
from nip_ray.progress import say
from nip_ray.storage.folder import RunFolder
from nip_ray.storage.identity import ExperimentResult, is_finished


def ended_run(folder: RunFolder, config: ExperimentConfig | TextExperimentConfig, quiet: bool) -> ExperimentResult | None:
    """What a run came to that is finished under its present config, which is said; None where something is left to be done."""
    if not is_finished(folder) or config_to_yaml(config) != folder.config_yaml():
        return None
    if not quiet:
        say(f"{folder.path}: the run is finished, all {config.iterations} iterations are done; --iterations adds more")
    return ExperimentResult(folder.path, folder.figures(), config.iterations)
