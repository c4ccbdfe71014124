"""`ProtocolAlgorithmConfig`: what the configs of all our algorithms share, as an RLlib `AlgorithmConfig`."""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false
import copy
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Self

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.keys import suggest
from nip_ray.errors import UserError
from nip_ray.learning.ppo import base_lr
from nip_ray.learning.schedules import updated_agents
from nip_ray.rllib.calls import PROBE_S
from nip_ray.rllib.env_runner import ProtocolEnvRunner
from nip_ray.rllib.module import AgentModule, module_spec
from nip_ray.rllib.protocol_env import ProtocolEnv
from nip_ray.rllib.shared import scenario_of
from nip_ray.settings.experiment import FaultToleranceSettings
from nip_ray.settings.schedule import UpdateSchedule

SPLITS = ("train", "test")

# our name -> RLlib's, where RLlib has a field of the same meaning: it stays readable and tunable under its own name
_RLLIB_NAMES = {"lr": "lr", "gamma": "gamma", "num_epochs": "num_epochs", "minibatch_size": "minibatch_size"}


class ProtocolAlgorithmConfig(AlgorithmConfig):
    """An RLlib config whose game, networks and learning rule come from an `ExperimentConfig`; see `experiment`.

    A subclass names its settings class, and the learner.
    """

    settings_class: type[Any]

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        from nip_ray.rllib.algorithms.base import ProtocolAlgorithm

        super().__init__(algo_class=algo_class or ProtocolAlgorithm)
        self.schedules: dict[str, UpdateSchedule] = {}
        self.total_iterations = 1
        self.env_runner_cls = ProtocolEnvRunner
        self.num_env_runners = 0
        self.num_envs_per_env_runner = 256
        self.rollout_fragment_length = "auto"
        self.add_default_connectors_to_learner_pipeline = False
        self._dont_auto_sync_env_runner_states = True
        self.validate_env_runners_after_construction = False  # we do, and tell of it
        self.torch_skip_nan_gradients = True  # one fused check per update instead of one per parameter
        self.env_runner_health_probe_timeout_s = PROBE_S
        self.env_runner_restore_timeout_s = 60.0
        self._limit_restarts(FaultToleranceSettings())
        self._take(self.settings_class())

    def experiment(self, config: ExperimentConfig | Mapping[str, Any]) -> Self:
        """Take game, data, networks, learning rule, schedules, workers and seed from an experiment config.

        Raises UserError when the experiment is one for another algorithm.
        """
        made = config if isinstance(config, ExperimentConfig) else ExperimentConfig.model_validate(config)
        if not isinstance(made.algorithm, self.settings_class):
            raise UserError(f"algorithm.name: got {made.algorithm.name}, which {type(self).__name__} does not implement")
        self._take(made.algorithm)
        self._limit_restarts(made.fault_tolerance)
        self.schedules = dict(made.schedules)
        dumped = made.model_dump(mode="json")
        self.environment(ProtocolEnv, env_config={"experiment": dumped})
        self.env_runners(
            num_env_runners=made.play.num_env_runners,
            num_envs_per_env_runner=made.play.num_copies,
            num_cpus_per_env_runner=made.play.num_cpus_per_env_runner,
            num_gpus_per_env_runner=made.play.num_gpus_per_env_runner,
        )
        self.learners(
            num_learners=made.learners.num_learners,
            num_cpus_per_learner=made.learners.num_cpus_per_learner,
            num_gpus_per_learner=made.learners.num_gpus_per_learner,
        )
        agents = scenario_of(dumped).protocol.agents
        self.multi_agent(policies=set(agents), policy_mapping_fn=agent_is_module)
        self.rl_module(rl_module_spec=module_spec(dumped, agents))
        self.total_iterations = made.iterations
        self.debugging(seed=made.seed, log_sys_usage=False)  # its thread holds up the end of every run
        return self

    @override(AlgorithmConfig)
    def training(self, **kwargs: Any) -> Self:
        """Change settings of the learning rule by name (lr, gamma, lam ...); others go to RLlib."""
        ours = {f.name for f in fields(self.settings_class)} - {"name"}
        changed = {key: kwargs.pop(key) for key in list(kwargs) if key in ours}
        if changed:  # not otherwise: RLlib calls this for keys of its own while it takes over what Tune has chosen
            self._take(replace(self.settings(), **changed))
        return super().training(**kwargs) if kwargs else self

    def settings(self) -> Any:
        """The rule's settings in force: RLlib's own fields win where both exist, so that Tune can search over them."""
        names = {f.name for f in fields(self.settings_class)}
        shared = {ours: getattr(self, theirs) for ours, theirs in _RLLIB_NAMES.items() if ours in names}
        return self.settings_class(**{**self.rule, **shared})

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """RLlib's checks, and ours; the experiment takes the seed of this config. Raises UserError when no experiment was given."""
        if not (self.env_config or {}).get("experiment"):
            raise UserError(f"{type(self).__name__}: call .experiment(ExperimentConfig(...)) before building")
        self._hand_on_seed()
        self._check_split()
        self._check_policies_to_train()
        rule = {f.name for f in fields(self.settings_class)}
        if "minibatch_size" in rule and (self.minibatch_size is None or self.minibatch_size < 1):
            raise UserError(f"minibatch_size: {self.minibatch_size}: must be at least 1 frame")
        super().validate()

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """The module class of agents that have no spec of their own (all have one; see `experiment`)."""
        return RLModuleSpec(module_class=AgentModule)

    def skips_silent_messages(self) -> bool:
        """Whether a deciding turn's message is left out of log-probabilities; runners and learners must agree. See `Policy.silenced`."""
        return getattr(self.settings(), "skip_silent_messages", False)

    def base_lr(self, iteration: int) -> float:
        """The learning rate of an iteration, annealed over the experiment's iterations where the settings ask for it."""
        return base_lr(self.settings(), iteration, self.total_iterations)

    def who_learns(self, iteration: int) -> tuple[str, ...]:
        """The agents that learn in an iteration: neither at rest by their schedule nor left out of `policies_to_train`."""
        agents = scenario_of(self.env_config["experiment"]).protocol.agents
        chosen = self.policies_to_train
        if chosen is not None:
            agents = tuple(agent for agent in agents if (chosen(agent, None) if callable(chosen) else agent in chosen))
        return updated_agents(self.schedules, agents, iteration)

    def split(self) -> str:
        """Whose instances env runners play: what `env_config` says, else held-out ones in evaluations and those for training otherwise."""
        return self.env_config.get("split", "test" if self.in_evaluation else "train")

    def _hand_on_seed(self) -> None:
        """Every draw comes from the experiment's seed, in env runners, learners and new networks: make it this config's."""
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise UserError(f"seed: got {self.seed!r}, expected a whole number from 0 on; every random draw comes from it")
        experiment = self.env_config["experiment"]
        if experiment["seed"] == self.seed:
            return
        experiment = {**experiment, "seed": self.seed}
        self.env_config = {**self.env_config, "experiment": experiment}
        spec = copy.deepcopy(self.rl_module_spec)
        for own in spec.rl_module_specs.values():
            own.model_config = {**(own.model_config or {}), "experiment": experiment}
        self.rl_module(rl_module_spec=spec)

    def _check_split(self) -> None:
        if self.split() not in SPLITS:
            raise UserError(f"env_config.split: got {self.split()!r}, {suggest(str(self.split()), SPLITS)}")

    def _check_policies_to_train(self) -> None:
        chosen = self.policies_to_train
        if chosen is None or callable(chosen):
            return
        agents = scenario_of(self.env_config["experiment"]).protocol.agents
        for name in chosen:
            if name not in agents:
                raise UserError(f"policies_to_train: {name!r} is no agent of this game, {suggest(str(name), agents)}")

    def _limit_restarts(self, settings: FaultToleranceSettings) -> None:
        self.fault_tolerance(
            restart_failed_env_runners=settings.max_env_runner_restarts > 0,
            max_num_env_runner_restarts=settings.max_env_runner_restarts,
            delay_between_env_runner_restarts_s=settings.restart_delay_s,
        )
        self.sample_timeout_s = settings.sample_timeout_s

    def _take(self, settings: Any) -> None:
        # a dict, in which Tune finds search spaces, and without what RLlib has: Tune would find those twice
        self.rule = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in _RLLIB_NAMES}
        for ours, theirs in _RLLIB_NAMES.items():
            if hasattr(settings, ours):
                setattr(self, theirs, getattr(settings, ours))


def agent_is_module(agent_id: str, episode: Any = None, **kwargs: Any) -> str:
    """Every agent has a module of its own name."""
    return agent_id
