"""`PastAgents`: earlier versions of language agents as opponents: their place in dialogues, and their weights.

Decisions that matter here:
- in a dialogue against the past one agent learns, and all other learners use one snapshot;
- dialogues of a group are about one item and against the same opponents, so that returns are comparable;
- win rates are over all roles that a protocol draws: the draw is independent of the opponent, so every snapshot meets
  each role equally often;
- a snapshot is a folder with a file for each model that learns, of its learned weights: all, or adapters. It is written
  once. Checkpoints name it, so it stays as long as any of them may be resumed from;
- one set of earlier weights per model is in memory, loaded when a snapshot is met: a model that never takes a step.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.errors import UserError
from nip_ray.play.dialogue import Dialogue
from nip_ray.play.opponent_pool import OpponentPool
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.settings.opponents import OpponentSettings
from nip_ray.storage.files import sync, written_aside
from nip_ray.text.dialogues.runner import Task
from nip_ray.text.training.policies import Policy, model_for

FOLDER = "past"
"""In the run folder: the snapshots."""


class PastAgents:
    """The opponents of a run."""

    def __init__(self, config: TextExperimentConfig, settings: OpponentSettings, run_dir: Path) -> None:
        learners = [agent for agent, own in language_agents(config).items() if not own.frozen]
        self.config, self.run_dir = config, run_dir
        self.pool, self.folder = OpponentPool(settings, config.seed), run_dir / FOLDER
        self.meet = [agent for agent in learners if settings.agents is None or agent in settings.agents]
        self.opponents = [agent for agent in learners if any(agent != other for other in self.meet)]
        self.groups = [
            group for group, members in groups(config).items() if any(agent in self.opponents for agent in members)
        ]
        self._models: dict[str, PolicyModel] = {}
        self._dropped: dict[int, int] = {}  # snapshot -> the iteration after which it left the pool

    def arranged(self, tasks: Sequence[Task], learning: Sequence[str], iteration: int) -> list[Task]:
        """Tasks of an iteration, one per item, the last of them with opponents from the past. learning: learners."""
        blocks = self.pool.blocks([agent for agent in self.meet if agent in learning], len(tasks), iteration)
        pasts = [
            {agent: block.snapshot for agent in self.opponents if agent != block.agent}
            for block in blocks
            for _ in range(block.episodes)
        ]
        first = len(tasks) - len(pasts)
        return [*tasks[:first], *(replace(task, past=past) for task, past in zip(tasks[first:], pasts, strict=True))]

    def load(self, snapshot: int) -> Mapping[str, PolicyModel]:
        """Group -> its model with the weights of a snapshot, until the next is loaded. Raises UserError if they cannot
        be read."""
        for group in self.groups:
            if group not in self._models:
                self._models[group] = model_for(self.config, group, self.run_dir)
            self._models[group].take(snapshot_weights(self.run_dir, snapshot, group))
        return self._models

    def take(self, iteration: int, models: Mapping[str, Policy]) -> None:
        """Write a snapshot if one is due. models: all that learn, by group."""
        from safetensors.torch import save_file

        if not self.pool.due(iteration):
            return
        folder = self.folder / f"{iteration:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        for group, model in models.items():
            with written_aside(folder / f"{group}.safetensors") as aside:
                save_file(dict(model.weights()), aside)
        sync(self.folder)
        self._dropped |= dict.fromkeys(self.pool.add(iteration), iteration)

    def record(self, tasks: Sequence[Task], dialogues: Sequence[Dialogue]) -> dict[str, Any]:
        """Record the dialogues of an iteration; return metrics, see docs/metrics.md."""
        met: dict[str, dict[int, list[float]]] = {}
        for agent in self.meet:
            self.pool.saw(
                agent, [dialogue.total(agent) for task, dialogue in zip(tasks, dialogues, strict=True) if not task.past]
            )
            for task, dialogue in zip(tasks, dialogues, strict=True):
                if task.snapshot is not None and agent not in task.past:
                    met.setdefault(agent, {}).setdefault(task.snapshot, []).append(dialogue.total(agent))
        return self.pool.record_all(met)

    def state(self) -> dict[str, Any]:
        """Everything but the weights, as plain JSON."""
        return {"pool": self.pool.state(), "dropped": {str(number): after for number, after in self._dropped.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.pool.load_state(state["pool"])
        self._dropped = {int(number): after for number, after in state["dropped"].items()}

    def tidy(self, oldest: int) -> None:
        """Remove the snapshots that had left the pool by the iteration of the oldest kept checkpoint."""
        for snapshot in [number for number, after in self._dropped.items() if after <= oldest]:
            shutil.rmtree(self.folder / f"{snapshot:06d}", ignore_errors=True)
            del self._dropped[snapshot]


def kept_snapshots(run_dir: Path, learning: Sequence[str]) -> list[int]:
    """The snapshots in a run's folder with weights of all these groups, oldest first."""
    found = (run_dir / FOLDER).glob("[0-9]*")
    return sorted(
        int(folder.name) for folder in found if all((folder / f"{group}.safetensors").is_file() for group in learning)
    )


def snapshot_weights(run_dir: Path, snapshot: int, group: str) -> dict[str, Any]:
    """`PolicyModel.weights` of a group in a snapshot. Raises UserError if they are missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = run_dir / FOLDER / f"{snapshot:06d}" / f"{group}.safetensors"
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise UserError(f"{path} {reason}; go back to a copy of the run folder, or start a new run") from None
