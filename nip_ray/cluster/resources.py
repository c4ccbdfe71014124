"""The resources that a run requires of a cluster, checked before anything waits indefinitely."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents, speaking_providers
from nip_ray.errors import UserError
from nip_ray.settings.policy_gradient import TokenTrainingSettings

Bundle = dict[str, float]
_KEYS = {
    "CPU": "play.num_env_runners, learners.num_learners or CPUs for each",
    "GPU": "the GPUs for each env runner and learner",
}
TOKEN_KEYS = {
    "CPU": "algorithm.num_rollout_workers, algorithm.num_learners or num_cpus of the providers",
    "GPU": "num_gpus of the providers",
}
"""Resource -> the keys that determine it, for a run whose agents learn from their tokens."""
_ROUNDING = 1e-9  # shares such as 0.1 and 0.3 are not exact


def worker_bundles(config: ExperimentConfig) -> list[Bundle]:
    """The resources of each remote env runner and each remote learner."""
    play, learners = config.play, config.learners
    runner = _bundle(play.num_cpus_per_env_runner, play.num_gpus_per_env_runner)
    learner = _bundle(learners.num_cpus_per_learner, learners.num_gpus_per_learner)
    return [bundle for bundle in [runner] * play.num_env_runners + [learner] * learners.num_learners if bundle]


def trial_bundles(config: ExperimentConfig | TextExperimentConfig) -> list[Bundle]:
    """The resources of a trial of a sweep: its main process first, then its workers."""
    if isinstance(config, TextExperimentConfig):
        return _text_bundles(config)
    local_gpus = config.learners.num_gpus_per_learner if config.learners.num_learners == 0 else 0
    return [_bundle(config.runtime.num_cpus, local_gpus), *worker_bundles(config)]


def _text_bundles(config: TextExperimentConfig) -> list[Bundle]:
    """The main process first, then its actors; CPUs and GPUs of each.

    Raises UserError for a fine-tuning by several workers.
    """
    if isinstance(rule := config.algorithm, TokenTrainingSettings):
        computes = not (rule.num_rollout_workers and rule.num_learners)
        own = worker_bundle(config) if computes else {}
        return [_bundle(max(config.runtime.num_cpus, own.get("CPU", 0)), own.get("GPU", 0)), *token_actors(config)]
    talk, made = config.talk, [{"CPU": config.runtime.num_cpus}]
    made += [{"CPU": talk.num_cpus_per_talker}] * talk.num_talkers
    for name, provider in speaking_providers(config).items():
        if provider.training_workers:
            asked = f"providers.{name}: got {provider.training_workers} workers for fine-tuning"
            raise UserError(
                f"{asked}, but in a trial of a sweep one process fine-tunes; ask for 1, or run the settings one by one"
            )
        made += provider.actors
    wanted = ({kind: amount for kind, amount in bundle.items() if amount} for bundle in made)
    return [bundle for bundle in wanted if bundle]


def token_actors(config: TextExperimentConfig) -> list[Bundle]:
    """CPUs and GPUs of the actors that learn each model, and of those that play, for agents that learn from tokens."""
    rule, settings = config.algorithm, language_agents(config)
    assert isinstance(rule, TokenTrainingSettings)
    first = [settings[agents[0]] for agents in groups(config).values()]
    learned = [config.providers[agent.provider] for agent in first if not agent.frozen]
    made = [_most(provider.actors) for provider in learned for _ in range(rule.num_learners)]
    return [bundle for bundle in (*made, *[worker_bundle(config)] * rule.num_rollout_workers) if bundle]


def worker_bundle(config: TextExperimentConfig) -> Bundle:
    """The resources of a process with all models: the maximum over their providers."""
    return _most([bundle for provider in speaking_providers(config).values() for bundle in provider.actors])


def check_cluster(
    bundles: Sequence[Mapping[str, float]], *, autoscaling: bool = False, keys: Mapping[str, str] = _KEYS
) -> None:
    """Raise UserError if the cluster that this process is connected to can never hold all `bundles` at once.

    autoscaling: the cluster may grow, so nothing is refused. keys: the keys to lower, for each resource.
    """
    import ray

    if not autoscaling:
        faults = missing(bundles, [node["Resources"] for node in ray.nodes() if node["Alive"]], keys)
        if faults:
            raise UserError(f"the cluster is too small for this config: {faults}")


def missing(
    bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, Any]], keys: Mapping[str, str] = _KEYS
) -> str:
    """The shortage of `nodes` (resources) for `bundles`, and what would fit, in words; "" if none. keys: to lower."""
    has = {name: sum(float(node.get(name, 0)) for node in nodes) for name in ("CPU", "GPU")}
    asked = {name: sum(bundle.get(name, 0) for bundle in bundles) for name in ("CPU", "GPU")}
    fitting = _fitting(bundles, nodes)
    lacking = [name for name in asked if asked[name] > has[name] + _ROUNDING]
    if lacking:
        wanted = f"{_words(asked)} are requested ({_listed(bundles)})"
        return (
            f"it has {_words(has)} in all, and {wanted}, of which {_counted(fitting, len(bundles))};"
            f" {_mend(lacking, keys)}"
        )
    for bundle in bundles:
        if not any(_holds([bundle], node) for node in nodes):
            largest = _words(max(nodes, key=lambda node: (float(node.get("GPU", 0)), float(node.get("CPU", 0)))))
            return (
                f"one process requests {_words(bundle)}, and the largest node has {largest};"
                f" {_mend(list(bundle), keys)}"
            )
    if fitting < len(bundles):
        parts = ", ".join(_words(node) for node in nodes)
        short = ["GPU"] if any(bundle.get("GPU") for bundle in bundles) else ["CPU"]
        return (
            f"its nodes have {parts}, and of {_listed(bundles)} {_counted(fitting, len(bundles))}; {_mend(short, keys)}"
        )
    return ""


def _most(bundles: Sequence[Mapping[str, float]]) -> Bundle:
    return _bundle(*(max((bundle.get(kind, 0) for bundle in bundles), default=0) for kind in ("CPU", "GPU")))


def _bundle(cpus: float, gpus: float) -> Bundle:
    return {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount}


def _fitting(bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, Any]]) -> int:
    """The maximum number of bundles that the nodes can hold at once: exact, since a run requires few kinds of them.

    Goes from node to node with the maximal vectors of numbers of each kind that can be placed so far.
    """
    counted = Counter(tuple(sorted(bundle.items())) for bundle in bundles)
    kinds, most = [dict(kind) for kind in counted], tuple(counted.values())
    placed = {(0,) * len(kinds)}
    known: dict[str, set[tuple[int, ...]]] = {}  # of equal nodes
    for node in nodes:
        alike = _words(node)
        choices = known[alike] = known.get(alike) or _choices(kinds, most, node)
        placed = _largest(
            {tuple(map(min, zip(map(sum, zip(so_far, more)), most))) for so_far in placed for more in choices}
        )
    return max(map(sum, placed))


def _choices(
    kinds: Sequence[Mapping[str, float]], most: Sequence[int], node: Mapping[str, Any]
) -> set[tuple[int, ...]]:
    """The numbers of each kind that a node can hold together; the maximal ones."""
    found: list[list[int]] = [[]]
    for i, kind in enumerate(kinds):
        held = [(so_far, [kinds[j] for j, count in enumerate(so_far) for _ in range(count)]) for so_far in found]
        found = [
            [*so_far, count]
            for so_far, others in held
            for count in takewhile(
                lambda n, others=others, kind=kind: _holds([*others, *[kind] * n], node), range(most[i] + 1)
            )
        ]
    return _largest(set(map(tuple, found)))


def _largest(vectors: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """The vectors that no other one exceeds or equals in all places."""
    return {v for v in vectors if not any(v != w and all(a <= b for a, b in zip(v, w)) for w in vectors)}


def _holds(bundles: Sequence[Mapping[str, float]], node: Mapping[str, Any]) -> bool:
    """True if a node can hold all of them at once. A share is of one GPU, so two cannot hold three of 0.6."""
    if sum(bundle.get("CPU", 0) for bundle in bundles) > float(node.get("CPU", 0)) + _ROUNDING:
        return False
    left = [1.0] * int(float(node.get("GPU", 0)))
    for amount in sorted((bundle["GPU"] for bundle in bundles if "GPU" in bundle), reverse=True):
        at = next((i for i, share in enumerate(left) if amount <= share + _ROUNDING), None)
        if amount > 1 and amount <= len(left):
            left = left[math.ceil(amount) :]  # whole ones come first, before any is partly used
        elif at is None:
            return False
        else:
            left[at] -= amount
    return True


def _counted(fitting: int, total: int) -> str:
    return f"{fitting} of {total} processes fit" if fitting else "not one process fits"


def _words(resources: Mapping[str, Any]) -> str:
    named = [f"{float(resources[name]):g} {name}" for name in ("CPU", "GPU") if resources.get(name)]
    return " and ".join(named) or "no CPU"


def _listed(bundles: Sequence[Mapping[str, float]]) -> str:
    counted = Counter(_words(bundle) for bundle in bundles)
    return ", ".join(f"{count} x {words}" if count > 1 else words for words, count in counted.items())


def _mend(lacking: Sequence[str], keys: Mapping[str, str]) -> str:
    return (
        f"lower {' and '.join(keys[name] for name in lacking)}, join a larger cluster, or set runtime.autoscaling where"
        " it grows"
    )
