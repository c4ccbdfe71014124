"""One agent's seat in a protocol as an ordinary Gymnasium environment; the others are frozen agents of a run.

    import gymnasium, nip_ray.gymnasium
    env = gymnasium.make("nip_ray/Seat-v0", run_dir="runs/first", agent="prover", label=0)
    envs = gymnasium.make_vec("nip_ray/Seat-v0", num_envs=256, run_dir="runs/first", agent="prover", label=0)

The return of a learner in it is a lower bound for a best response against the run's other agents. Importing this module
registers the id.

Decisions that matter here:
- a step is one turn of the seat: the others play until its next one, and its reward is the sum since then;
- episodes without a turn of the seat are skipped. Rewards before its first turn are added to its first reward;
- the vector form plays all copies as one batch. A copy that ends restarts in the same step (Gymnasium's SAME_STEP);
- the agent in that seat in the run, and whether it ever learned, are irrelevant.
"""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from nip_ray.config.load import load_stored_config
from nip_ray.environments.copies import Array, Arrays, Copies, action_space, mask_space
from nip_ray.environments.experiment import playable
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.evaluate import bench, newest_or, trained
from nip_ray.play.core import Player
from nip_ray.seeding import stable_seed
from nip_ray.storage.folder import CONFIG, RunFolder

_DRAWS = 1000
"""Maximum number of episodes started in search of one in which the seat has a turn."""


class VectorSeat(VectorEnv[Arrays, Array, Array]):
    """`num_envs` copies of the seat of `agent` among the agents of the run in `run_dir`.

    checkpoint: an iteration (none: the newest). split: instances of "train" or "test". label: only instances with this
    label. greedy: the others take their most likely actions instead of sampled ones. Observations have the scenario's
    entries and "action_mask", the concatenated masks of all factors of an action; `reset` takes the options of
    PettingZoo's environments (docs/environments.md). Raises UserError for an unknown agent, split or label, and for a
    run of language models, under zero knowledge or without a checkpoint.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self,
        run_dir: Path | str,
        agent: str,
        *,
        num_envs: int = 1,
        checkpoint: int | None = None,
        split: str = "train",
        label: int | None = None,
        greedy: bool = False,
        render_mode: None = None,
    ) -> None:
        if render_mode is not None:
            raise UserError(f"render_mode: got {render_mode!r}, but many copies have none; leave it out")
        folder = RunFolder.open(run_dir)
        config = playable(load_stored_config(folder.path / CONFIG))
        found = newest_or(folder, checkpoint, config)
        made = bench(folder.path, config, None, None)
        scenario = made.examination.scenario
        if agent not in scenario.protocol.agents:
            raise UserError(f"agent: got {agent!r}, expected one of {', '.join(scenario.protocol.agents)}")
        self.copies, self.agent, self.num_envs = Copies(scenario, num_envs, split), agent, num_envs
        self.label = label
        self._keep(label)
        networks = trained(made, found)
        self.noise = torch.Generator()
        self.noise.seed()
        noise = None if greedy else self.noise
        self.others = {other: Player(network.eval(), noise) for other, network in networks.items() if other != agent}
        sizes = self.copies.sizes[agent]
        self.single_action_space, mask = action_space(sizes), mask_space(sum(sizes))
        self.single_observation_space = spaces.Dict({**self.copies.spaces[agent].spaces, "action_mask": mask})
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode in every copy, and play to the seat's first turn. seed: copy i draws by seed + i, or by its
        own of a list; the other agents act by the seed of copy 0. Raises UserError if the seat never has a turn, and
        for an instance of another label than the seat's."""
        self.copies.reset(seed, options)
        if self.label is not None and bool((self.copies.play.state.y_B != self.label).any()):
            raise UserError(f"options.id: expected instances with label {self.label}, as the seat has")
        first = seed[0] if isinstance(seed, list | tuple) else seed
        if first is not None:
            self.noise.manual_seed(stable_seed(first, "seat"))
        self._paid_B = torch.zeros(self.num_envs)
        self._play_to_turns(options)
        return self.observed(), self.facts()

    def step(self, actions: Array) -> tuple[Arrays, Array, Array, Array, dict[str, Any]]:
        """The seat's turn in every copy, and the others' until its next one. Copies that end begin a new episode; their
        last observations are in ``infos["final_obs"]``, an array of dictionaries, where ``infos["_final_obs"]``.

        infos: also "instance", "illegal", and of proofs "label" and "verdict" (see `Copies.facts`), of the episode that
        was stepped. Raises UserError for actions of another form.
        """
        reward_B, over_B, cut_B, infos = self.turn(actions)
        if over_B.any():
            copy_N = torch.from_numpy(over_B).nonzero().flatten()
            infos |= {"final_obs": np.full(self.num_envs, None, object), "_final_obs": over_B}
            last = self.observed()
            for copy in copy_N.tolist():
                infos["final_obs"][copy] = {key: x[copy] for key, x in last.items()}
            self.copies.restart(copy_N)
            self._play_to_turns()
        return self.observed(), reward_B, over_B & ~cut_B, cut_B, infos

    def turn(self, actions: Array) -> tuple[Array, Array, Array, dict[str, Any]]:
        """`step` up to the ends of episodes, without a new one: (rewards, ended, of these cut off, infos), arrays
        (B,). The seat must have the turn in every copy."""
        self.copies.refuse_unbegun()
        self._play_round({self.agent: np.asarray(actions)}, torch.ones(self.num_envs, dtype=torch.bool))
        illegal_B = self.copies.illegal[self.agent]
        self._play_on()
        paid_B, self._paid_B = self._paid_B, torch.zeros(self.num_envs)
        infos = {**self.facts(), "illegal": illegal_B.numpy().copy()}
        return paid_B.numpy(), self.copies.play.over_B.numpy(), self.copies.cut_B.numpy(), infos

    def observed(self) -> Arrays:
        """The seat's current observations."""
        return {**self.copies.observe(self.agent), "action_mask": np.concatenate(self.copies.legal(self.agent), 1)}

    def facts(self) -> dict[str, Any]:
        """See `Copies.facts`."""
        return {key: x.copy() for key, x in self.copies.facts().items()}

    def action_masks(self) -> Array:
        """(B, choices) bool: the concatenated masks of all factors, where sb3-contrib's MaskablePPO reads them."""
        return np.concatenate(self.copies.legal(self.agent), 1).astype(bool)

    def _keep(self, label: int | None) -> None:
        if label is None:
            return
        scenario, ids = self.copies.play.scenario, self.copies.instances
        if scenario.protocol.verifier is None:
            raise UserError(f"label: got {label}, but instances of {scenario.name} have no label; leave it out")
        known = range(len(scenario.protocol.verdicts))
        if label not in known or not len(kept := ids[scenario.label_I[ids] == label]):
            raise UserError(
                f"label: got {label!r}, expected {', '.join(map(str, known))} or none, and one that occurs among the"
                " instances"
            )
        self.copies.instances = kept

    def _play_to_turns(self, options: dict[str, Any] | None = None) -> None:
        """Play to the seat's turn in every copy; episodes that end before it are replaced."""
        for _ in range(_DRAWS):
            self._play_on()
            over_B = self.copies.play.over_B
            if not bool(over_B.any()):
                return
            self._paid_B[over_B] = 0.0
            self.copies.restart(over_B.nonzero().flatten(), options)
        raise UserError(
            f"agent: {self.agent} had no turn in {_DRAWS} episodes, the others end them before; name another"
        )

    def _play_on(self) -> None:
        """Play rounds, in every copy, until the seat has a turn or the episode has ended."""
        while bool((play_B := ~self.copies.play.over_B & ~self.copies.turn_B(self.agent)).any()):
            self._play_round({}, play_B)

    @torch.no_grad()
    def _play_round(self, actions: dict[str, Array], play_B: Tensor) -> None:
        copies = self.copies
        for other, player in self.others.items():
            copy_N = (copies.turn_B(other) & play_B).nonzero().flatten()
            if len(copy_N):
                chosen = player.policy(copies.play, other, copy_N).choose(player.noise, copy_N, self.num_envs)
                flat_BF = torch.zeros(self.num_envs, len(copies.sizes[other]), dtype=torch.int64)
                flat_BF[copy_N] = copies.layouts[other].join(chosen)
                actions[other] = flat_BF.numpy()
        self._paid_B += copies.step(actions, play_B)[:, copies.agents.index(self.agent)]


