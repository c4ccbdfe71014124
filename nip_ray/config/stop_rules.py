"""Rules about a run that ends early."""

from collections.abc import Iterator

from nip_ray.config.experiment import ExperimentConfig


def stops(config: ExperimentConfig) -> Iterator[str]:
    """`stop` without the evaluations that it depends on."""
    if config.stop is None:
        return
    kind = "sampled" if config.stop.metric.startswith("eval_sampled/") else "greedy"
    if not getattr(config.evaluation, kind):
        yield f"stop.metric: got {config.stop.metric}, but evaluation.{kind} is false, set it to true"
    if not 0 < config.evaluation.interval < config.iterations:
        yield (
            f"evaluation.interval: got {config.evaluation.interval} of {config.iterations} iterations, so `stop` would"
            " decide nothing, expected more than 0 and fewer than iterations"
        )
