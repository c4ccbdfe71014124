"""Play a run's agents on every instance of a split once, greedily or with sampled actions."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.learning_rules import value_learners
from nip_ray.evaluation.calibration import calibration
from nip_ray.evaluation.enumerated import as_exact, distinct_part
from nip_ray.evaluation.intervals import Mean, proportion, ratio
from nip_ray.evaluation.message_regression import message_regression
from nip_ray.evaluation.message_value import message_value
from nip_ray.evaluation.metrics import evaluation_record, rollout_metrics, symbol_distance, worst_case
from nip_ray.evaluation.solo_run import Score
from nip_ray.learning.dqn import GreedyPlayer
from nip_ray.play.core import BatchedPlay, Player, episode_seeds, instance_ids, play_episodes
from nip_ray.play.lookahead import lookahead
from nip_ray.play.panels import VERDICT, judged
from nip_ray.play.rollout import Rollout, concatenate
from nip_ray.play.scenario import Scenario
from nip_ray.play.staged import stage_all
from nip_ray.seeding import generator, stable_seed
from nip_ray.settings.dqn import DQNSettings
from nip_ray.settings.experiment import MessageRegressionSettings
from nip_ray.settings.search import SearchSettings

_BATCH = 512  # copies at once: keeps memory flat on large splits
FITTED = "fitted classifier"
_NO_REGRESSION = MessageRegressionSettings()


def players(config: ExperimentConfig, networks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Agent -> its player: its network, or the best move by its values under deep Q-learning."""
    if not isinstance(config.algorithm, DQNSettings):
        return dict(networks)
    learned = value_learners(config, tuple(networks))
    return {agent: GreedyPlayer(network) if agent in learned else network for agent, network in networks.items()}