class Seat(gymnasium.Env[Arrays, Any]):
    """One copy of `VectorSeat`, without the axis of copies and without a restart; the same arguments."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(self, run_dir: Path | str, agent: str, *, render_mode: str | None = None, **options: Any) -> None:
        self.seats, self.render_mode = VectorSeat(run_dir, agent, **options), render_mode
        self.copies = self.seats.copies
        self.action_space, self.observation_space = self.seats.single_action_space, self.seats.single_observation_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Arrays, dict[str, Any]]:
        """See `VectorSeat.reset`."""
        super().reset(seed=seed)
        seen, _ = self.seats.reset(seed=seed, options=options)
        return _first(seen), self._info(False)

    def step(self, action: Any) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """The seat's turn, and the others' until its next one. Raises UserError for an action of another form."""
        self.copies.refuse_unbegun()
        if self.copies.play.finished:
            raise UserError("step: the episode is over, reset() begins another")
        paid, over, cut, infos = self.seats.turn(action)
        illegal = bool(infos["illegal"][0])
        return (
            _first(self.seats.observed()),
            float(paid[0]),
            bool(over[0] and not cut[0]),
            bool(cut[0]),
            self._info(illegal),
        )

    def action_masks(self) -> Array:
        """The concatenated masks of all factors, where sb3-contrib's MaskablePPO reads them."""
        return self.seats.action_masks()[0]

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The dialogue so far, under render mode ansi."""
        return self.copies.text() if self.render_mode == "ansi" else None

    def _info(self, illegal: bool) -> dict[str, Any]:
        return {**self.copies.info(self.seats.agent), "illegal": illegal}


def _first(seen: Arrays) -> Arrays:
    return {key: x[0] for key, x in seen.items()}


if "nip_ray/Seat-v0" not in gymnasium.registry:
    gymnasium.register("nip_ray/Seat-v0", "nip_ray.gymnasium:Seat", vector_entry_point="nip_ray.gymnasium:VectorSeat")
