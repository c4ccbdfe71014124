"""`ProtocolEnvRunner`: an RLlib EnvRunner that plays B copies of a protocol as tensors.

Decisions that matter here:
- a runner's play in an iteration is a pure function of (seed, iteration, its share, weights): a recreated runner, or
  another one in its place, plays the same episodes;
- it returns ids and tokens, not observations: some kilobytes per iteration;
- with no remote learner and no remote runner it plays with the learner's own networks on the learner's device: no
  copies.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
import copy
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import gymnasium as gym
import ray
import torch
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils import force_list
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import (
    EPISODE_LEN_MEAN,
    EPISODE_RETURN_MEAN,
    NUM_AGENT_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    WEIGHTS_SEQ_NO,
)
from ray.rllib.utils.metrics.stats import MeanStats
from torch import Tensor, nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.search_rules import searching
from nip_ray.play.core import BatchedPlay, Player, episode_seeds, instance_ids, play_episodes
from nip_ray.play.exploration import Exploration, explore
from nip_ray.play.lookahead import lookahead
from nip_ray.play.rollout import Rollout, RolloutSamples
from nip_ray.rllib.compat import wanted
from nip_ray.rllib.past import PastPlay
from nip_ray.rllib.protocol_env import ProtocolEnv
from nip_ray.rllib.shared import scenario_of
from nip_ray.seeding import generator, stable_seed
from nip_ray.settings.search import share_at


class EpisodeMean(MeanStats):
    """A mean over all episodes of all runners. RLlib merges one mean per runner, regardless of the number of episodes;
    this keeps the values until they are merged. Its identifier is the mean's, so checkpoints of either kind load."""

    @override(MeanStats)
    def push(self, value: list[float]) -> None:
        """Add the values of some episodes."""
        self.values.extend(value)

    @override(MeanStats)
    def reduce(self, compile: bool = True) -> Any:
        """The mean, or all values to be merged with those of others."""
        if compile:
            return super().reduce()
        made = self.clone()
        made.values, self.values = self.values, []
        return made