class Examination:
    """The examined instances, in a fixed order, and how they are played.

    alone: the scores of a verifier trained alone, if that was measured on this split (`solo_run_score`).
    """

    alone: tuple[Score, Score | None] | None = None

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        max_instances: int | None = None,
        split: str = "test",
        search: tuple[SearchSettings, tuple[str, ...]] | None = None,
    ) -> None:
        """max_instances: a seeded sample of the split instead of all of it. search: how provers search, and which
        (None: no search)."""
        self.scenario, self.seed, self.split, self.search = scenario, seed, split, search
        count = len(scenario.ids(split))
        if max_instances is not None and max_instances < count:
            self.ids = instance_ids(scenario, split, stable_seed(seed, "examination"), 0, max_instances)
        else:
            self.ids = scenario.ids(split).cpu()
        self.play = BatchedPlay(scenario, str(scenario.label_I.device))
        self.distinct = distinct_part(scenario, self.ids)

    def rollout(
        self, networks: Mapping[str, nn.Module], greedy: bool, repeat: int = 0, searched: bool = False
    ) -> Rollout:
        """Play every instance once. `repeat` picks other random numbers for sampled actions and episode seeds.
        searched: provers search."""
        mode = {agent: network.training for agent, network in networks.items()}
        for network in networks.values():
            network.eval()
        noise = None if greedy else generator(self.seed, "examination", repeat, device=self.play.device)
        seed_I = episode_seeds(stable_seed(self.seed, "examination", repeat), 0, len(self.ids))
        parts = []
        own = {agent: Player(network, noise) for agent, network in networks.items()}
        for i in range(0, len(self.ids), _BATCH):
            id_B, seed_B, search = self.ids[i : i + _BATCH], seed_I[i : i + _BATCH], None
            if searched and self.search is not None:
                search = lookahead(self.play, *self.search, 1.0, len(id_B), self.seed, repeat, i)
            parts.append(play_episodes(self.play, own, id_B, seed_B, search=search))
        for agent, network in networks.items():
            network.train(mode[agent])
        return concatenate(parts)

    def metrics(self, rollout: Rollout, prefix: str) -> dict[str, float]:
        """Flat metrics of a rollout under ``prefix/``, with the accuracy without a prover where it is known."""
        found = rollout_metrics(self.scenario.protocol, rollout, self.scenario.group_I())
        figures = {f"{prefix}/{name}": value for name, value in found.items()}
        said = symbol_distance(self.scenario, rollout)
        if said is not None:
            figures[f"{prefix}/simulator/symbol_distance"] = said[0]
        bound, (baseline, _) = self.scenario.wl_bound(self.ids), self.baseline()
        if bound is not None:
            figures["eval/verifier/wl_bound"] = bound
        if baseline is not None:
            figures["eval/verifier/solo_baseline"] = baseline[0] / baseline[1]
        return figures

    def baseline(self) -> tuple[tuple[int, int] | None, str | None]:
        """((judged rightly, instances) without a prover, source): the better of the scenario's and `alone`."""
        return self._better(self.ids, None if self.alone is None else self.alone[0])

    def _better(self, ids: torch.Tensor, alone: Score | None) -> tuple[Score | None, str | None]:
        fitted = self.scenario.solo_baseline(ids)
        if fitted is not None and alone is not None and alone[0] / alone[1] > fitted[0] / fitted[1]:
            return alone, "verifier trained alone"
        return fitted, None if fitted is None else FITTED

    def trained_with(self) -> torch.Tensor | None:
        """(B,) bool: which instances are also training instances; None if this is unknown, or all are by the task."""
        found_I = self.scenario.occurring() if self.split == "test" and self.scenario.held_out else None
        if found_I is None:
            return None
        place_I = {int(id): place for place, id in enumerate(self.scenario.ids("test").tolist())}
        return found_I[[place_I[int(id)] for id in self.ids.tolist()]].cpu()

    def unseen_ids(self) -> torch.Tensor:
        """The instances that are not training instances, if only some are; else all."""
        return self.ids if (kept_K := _apart(self.trained_with())) is None else self.ids[kept_K]

    def exact(self, networks: Mapping[str, nn.Module]) -> dict[str, float]:
        """``eval/<name>`` of the scenario's exact metrics and own games; see `Scenario.exact_figures`, `figures`."""
        found = {f"eval/{name}": value for name, value in self.scenario.exact_figures(networks).items()}
        played = ((f"eval/{name}", record["estimate"]) for name, record in self.played(networks).items())
        return {**found, **{key: value for key, value in played if value is not None}}

    def played(self, networks: Mapping[str, nn.Module]) -> dict[str, dict[str, float | int | None]]:
        """Metrics of the scenario's own games, with intervals; see `Scenario.figures`."""
        return {name: ratio(*sample).record() for name, sample in self.scenario.figures(networks).items()}

    def record(self, rollout: Rollout) -> dict[str, dict[str, float | int | None]]:
        """The metrics of a rollout with intervals."""
        found = evaluation_record(self.scenario.protocol, rollout, self.scenario.group_I())
        said = symbol_distance(self.scenario, rollout)
        if said is not None:  # of all episodes together, so there is no spread to make an interval of
            found["simulator/symbol_distance"] = {"estimate": said[0], "lower": None, "upper": None, "n": said[1]}
        return found

    def regression(
        self, networks: Mapping[str, nn.Module], settings: MessageRegressionSettings, rollout: Rollout | None = None
    ) -> dict[str, Mean]:
        """Agent -> its label prediction by its first message; {} unless requested. rollout: sampled (None: play)."""
        if not settings.enabled:
            return {}
        return message_regression(
            self.scenario, self.rollout(networks, greedy=False) if rollout is None else rollout, settings, self.seed
        )

    def depth(
        self, networks: Mapping[str, nn.Module], episodes: int, parts: Sequence[torch.Tensor]
    ) -> list[dict[str, Any]]:
        """Further metrics of a verifier: `worst_case` of `episodes` sampled episodes, `calibration`, `message_value`.

        docs/evaluation.md has their layout. For each of `parts` (places among the instances); {} in a game without a
        verifier. For a panel: of its verdict, and under "deciders" of each member.
        """
        protocol = self.scenario.protocol
        if protocol.verifier is None:
            return [{} for _ in parts]
        seed_B = episode_seeds(stable_seed(self.seed, "examination", 0), 0, len(self.ids))
        staged = stage_all(self.play, {agent: Player(network) for agent, network in networks.items()}, self.ids, seed_B)
        rollouts = [self.rollout(networks, greedy=False, repeat=repeat) for repeat in range(episodes)]
        made = []
        for place_K in parts:
            sampled = [judged(protocol, rollout.copies(place_K)) for rollout in rollouts]
            by: dict[str, dict[str, Any]] = {}
            for who, part in staged.copies(place_K).by(protocol).items():
                right_K = part.rollout.verdict_B == part.rollout.y_B
                by[who] = found = {"calibration": as_exact(calibration(part, self.seed), self.distinct)}
                if value := message_value(
                    self.play, networks, self.ids[place_K], seed_B[place_K], right_K, self.seed, who
                ):
                    greedy = {
                        way: as_exact(value[way], self.distinct)
                        for way in value.keys() & {"heard", "silenced", "without"}
                    }
                    found["message_value"] = {way: greedy.get(way, record) for way, record in value.items()}
                if rollouts:
                    found["worst_case"] = worst_case(
                        protocol, [seen[who] for seen in sampled], self.scenario.group_I(), who
                    )
            made.append({**by.pop(VERDICT), **({"deciders": by} if by else {})})
        return made

    @torch.no_grad()
    def document(
        self,
        networks: Mapping[str, nn.Module],
        iteration: int,
        greedy: bool = True,
        sampled: bool = True,
        regression: MessageRegressionSettings = _NO_REGRESSION,
        episodes: int | None = None,
    ) -> dict[str, Any]:
        """The content of `evaluation.json`: metrics with intervals for greedy and sampled play and against searching
        provers, and exact ones in a game that has them.

        episodes: add the metrics of `depth` over so many episodes (None: leave them out).
        """
        baseline, by = self.baseline()
        trained_B = self.trained_with()
        overlap = None if trained_B is None else int(trained_B.sum())
        document: dict[str, Any] = {
            "iteration": iteration,
            "split": self.split,
            "num_instances": len(self.ids),
            "held_out": self.scenario.held_out and not overlap,
            "overlap": overlap,
            "wl_bound": self.scenario.wl_bound(self.ids),
            "solo_baseline": None if baseline is None else proportion(*baseline).record(),
            "solo_baseline_by": by,
        }
        rollouts = {"greedy": self.rollout(networks, greedy=True)} if greedy else {}
        if sampled:
            rollouts["sampled"] = self.rollout(networks, greedy=False)
        if self.search is not None:
            rollouts["searched"] = self.rollout(networks, greedy=True, searched=True)
        document |= {mode: self.record(rollout) for mode, rollout in rollouts.items()}
        if "greedy" in document:
            document["greedy"] = as_exact(document["greedy"], self.distinct)
        if (kept_K := _apart(trained_B)) is not None:
            baseline, by = self._better(self.ids[kept_K], None if self.alone is None else self.alone[1])
            document["unseen"] = {
                "wl_bound": self.scenario.wl_bound(self.ids[kept_K]),
                "solo_baseline": None if baseline is None else proportion(*baseline).record(),
                "solo_baseline_by": by,
                **{mode: self.record(rollout.copies(kept_K)) for mode, rollout in rollouts.items()},
            }
        rollout = rollouts.get("sampled")
        if scores := self.regression(networks, regression, rollout):
            document["message_regression"] = {agent: score.record() for agent, score in scores.items()}
        if exact := self.scenario.exact_figures(networks):
            document["exact"] = exact
        if played := self.played(networks):
            document["figures"] = played
        if episodes is not None:
            whole, *apart = self.depth(
                networks, episodes, [torch.arange(len(self.ids)), *([] if kept_K is None else [kept_K])]
            )
            document |= whole
            for found in apart:
                document["unseen"] |= found
        return document


def _apart(trained_B: torch.Tensor | None) -> torch.Tensor | None:
    """The places of the instances that are not training instances; None where all are, none is, or it is unknown."""
    return (
        None
        if trained_B is None or bool(trained_B.all()) or not bool(trained_B.any())
        else (~trained_B).nonzero().flatten()
    )
