"""Examining agents on the instances of a split: every instance once, with the most likely actions or with sampled ones."""

from collections.abc import Mapping

import torch
from torch import nn

from nip_ray.evaluation.metrics import evaluation_record, rollout_metrics
from nip_ray.play.core import BatchedPlay, episode_seeds, instance_ids, play_rollout
from nip_ray.play.rollout import Rollout, concatenate
from nip_ray.play.scenario import Scenario
from nip_ray.seeding import generator, stable_seed

_BATCH = 512  # copies at once: keeps memory flat on large splits


class Examination:
    """The instances that are asked, in a fixed order, and how they are played."""

    def __init__(self, scenario: Scenario, seed: int, max_instances: int | None = None, split: str = "test") -> None:
        """max_instances: a seeded sample of the split instead of all of it."""
        self.scenario, self.seed, self.split = scenario, seed, split
        count = len(scenario.ids(split))
        if max_instances is not None and max_instances < count:
            self.ids = instance_ids(scenario, split, stable_seed(seed, "examination"), 0, max_instances)
        else:
            self.ids = scenario.ids(split).cpu()
        self.play = BatchedPlay(scenario, str(scenario.label_I.device))

    def rollout(self, networks: Mapping[str, nn.Module], greedy: bool, repeat: int = 0) -> Rollout:
        """Every instance once. `repeat` picks other random numbers for sampled actions and episode seeds."""
        mode = {agent: network.training for agent, network in networks.items()}
        for network in networks.values():
            network.eval()
        noise = None if greedy else generator(self.seed, "examination", repeat, device=self.play.device)
        seed_I = episode_seeds(stable_seed(self.seed, "examination", repeat), 0, len(self.ids))
        parts = []
        for i in range(0, len(self.ids), _BATCH):
            parts.append(play_rollout(self.play, networks, self.ids[i : i + _BATCH], seed_I[i : i + _BATCH], noise))
        for agent, network in networks.items():
            network.train(mode[agent])
        return concatenate(parts)

    def metrics(self, rollout: Rollout, prefix: str) -> dict[str, float]:
        """Flat figures of a rollout under ``prefix/``, with ``eval/verifier/wl_ceiling``, one for greedy and sampled, where it is known."""
        found = rollout_metrics(self.scenario.protocol, rollout, self.scenario.group_I())
        figures = {f"{prefix}/{name}": value for name, value in found.items()}
        ceiling = self.scenario.ceiling(self.split)
        return figures if ceiling is None else {**figures, "eval/verifier/wl_ceiling": ceiling}

    def record(self, rollout: Rollout) -> dict[str, dict[str, float | int | None]]:
        """The figures of a rollout with intervals."""
        return evaluation_record(self.scenario.protocol, rollout, self.scenario.group_I())

    @torch.no_grad()
    def document(self, networks: Mapping[str, nn.Module], iteration: int, greedy: bool = True, sampled: bool = True) -> dict[str, object]:
        """What `evaluation.json` holds: figures with intervals for greedy and sampled play."""
        document: dict[str, object] = {
            "iteration": iteration,
            "split": self.split,
            "num_instances": len(self.ids),
            "wl_ceiling": self.scenario.ceiling(self.split),
        }
        if greedy:
            document["greedy"] = self.record(self.rollout(networks, greedy=True))
        if sampled:
            document["sampled"] = self.record(self.rollout(networks, greedy=False))
        return document
