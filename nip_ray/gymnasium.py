"""One agent's seat in a protocol as an ordinary Gymnasium environment; the others are frozen agents of a run.

    import gymnasium, nip_ray.gymnasium
    env = gymnasium.make("nip_ray/Seat-v0", run_dir="runs/first", agent="prover", label=0)

The return of a learner in it is a lower bound for a best response against the run's other agents. Importing this module
registers the id.

Decisions that matter here:
- a step is one turn of the seat: the others play until its next one, and its reward is the sum since then;
- episodes without a turn of the seat are skipped. Rewards before its first turn are added to its first reward;
- the agent in that seat in the run, and whether it ever learned, are irrelevant.
"""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from nip_ray.config.load import load_stored_config
from nip_ray.environments.experiment import playable
from nip_ray.environments.single import Arrays, SinglePlay, action_space, mask_space
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.evaluate import bench, newest_or, trained
from nip_ray.play.core import Player
from nip_ray.seeding import stable_seed
from nip_ray.storage.folder import CONFIG, RunFolder

_DRAWS = 1000
"""Maximum number of episodes started in search of one in which the seat has a turn."""


class Seat(gymnasium.Env[Arrays, Any]):
    """The seat of `agent` among the agents of the run in `run_dir`.

    checkpoint: an iteration (none: the newest). split: instances of "train" or "test". label: only instances with this
    label. greedy: the others take their most likely actions instead of sampled ones. Observations have the scenario's
    entries and "action_mask", the concatenated masks of all factors of an action; `reset` takes the options of
    PettingZoo's environments (docs/environments.md).
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        run_dir: Path | str,
        agent: str,
        *,
        checkpoint: int | None = None,
        split: str = "train",
        label: int | None = None,
        greedy: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Raises UserError for an unknown agent, split or label, and for a run of language models, under zero knowledge
        or without a checkpoint."""
        folder = RunFolder.open(run_dir)
        config = playable(load_stored_config(folder.path / CONFIG))
        found = newest_or(folder, checkpoint, config)
        made = bench(folder.path, config, None, None)
        scenario = made.examination.scenario
        if agent not in scenario.protocol.agents:
            raise UserError(f"agent: got {agent!r}, expected one of {', '.join(scenario.protocol.agents)}")
        self.single, self.agent, self.greedy, self.render_mode = SinglePlay(scenario, split), agent, greedy, render_mode
        self._keep(label)
        networks = trained(made, found)
        self._paid = 0.0
        self.noise = torch.Generator()
        self.noise.seed()
        noise = None if greedy else self.noise
        self.others = {other: Player(network.eval(), noise) for other, network in networks.items() if other != agent}
        sizes = self.single.layouts[agent].sizes
        self.action_space = action_space(sizes)
        mask = mask_space(sum(sizes))
        self.observation_space = spaces.Dict({**self.single.observation_spaces[agent].spaces, "action_mask": mask})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode and play it to the seat's first turn. Raises UserError if there is none."""
        super().reset(seed=seed)
        if seed is not None:
            self.noise.manual_seed(stable_seed(seed, "seat"))
        for _ in range(_DRAWS):
            self.single.reset(seed, options)
            seed, self._paid = None, 0.0
            self._play_on()
            if not self.single.play.finished:
                return self._seen()
        raise UserError(
            f"agent: {self.agent} had no turn in {_DRAWS} episodes, the others end them before; name another"
        )

    def step(self, action: Any) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """The seat's turn, and the others' until its next one. Raises UserError for an action of another form."""
        self.single.refuse_unbegun()
        if self.single.play.finished:
            raise UserError("step: the episode is over, reset() begins another")
        self._play_round({self.agent: action})
        illegal = self.agent in self.single.illegal
        self._play_on()
        paid, self._paid = self._paid, 0.0
        over, cut = self.single.play.finished, self.single.cut
        seen, info = self._seen()
        return seen, paid, over and not cut, cut, {**info, "illegal": illegal}

    def action_masks(self) -> np.ndarray[Any, Any]:
        """The concatenated masks of all factors, where sb3-contrib's MaskablePPO reads them."""
        return np.concatenate(self.single.legal(self.agent)).astype(bool)

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The dialogue so far, under render mode ansi."""
        return self.single.text() if self.render_mode == "ansi" else None

    def _keep(self, label: int | None) -> None:
        if label is None:
            return
        scenario, ids = self.single.play.scenario, self.single.instances
        if scenario.protocol.verifier is None:
            raise UserError(f"label: got {label}, but instances of {scenario.name} have no label; leave it out")
        known = range(len(scenario.protocol.verdicts))
        if label not in known or not len(kept := ids[scenario.label_I[ids] == label]):
            raise UserError(
                f"label: got {label!r}, expected {', '.join(map(str, known))} or none, and one that occurs among the"
                " instances"
            )
        self.single.instances = kept

    def _play_on(self) -> None:
        """Play rounds until the seat has a turn, or to the end."""
        while not self.single.play.finished and self.agent not in self.single.turns:
            self._play_round({})

    @torch.no_grad()
    def _play_round(self, actions: dict[str, Any]) -> None:
        play, copy = self.single.play, torch.zeros(1, dtype=torch.long)
        for other in self.single.turns:
            if other != self.agent:
                player = self.others[other]
                chosen = player.policy(play, other, copy).choose(player.noise, copy, 1)
                actions[other] = self.single.layouts[other].join(chosen)[0].numpy()
        self._paid += self.single.step(actions)[self.agent]

    def _seen(self) -> tuple[Arrays, dict[str, Any]]:
        mask = np.concatenate(self.single.legal(self.agent))
        return {**self.single.observe(self.agent), "action_mask": mask}, self.single.info(self.agent)


if "nip_ray/Seat-v0" not in gymnasium.registry:
    gymnasium.register("nip_ray/Seat-v0", "nip_ray.gymnasium:Seat")
