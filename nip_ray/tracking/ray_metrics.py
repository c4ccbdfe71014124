"""A run's headline metrics as metrics of Ray: for its dashboard, Prometheus, and the board in grafana/nip_ray.json.

Decisions that matter here:
- `METRICS` is the whole list: the keys of a row for each metric, with their tags. Ray adds the prefix `ray_` to each
  name, and the suffix `_total` to a counter's;
- every metric has the tags `run` (the run's id) and `name`. Further parts of a key (training or held-out, the agent)
  become tags, so that a board needs one query per metric;
- counters count within this process: after a resume they start again, as Prometheus expects of a restarted process.
  `nip_env_steps_so_far` is the number over all resumptions;
- Ray's agent only keeps the bucket counts of a histogram and estimates their sum from them. So means come from counters
  of seconds, and the histogram is for quantiles;
- a key that a row does not have leaves its gauge unchanged.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from nip_ray.tracking.base import RunInfo, Tracker, numbers

SECONDS = tuple(digit * 10.0**power for power in range(-2, 4) for digit in (1, 2, 5))
"""Upper ends of the buckets of a histogram of seconds."""

_SPLIT = r"(?P<split>train|eval|eval_sampled)"
_AGENT = r"(?P<agent>[^/]+)"


@dataclass(frozen=True)
class RayMetric:
    """kind: a histogram is of seconds. keys: a regex of whole keys of docs/metrics.md; its named groups are tags."""

    kind: Literal["gauge", "counter", "histogram"]
    keys: str
    description: str

    @property
    def tags(self) -> tuple[str, ...]:
        """The names of all tags."""
        return ("run", "name", *re.compile(self.keys).groupindex)


METRICS: dict[str, RayMetric] = {
    "nip_iteration": RayMetric("gauge", "iteration", "The newest iteration"),
    "nip_verifier_accuracy": RayMetric(
        "gauge", f"{_SPLIT}/verifier/accuracy", "Share of episodes with the right verdict"
    ),
    "nip_verifier_completeness": RayMetric(
        "gauge", f"{_SPLIT}/verifier/completeness", "Share of episodes with y = 1 that were accepted"
    ),
    "nip_verifier_soundness": RayMetric(
        "gauge", f"{_SPLIT}/verifier/soundness", "Share of episodes with y = 0 that were rejected"
    ),
    "nip_verifier_undecided": RayMetric("gauge", f"{_SPLIT}/verifier/undecided", "Share of episodes without a verdict"),
    "nip_verifier_solo_baseline": RayMetric(
        "gauge", "eval/verifier/solo_baseline", "Accuracy of the best classifier without a prover"
    ),
    "nip_episode_length": RayMetric("gauge", f"{_SPLIT}/episode_length", "Mean rounds of an episode"),
    "nip_agent_return": RayMetric("gauge", f"{_SPLIT}/{_AGENT}/return", "Mean undiscounted return of an agent"),
    "nip_agent_entropy": RayMetric("gauge", f"learn/{_AGENT}/entropy", "Entropy of an agent's actions, nats a turn"),
    "nip_agent_kl": RayMetric(
        "gauge", f"learn/{_AGENT}/kl", "Divergence of an agent from the policy that played, nats a turn"
    ),
    "nip_agent_grad_norm": RayMetric(
        "gauge", f"learn/{_AGENT}/grad_norm", "Norm of an agent's gradient before clipping"
    ),
    "nip_learning_rate": RayMetric("gauge", "learn/lr", "Base learning rate"),
    "nip_exploitability": RayMetric(
        "gauge", "eval/exploitability", "Half of what best responses to the policies would gain"
    ),
    "nip_env_steps": RayMetric("counter", "env_steps", "Rounds played by this process"),
    "nip_episodes": RayMetric("counter", "episodes", "Episodes played by this process"),
    "nip_env_steps_so_far": RayMetric("gauge", "env_steps_total", "Rounds played since the run began"),
    "nip_env_steps_per_second": RayMetric("gauge", "env_steps_per_s", "Rounds a second, over the whole iteration"),
    "nip_iteration_seconds": RayMetric("histogram", "time/iteration_s", "Seconds of an iteration"),
    "nip_seconds_in_iterations": RayMetric(
        "counter", "time/iteration_s", "Seconds that this process spent in iterations"
    ),
    "nip_seconds_sampling": RayMetric("counter", "time/sample_s", "Seconds that this process spent playing"),
    "nip_seconds_learning": RayMetric("counter", "time/learn_s", "Seconds that this process spent learning"),
    "nip_seconds_evaluating": RayMetric("counter", "time/evaluate_s", "Seconds that this process spent evaluating"),
    "nip_cost_usd": RayMetric("gauge", "cost/usd", "US dollars since the run began"),
    "nip_cost_tokens": RayMetric("gauge", "cost/tokens", "Tokens since the run began"),
}
"""Every metric by its name."""


def start(run: RunInfo) -> Tracker:
    """Metrics of `run`. Ray may be initialised later; rows before that are dropped."""
    return _RayMetrics({"run": run.run_id, "name": run.name})


class _RayMetrics(Tracker):
    def __init__(self, tags: Mapping[str, str]) -> None:
        self._tags, self._made = dict(tags), {}

    def log(self, row: Mapping[str, Any]) -> None:
        ray = sys.modules.get("ray")  # a process that never imported Ray has none, and need not load it
        if ray is None or not ray.is_initialized():
            return
        found = numbers(row)
        for name, metric in METRICS.items():
            for key, value in found.items():
                if match := re.fullmatch(metric.keys, key):
                    self._record(name, metric, float(value), {**self._tags, **match.groupdict()})

    def _record(self, name: str, metric: RayMetric, value: float, tags: dict[str, str]) -> None:
        if name not in self._made:
            from ray.util.metrics import Counter, Gauge, Histogram

            kind = {"gauge": Gauge, "counter": Counter, "histogram": partial(Histogram, boundaries=list(SECONDS))}[
                metric.kind
            ]
            self._made[name] = kind(name, metric.description, tag_keys=metric.tags)
        made = self._made[name]
        if metric.kind == "gauge":
            made.set(value, tags=tags)
        elif metric.kind == "histogram":
            made.observe(value, tags=tags)
        elif value > 0:
            made.inc(value, tags=tags)
