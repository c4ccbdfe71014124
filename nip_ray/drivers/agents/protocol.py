"""A learner for all agents of a protocol, by one of our algorithms: PPO, REINFORCE, the Stackelberg family, solo.

Decisions that matter here:
- it learns from whole episodes: when the last copy of its batch has ended, the batch goes to the algorithm as the
  rollout of one iteration. With all copies, and the same seed and number of them, it learns bit-identically to `nip-ray
  train`;
- a batch that is cut (all copies were reset) is discarded. The next one is played, and learned from, in its place;
- the algorithm is RLlib's object with everything in this process: no runner plays, no process or cluster is started.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.drivers.agents.base import BaseAgent
from nip_ray.drivers.contract import Rows, Transition, arrays
from nip_ray.errors import UserError
from nip_ray.learning.policy import Policy
from nip_ray.play.core import compared
from nip_ray.play.rollout import Dialogue, Rollout, RolloutSamples
from nip_ray.progress import say
from nip_ray.rllib.compat import local_learner
from nip_ray.rllib.shared import scenario_of
from nip_ray.seeding import generator


class ProtocolAgent(BaseAgent):
    """The agents of a protocol on n copies, and their algorithm. algorithm: RLlib's object.

    experiment: a dumped `ExperimentConfig` for an independent learner (`nip_ray.drivers.experiments.alone`). Raises
    UserError for an algorithm that has to play itself.
    """

    def __init__(self, experiment: Mapping[str, Any], num_copies: int) -> None:
        from nip_ray.rllib.registry import ALGORITHMS

        config = ExperimentConfig.model_validate(experiment)
        for name in ("ray", "ray.rllib", "ray.tune"):  # after the imports, which set their own levels
            logging.getLogger(name).setLevel(logging.ERROR)
        check_drivable(config)
        rule = ALGORITHMS[config.algorithm.name]()
        self.algorithm: Any = rule.experiment(config).debugging(log_level="ERROR").build_algo()  # alone in this process
        runner = self.algorithm.env_runner_group.local_env_runner
        super().__init__(runner.env.observation_spaces, runner.env.action_spaces, num_copies)
        self._arguments = (dict(experiment), num_copies)
        learner = local_learner(self.algorithm.learner_group)
        self.networks, self._device = learner.networks, learner.device
        self._playing: Mapping[str, Any] = self.networks
        self.scenario = scenario_of(runner.experiment, self._device)
        self.protocol = self.scenario.protocol
        self._seed, self._silent = config.seed, runner.skip_silent_messages
        # of the batch in progress, data for learning that cannot be rebuilt
        self._rounds: list[dict[str, np.ndarray]] = []
        self._chosen: dict[str, np.ndarray] = {}
        self._noise: torch.Generator | None = None
        self._end: Mapping[str, Any] | None = None

    @property
    def updates(self) -> int:
        """Number of batches learned from."""
        return int(self.algorithm.train_iteration)

    def enable_training_mode(self, enabled: bool) -> None:
        """See `BaseAgent.enable_training_mode`. Outside training averages of the weights play, where they are kept."""
        super().enable_training_mode(enabled)
        self._playing = self.networks if enabled else self.algorithm.networks()

    @torch.no_grad()
    def act(
        self, observations: Rows, timestep: int, timesteps: int, *, explore: bool = True, states: Rows | None = None
    ) -> dict[str, Any]:
        """Actions of every agent; see `nip_ray.drivers.experiments.ProtocolCopies`."""
        shown = {name: self._tensor(observations[name]) for name in ("id", "seed", "round")}
        said, count = self._said(observations), len(observations["id"])
        noise = self._noise_of(timestep) if explore else None
        actions: dict[str, dict[str, Any]] = {agent: self._nothing(agent, count) for agent in self.protocol.agents}
        log_prob_BA = np.zeros((count, len(actions)), dtype=np.float32)
        policies: dict[str, tuple[Tensor, Policy]] = {}
        for a, agent in enumerate(self.protocol.agents):
            where = np.flatnonzero(observations["turn"][agent])
            if not len(where):
                continue
            copy_N = self._tensor(where)
            id_N, round_N, seed_N = (shown[name][copy_N] for name in ("id", "round", "seed"))
            obs = self.scenario.observe(agent, id_N, said.rows(copy_N), round_N, seed_N)
            network = self._playing[agent]
            if network.training:  # left so by learning
                network.eval()
            policy = network(obs, True, False)[0]
            action = policy.choose(noise, copy_N, count)
            scored = policy.silenced(action) if self._silent else policy
            log_prob_BA[where, a] = scored.log_prob(action).cpu().numpy()
            for name, part in action.items():
                actions[agent][name][where] = part.cpu().numpy()
            policies[agent] = copy_N, policy
        self._chosen = {"log_prob": log_prob_BA}
        if self.protocol.zero_knowledge is None:
            return actions
        similarity_B, distance_B2 = compared(self.protocol.zero_knowledge, policies, shown["id"])
        self._chosen["simulation"] = distance_B2.cpu().numpy()
        return {**actions, "similarity": similarity_B.cpu().numpy()}

    def _noise_of(self, timestep: int) -> torch.Generator:
        """One stream per batch, as in the core."""
        if not self.training:
            return generator(self._seed, "evaluate", timestep, device=self._device)
        if self._noise is None:
            self._noise = generator(self._seed, "play", self.updates, 0, device=self._device)
        return self._noise

    def _nothing(self, agent: str, count: int) -> dict[str, Any]:
        factors = len(self.protocol.writes[agent]) * self.scenario.message_size
        made: dict[str, Any] = {"message": np.zeros((count, factors), dtype=np.int64)}
        if self.scenario.linear_symbols:
            made["linear"] = np.zeros((count, factors), dtype=np.int64)
        if agent in self.protocol.deciders:
            made["decision"] = np.full(count, self.protocol.undecided, dtype=np.int64)
        return made

    def _said(self, observations: Mapping[str, Any]) -> Dialogue:
        linear = observations.get("linear")
        return Dialogue(self._tensor(observations["main"]), None if linear is None else self._tensor(linear))

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def begin(self) -> None:
        """Discard the batch in progress."""
        self._rounds, self._noise, self._end = [], None, None

    def record_transition(self, transition: Transition, timestep: int, timesteps: int) -> None:
        """Record turns and rewards, in training; messages are in the last observation."""
        # waiting for other learners' copies
        if not self.training or (transition.valid is not None and not transition.valid.any()):
            return
        agents = self.protocol.agents
        turn_BA = np.stack([transition.observations["turn"][agent] for agent in agents], -1)
        reward_BA = np.stack([transition.rewards[agent] for agent in agents], -1).astype(np.float32)
        self._rounds.append({"turn": turn_BA, "reward": reward_BA, **self._chosen})
        if transition.next_observations["over"].all():
            self._end = transition.next_observations

    def post_interaction(self, timestep: int, timesteps: int) -> None:
        """Learn when the last episode of the batch has ended."""
        if self.training and self._end is not None:
            self.update(timestep, timesteps)

    def update(self, timestep: int, timesteps: int) -> None:
        """Learn from the batch, and clear it. Raises TrainingError if a gradient is not finite."""
        assert self._end is not None, "a batch is learned from when all of its episodes have ended"
        rollout = self._rollout(self._end)
        for name, value in self.algorithm.learn_from([RolloutSamples(rollout, 0)]).items():
            if math.isfinite(value):  # an agent without a single turn has undefined metrics
                self.track_data(name.removeprefix("learn/"), value)
        self.begin()

    def _rollout(self, end: Mapping[str, Any]) -> Rollout:
        protocol, said = self.protocol, self._said(end)
        missing = protocol.max_rounds - len(self._rounds)

        def whole(name: str, fill: float) -> Tensor:
            played = np.stack([one[name] for one in self._rounds], 1)
            return self._tensor(np.pad(played, [(0, 0), (0, missing), (0, 0)], constant_values=fill))

        id_B = self._tensor(end["id"])
        parts: dict[str, Any] = {
            "id_B": id_B,
            "seed_B": self._tensor(end["seed"]),
            "y_B": self.scenario.label_I[id_B],
            "main_BRACM": said.main,
            "linear_BRACM": said.linear,
            "decision_BRA": self._tensor(end["decision"]),
            "turn_BRA": whole("turn", False),
            "reward_BRA": whole("reward", 0),
            "log_prob_BRA": whole("log_prob", 0),
            "length_B": self._tensor(end["round"]),
            "verdict_B": self._tensor(end["verdict"]),
        }
        if protocol.zero_knowledge is not None:
            parts["simulation_BR2"] = whole("simulation", -1)
        if protocol.cuts:
            parts["cut_B"] = self._tensor(end["cut"])
        assert {f.name for f in fields(Rollout)} >= set(parts)
        return Rollout(**parts)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizers, counters, and the records of the batch in progress."""
        return {
            **super().state_dict(),
            "training": self.algorithm.training_state(),
            "rounds": [{name: np.array(part) for name, part in one.items()} for one in self._rounds],
            "noise": None if self._noise is None else self._noise.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        super().load_state_dict(state)
        self.algorithm.load_training_state(state["training"])
        self.enable_training_mode(self.training)
        self._rounds, self._end, self._noise = [arrays(one) for one in state["rounds"]], None, None
        if state["noise"] is not None:
            self._noise = torch.Generator(device=self._device)
            self._noise.set_state(torch.as_tensor(state["noise"]))


def warn_of_iterations(config: ExperimentConfig) -> None:
    """Warn of a rate that falls over iterations, whose number a driver does not set."""
    if getattr(config.algorithm, "anneal_lr", False):
        say(
            f"warning: algorithm.anneal_lr: the rate falls to 0 over {config.iterations} batches (iterations of the"
            " experiment), however long the driver runs; set iterations to the number of batches"
        )


def check_drivable(config: ExperimentConfig) -> None:
    """Raise UserError for an algorithm whose iterations are more than a rollout and an update, or which needs more than
    the episodes of an environment."""
    from nip_ray.rllib.algorithm import ProtocolAlgorithm
    from nip_ray.rllib.registry import ALGORITHMS

    name = config.algorithm.name
    own = {key: made().algo_class for key, made in ALGORITHMS.items()}
    drivable = [key for key, kind in own.items() if kind and kind.training_step is ProtocolAlgorithm.training_step]
    if name not in drivable:
        raise UserError(
            f"algorithm.name: got {name}, which plays and learns in its own rhythm and cannot be driven; expected one"
            f" of {', '.join(drivable)} (as environment.changes: ['algorithm={{name: ppo}}']), or `nip-ray train`"
        )
    beyond = {
        "search": config.search is not None,
        "opponents": config.opponents is not None,
        "algorithm.verdict_gradient: expected": getattr(config.algorithm, "verdict_gradient", "sampled") == "expected",
    }
    for key in (key for key, asked in beyond.items() if asked):
        raise UserError(
            f"{key}: not available to a driver, whose environment plays what it is given; leave it out, or use `nip-ray"
            " train`"
        )