class ProtocolEnvRunner(EnvRunner, Checkpointable):
    """Plays ``num_envs_per_env_runner`` copies to their end at every call of `sample`."""

    @override(EnvRunner)
    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        self.metrics.stats_cls_lookup = dict(self.metrics.stats_cls_lookup or {}, episode_mean=EpisodeMean)
        # RLlib's deterministic mode does it to each new tensor, needlessly
        torch.utils.deterministic.fill_uninitialized_memory = False
        self.experiment: dict[str, Any] = self.config.env_config["experiment"]
        self.skip_silent_messages: bool = self.config.skips_silent_messages()
        self.search = searching(ExperimentConfig.model_validate(self.experiment))
        self.env: ProtocolEnv | None = None
        self.module: Any = None
        self.play: BatchedPlay | None = None
        self.frozen: dict[tuple[str, int], nn.Module] = {}  # networks of snapshots
        self.iteration = 0
        self.evaluated = 0  # episodes in the current evaluation
        self.weights_seq_no = 0
        self.callbacks: list[RLlibCallback] = [made() for made in force_list(self.config.callbacks_class)]
        self.spaces = kwargs.get("spaces") or {}
        self.device = self._choose_device()
        plays_here = self.worker_index > 0 or self.config.num_env_runners == 0 or self.config.create_env_on_local_worker
        if plays_here or not self.spaces:
            self.make_env()
        self.make_module()

    @override(EnvRunner)
    def make_env(self) -> None:
        """The batched core, and the one-copy env for its spaces."""
        self.env = ProtocolEnv({"experiment": self.experiment})
        self.play = BatchedPlay(scenario_of(self.experiment, self.device), str(self.device))
        context = EnvContext(self.config.env_config, worker_index=self.worker_index, num_workers=self.num_workers)
        self._call_back("on_environment_created", env=self.env, env_context=context)

    @override(EnvRunner)
    def make_module(self) -> None:
        """Networks of all agents, on this runner's device."""
        spec = self.config.get_multi_rl_module_spec(env=None, spaces=self.get_spaces(), inference_only=False)
        self.module = spec.build()
        for module in self.module.values():
            module.to(self.device).eval()

    @override(EnvRunner)
    def get_spaces(self) -> dict[str, Any]:
        """Spaces by agent; module ids are agents."""
        if self.env is None:
            return self.spaces
        observation, action = self.env.observation_spaces, self.env.action_spaces
        both = (gym.spaces.Dict(observation), gym.spaces.Dict(action))
        by_module = {agent: (observation[agent], action[agent]) for agent in self.env.possible_agents}
        return {INPUT_ENV_SPACES: both, INPUT_ENV_SINGLE_SPACES: both, **by_module}

    @override(EnvRunner)
    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
        iteration: int | None = None,
        worker: int | None = None,
        past: PastPlay | None = None,
    ) -> list[RolloutSamples]:
        """Play one share of an iteration: complete episodes, always.

        iteration: its number (None: the one after the last). worker: the owner of the share (None: this runner). past:
        its past opponents. num_episodes: the number of copies instead of ``num_envs_per_env_runner``; num_timesteps is
        met by whole episodes. With 0 of either nothing is played: RLlib's evaluation passes that to runners without a
        share. In an evaluation episodes follow each other from the first, and ``force_reset`` restarts; so equal
        weights have equal results.
        """
        assert self.play is not None, "the local env runner has nothing to play while there are remote ones"
        self.iteration = self.iteration if iteration is None else iteration
        worker = self.worker_index if worker is None else worker
        copies = self.config.num_envs_per_env_runner if num_episodes is None else num_episodes
        if num_timesteps is not None:
            copies = math.ceil(num_timesteps / self.play.protocol.max_rounds)
        explore = self.config.explore if explore is None else explore
        self.evaluated = 0 if force_reset else self.evaluated
        if copies == 0:
            self._log(None)
            return self._called_back([])
        if self.config.in_evaluation:
            rollout = self.play_evaluation(copies, explore)
        else:
            rollout = self.play_share(self.iteration, worker, copies, explore, past)
        self.iteration += 1
        self._log(rollout)
        return self._called_back([RolloutSamples(rollout.to("cpu") if self.worker_index else rollout, worker)])

    def play_share(
        self, iteration: int, worker: int, copies: int, explore: bool, past: PastPlay | None = None
    ) -> Rollout:
        """The episodes of one worker's share of an iteration; the last of them against the past, if any."""
        assert self.play is not None
        seed, num_workers = self.experiment["seed"], max(1, self.config.num_env_runners)
        share = max(0, worker - 1)
        first = (iteration * num_workers + share) * copies
        ids = instance_ids(self.play.scenario, self.config.split(), seed, first, copies)
        noise = generator(seed, "play", iteration, share, device=self.play.device) if explore else None
        seeds = episode_seeds(seed, first, copies)
        extra: dict[str, Any] = {"every_verdict": self.config.learns_from_every_verdict()}
        if self.search is not None and explore:
            episodes = share_at(self.search[0], iteration, self.config.total_iterations)
            extra["search"] = lookahead(self.play, *self.search, episodes, copies, seed, iteration, share)
        return self._played(ids, seeds, noise, past, **extra)

    def play_evaluation(self, copies: int, explore: bool) -> Rollout:
        """The next episodes of this runner in an evaluation: of all runners', every n-th one, independent of the
        others' requests."""
        assert self.play is not None
        seed, num_workers = self.experiment["seed"], max(1, self.config.num_env_runners)
        share, first = max(0, self.worker_index - 1), self.evaluated * num_workers
        ids = instance_ids(self.play.scenario, self.config.split(), seed, first, copies * num_workers)[
            share::num_workers
        ]
        noise = generator(seed, "evaluation", self.evaluated, share, device=self.play.device) if explore else None
        self.evaluated += copies
        return self._played(ids, episode_seeds(stable_seed(seed, "evaluation", share), first, copies), noise)

    def _played(
        self, id_B: Tensor, seed_B: Tensor, noise: torch.Generator | None, past: PastPlay | None = None, **extra: Any
    ) -> Rollout:
        """Episodes played by the networks, with snapshots in place of some, if any. extra: see `play_episodes`."""
        with _evaluated(self.networks()) as networks:
            players = {agent: Player(network, noise) for agent, network in networks.items()}
            if past is None:
                return play_episodes(self.play, players, id_B, seed_B, self.skip_silent_messages, **extra)
            version_BA = past.versions(self.play.protocol.agents, len(id_B)).to(self.device)
            for index, (agent, player) in enumerate(players.items()):
                own = {number: weights[agent] for number, weights in past.weights.items() if agent in weights}
                frozen = {}
                for slot, (number, weights) in enumerate(own.items()):  # a network of its own for each
                    if (agent, slot) not in self.frozen:
                        self.frozen[agent, slot] = copy.deepcopy(self.networks()[agent]).eval().requires_grad_(False)
                    frozen[number] = self.frozen[agent, slot]
                    frozen[number].load_state_dict(weights)
                players[agent] = replace(player, version_B=version_BA[:, index], past=frozen)
            rollout = play_episodes(self.play, players, id_B, seed_B, self.skip_silent_messages, **extra)
        return replace(rollout, version_BA=version_BA)

    def roll_out(
        self, plan: Exploration, worker: int | None = None, opponents: Mapping[str, nn.Module] | None = None
    ) -> RolloutSamples:
        """Play one share of a roll-out with exploration, with its transitions. worker: the share's owner (None: this).

        opponents: agent -> the player in place of its network. Transitions of a remote runner are in main memory.
        """
        assert self.play is not None, "the local env runner has nothing to play while there are remote ones"
        worker = self.worker_index if worker is None else worker
        shares = max(1, self.config.num_env_runners)
        with _evaluated({**self.networks(), **(opponents or {})}) as networks:
            rollout, rows = explore(self.play, networks, plan, self.experiment["seed"], max(0, worker - 1), shares)
        if rollout.num_copies:
            self._log(rollout)
        if self.worker_index:
            rollout, rows = (
                rollout.to("cpu"),
                {role: {name: part.cpu() for name, part in own.items()} for role, own in rows.items()},
            )
        return self._called_back([RolloutSamples(rollout, worker, rows)])[0]

    def _called_back(self, samples: list[RolloutSamples]) -> list[RolloutSamples]:
        """The samples, after the user's callbacks, with one call per episode if they handle episodes."""
        with_episodes = any(type(one).on_episode_end is not RLlibCallback.on_episode_end for one in self.callbacks)
        if with_episodes or self.config.callbacks_on_episode_end:
            for index, episode in enumerate(sample[i : i + 1] for sample in samples for i in range(len(sample))):
                self._call_back("on_episode_end", episode=episode, env=None, env_index=index, rl_module=self.module)
        self._call_back("on_sample_end", samples=samples)
        return samples

    def _call_back(self, name: str, **arguments: Any) -> None:
        functions = getattr(self.config, f"callbacks_{name}")
        make_callback(
            name, self.callbacks, functions, kwargs={"env_runner": self, "metrics_logger": self.metrics, **arguments}
        )

    def networks(self) -> dict[str, nn.Module]:
        """All agents' networks, as this runner has them now."""
        assert self.play is not None
        return {agent: self.module[agent].unwrapped().network for agent in self.play.protocol.agents}

    @override(EnvRunner)
    def get_metrics(self) -> Any:
        """Reduced metrics since the last call, under RLlib's own keys."""
        return self.metrics.reduce()

    def _log(self, rollout: Rollout | None) -> None:
        """Counts and means of a rollout, or of none. RLlib's evaluation reads the counts of every call."""
        assert self.play is not None
        steps, episodes = (0, 0) if rollout is None else (rollout.env_steps(), rollout.num_copies)
        log = self.metrics.log_value
        log(NUM_ENV_STEPS_SAMPLED, steps, reduce="sum")
        log(NUM_ENV_STEPS_SAMPLED_LIFETIME, steps, reduce="lifetime_sum", with_throughput=True)
        log(NUM_EPISODES, episodes, reduce="sum")
        log(NUM_EPISODES_LIFETIME, episodes, reduce="lifetime_sum")
        agents = self.play.protocol.agents
        turns = [0] * len(agents) if rollout is None else rollout.turn_BRA.sum((0, 1)).tolist()
        for agent, count in zip(agents, turns, strict=True):
            log((NUM_AGENT_STEPS_SAMPLED, agent), count, reduce="sum")
        if rollout is not None:
            log(EPISODE_RETURN_MEAN, rollout.reward_BRA.sum((1, 2)).tolist(), reduce="episode_mean")
            log(EPISODE_LEN_MEAN, rollout.length_B.tolist(), reduce="episode_mean")

    def _choose_device(self) -> torch.device:
        """A remote runner's own GPU if it has a share of one; the local runner plays where the local learner learns."""
        config = self.config
        remote = self.worker_index > 0
        gpus = (
            config.num_gpus_per_env_runner
            if remote
            else (config.num_gpus_per_learner if config.num_learners == 0 else 0)
        )
        return torch.device("cuda" if gpus and torch.cuda.is_available() else "cpu")

    @override(Checkpointable)
    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The next iteration and, if requested, the weights."""
        state: dict[str, Any] = {"iteration": self.iteration}
        if (parts := wanted(self, COMPONENT_RL_MODULE, components, not_components)) is not None:
            state[COMPONENT_RL_MODULE] = self.module.get_state(**parts)
            state[WEIGHTS_SEQ_NO] = self.weights_seq_no
        return state

    @override(Checkpointable)
    def set_state(self, state: dict[str, Any]) -> None:
        """Load `state`. Unlike stock runners, this accepts older weights: a restore means what it says."""
        if COMPONENT_RL_MODULE in state:
            weights = state[COMPONENT_RL_MODULE]
            self.module.set_state(ray.get(weights) if isinstance(weights, ray.ObjectRef) else weights)
            self.weights_seq_no = state.get(WEIGHTS_SEQ_NO, 0)
        self.iteration = state.get("iteration", self.iteration)

    @override(Checkpointable)
    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for another runner like this one."""
        return (), {"config": self.config}

    @override(Checkpointable)
    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """The networks."""
        return [(COMPONENT_RL_MODULE, self.module)]

    @override(EnvRunner)
    def assert_healthy(self) -> None:
        """It has networks, and a core unless it only replaces remote runners."""
        assert self.module is not None

    @override(EnvRunner)
    def stop(self) -> None:
        """Nothing to release."""


@contextmanager
def _evaluated(networks: Mapping[str, nn.Module]) -> Iterator[Mapping[str, nn.Module]]:
    """The networks in evaluation mode, restored afterwards: they may be the learner's own."""
    training = {agent: network.training for agent, network in networks.items()}
    for network in networks.values():
        network.eval()
    try:
        yield networks
    finally:
        for agent, network in networks.items():
            network.train(training[agent])
