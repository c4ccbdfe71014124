"""What a run asks of a cluster, and whether the cluster has it: said before anything waits for ever."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.errors import UserError

Bundle = dict[str, float]


def worker_bundles(config: ExperimentConfig) -> list[Bundle]:
    """What each remote env runner and each remote learner asks for."""
    play, learners = config.play, config.learners
    runner = _bundle(play.num_cpus_per_env_runner, play.num_gpus_per_env_runner)
    learner = _bundle(learners.num_cpus_per_learner, learners.num_gpus_per_learner)
    return [bundle for bundle in [runner] * play.num_env_runners + [learner] * learners.num_learners if bundle]


def trial_bundles(config: ExperimentConfig | TextExperimentConfig) -> list[Bundle]:
    """What a trial of a sweep asks for: its main process first, then its workers."""
    if isinstance(config, TextExperimentConfig):
        return [_bundle(config.runtime.num_cpus, 0)]
    local_gpus = config.learners.num_gpus_per_learner if config.learners.num_learners == 0 else 0
    return [_bundle(config.runtime.num_cpus, local_gpus), *worker_bundles(config)]


def check_cluster(bundles: Sequence[Bundle], *, autoscaling: bool = False) -> None:
    """Raise UserError when the cluster that this process is connected to can never hold all `bundles` at once.

    autoscaling: the cluster may grow, so nothing is refused.
    """
    import ray

    if not autoscaling:
        faults = missing(bundles, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        if faults:
            raise UserError(f"the cluster is too small for this config: {faults}")


def missing(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, Any]]) -> str:
    """What `nodes` (resources of each) lack for `bundles`, and what would fit, in words; empty when they fit."""
    has = {name: sum(float(node.get(name, 0)) for node in nodes) for name in ("CPU", "GPU")}
    asked = {name: sum(bundle.get(name, 0) for bundle in bundles) for name in ("CPU", "GPU")}
    lacking = [name for name in asked if asked[name] > has[name] + 1e-9]
    if lacking:
        return f"it has {_words(has)} in all, and {_words(asked)} are asked for ({_listed(bundles)}); {_mend(lacking)}"
    for bundle in bundles:
        if not any(_fits(bundle, node) for node in nodes):
            largest = _words(max(nodes, key=lambda node: (float(node.get("GPU", 0)), float(node.get("CPU", 0)))))
            return f"one process asks for {_words(bundle)}, and the largest node has {largest}; {_mend(list(bundle))}"
    if not _packs(bundles, nodes):
        parts = ", ".join(_words(node) for node in nodes)
        return f"its nodes have {parts}, over which {_listed(bundles)} cannot be spread; {_mend(['CPU'])}"
    return ""


def _bundle(cpus: float, gpus: float) -> Bundle:
    return {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount}


def _fits(bundle: Mapping[str, float], node: Mapping[str, Any]) -> bool:
    return all(amount <= float(node.get(name, 0)) + 1e-9 for name, amount in bundle.items())


def _packs(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether first fit, largest first, finds room for all; for the few kinds of bundles of a run that is as good as exact."""
    left = [{name: float(node.get(name, 0)) for name in ("CPU", "GPU")} for node in nodes]
    for bundle in sorted(bundles, key=lambda b: (b.get("GPU", 0), b.get("CPU", 0)), reverse=True):
        room = next((node for node in sorted(left, key=lambda node: node["GPU"]) if _fits(bundle, node)), None)
        if room is None:
            return False
        for name, amount in bundle.items():
            room[name] -= amount
    return True


def _words(resources: Mapping[str, Any]) -> str:
    named = [f"{float(resources[name]):g} {name}" for name in ("CPU", "GPU") if resources.get(name)]
    return " and ".join(named) or "no CPU"


def _listed(bundles: Sequence[Bundle]) -> str:
    counted = Counter(_words(bundle) for bundle in bundles)
    return ", ".join(f"{count} x {words}" if count > 1 else words for words, count in counted.items())


def _mend(lacking: Sequence[str]) -> str:
    keys = {"CPU": "play.num_env_runners, learners.num_learners or CPUs for each", "GPU": "the GPUs for each env runner and learner"}
    return f"lower {' and '.join(keys[name] for name in lacking)}, join a larger cluster, or set runtime.autoscaling where it grows"
