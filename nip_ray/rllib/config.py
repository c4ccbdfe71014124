"""`ProtocolAlgorithmConfig`: the common base of our algorithms' configs, as an RLlib `AlgorithmConfig`."""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false
import copy
import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from inspect import signature
from typing import Any, Self, cast

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils import force_list
from ray.rllib.utils.annotations import override
from ray.tune.result import STDERR_FILE, STDOUT_FILE

from nip_ray.config.aliases import word_for
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.keys import suggest
from nip_ray.config.load import config_from_dict
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.learning.policy_gradient import base_lr
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from nip_ray.rllib.calls import PROBE_S
from nip_ray.rllib.compat import send_no_states
from nip_ray.rllib.env_runner import ProtocolEnvRunner
from nip_ray.rllib.learner import ProtocolLearner
from nip_ray.rllib.module import AgentModule, module_spec
from nip_ray.rllib.options import SET_IN_EVALUATION, refuse_unhonoured
from nip_ray.rllib.protocol_env import ProtocolEnv
from nip_ray.rllib.shared import scenario_of
from nip_ray.settings.experiment import FaultToleranceSettings
from nip_ray.settings.schedule import UpdateSchedule, updated_agents

SPLITS = ("train", "test")

# our name -> RLlib's field of the same meaning, which stays readable and tunable under its own name
_RLLIB_NAMES = {
    "lr": "lr",
    "gamma": "gamma",
    "num_epochs": "num_epochs",
    "minibatch_size": "minibatch_size",
    "max_grad_norm": "grad_clip",
}
_FORWARDS = ("_forward", "_forward_train", "_forward_inference", "_forward_exploration")


class ProtocolAlgorithmConfig(AlgorithmConfig):
    """An RLlib config whose game, networks and learning rule come from an `ExperimentConfig`; see `experiment`.

    A subclass names its settings class, and the learner.
    """

    settings_class: type[Any]

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or ProtocolAlgorithm)
        self.schedules: dict[str, UpdateSchedule] = {}
        self.total_iterations = 1
        self.max_staleness = 0
        self.env_runner_cls = ProtocolEnvRunner
        self.num_env_runners = 0
        self.num_envs_per_env_runner = 256
        self.rollout_fragment_length = "auto"
        self.batch_mode = "complete_episodes"
        self.add_default_connectors_to_learner_pipeline = False
        send_no_states(self)
        self.validate_env_runners_after_construction = False  # we do, and report it
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
            raise UserError(
                f"algorithm.name: got {made.algorithm.name}, which {type(self).__name__} does not implement"
            )
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
        self.rl_module(rl_module_spec=module_spec(copy.deepcopy(dumped), agents))
        self.total_iterations = made.iterations
        self.max_staleness = made.play.max_staleness
        self.debugging(seed=made.seed, log_sys_usage=False)  # its thread delays the end of every run
        return self

    @override(AlgorithmConfig)
    def training(self, **kwargs: Any) -> Self:
        """Change settings of the learning rule by name (lr, gamma, lam ...); others go to RLlib. Raises UserError for
        an unknown one."""
        rule = self._rule_names()
        given: dict[str, str] = {}  # setting -> the name under which it was given
        for key in [key for key in kwargs if self._word(key) in rule]:
            other = given.setdefault(self._word(key), key)
            if other != key:
                raise UserError(
                    f"training({key}=...): {other} is another word for it and is given too, leave one of them out"
                )
            setattr(self, self._word(key), kwargs.pop(key))
        theirs = signature(AlgorithmConfig.training).parameters
        for key in kwargs:
            if key not in theirs:
                raise UserError(f"training({key}=...): unknown, {suggest(key, [*rule, *theirs])}")
        return super().training(**kwargs) if kwargs else self

    @override(AlgorithmConfig)
    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Like RLlib's, with settings of the learning rule by their own names as in `training`, and after ``rule``."""
        config_dict = dict(config_dict.items())  # RLlib also passes whole configs, which cannot be iterated over
        for key in ("rule", "env_config"):
            if not isinstance(config_dict.get(key, {}), Mapping):
                raise UserError(f"{key}: got {config_dict[key]!r}, expected a mapping")
        # RLlib has fields of the same name with another meaning, which a dumped config repeats
        both = vars(AlgorithmConfig())
        words = {key: self._word(key) for key in config_dict}
        ours = {word: config_dict[key] for key, word in words.items() if word in self._rule_names()}
        named = {word: value for word, value in ours.items() if word in _RLLIB_NAMES or value != both.get(word)}
        super().update_from_dict(
            {key: config_dict[key] for key, word in words.items() if word not in {*self._rule_names(), "rule"}}
        )
        for key, value in {**config_dict.get("rule", {}), **named}.items():
            if key != "name":
                setattr(self, key, value)
        return self

    def __setattr__(self, key: str, value: Any) -> None:
        """Store a setting of the learning rule with the rule's settings."""
        key = self._word(key) if "rule" in vars(self) else key
        if "rule" not in vars(self) or key not in self._rule_names():
            kept = getattr(type(self), key, None)
            if isinstance(kept, property) and kept.fset is None:  # RLlib has only methods for these
                if f"_{key}" not in vars(self):
                    raise UserError(f"{key}: follows from other options and cannot be set, leave it out")
                key = f"_{key}"
            super().__setattr__(key, value)
        elif key in _RLLIB_NAMES:
            super().__setattr__(_RLLIB_NAMES[key], value)
        else:
            super().__setattr__("rule", {**self.rule, key: value})

    def settings(self) -> Any:
        """The rule's effective settings: RLlib's own fields win where both exist, so that Tune can search over them."""
        names = {f.name for f in fields(self.settings_class)}
        shared = {ours: getattr(self, theirs) for ours, theirs in _RLLIB_NAMES.items() if ours in names}
        return self.settings_class(**{**self.rule, **shared})

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """RLlib's checks, and ours; the experiment takes this config's seed. Raises UserError without an experiment."""
        if not (self.env_config or {}).get("experiment"):
            raise UserError(f"{type(self).__name__}: call .experiment(ExperimentConfig(...)) before building")
        defaults = type(self)()
        self._refuse_unknown(defaults)
        refuse_unhonoured(self, defaults)
        self._check_game()
        self._check_modules()
        self._check_callbacks()
        self._check_evaluation()
        self._hand_on_seed()
        made = self._experiment_in_force()
        if not self.in_evaluation:
            check(made, training=False)
        super().validate()

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """The module class of agents without a spec of their own (all have one; see `experiment`)."""
        return RLModuleSpec(module_class=AgentModule)

    def skips_silent_messages(self) -> bool:
        """True if a deciding turn's message is left out of log-probabilities; runners and learners must agree. See
        `Policy.silenced`."""
        return getattr(self.settings(), "skip_silent_messages", False)

    def learns_from_every_verdict(self) -> bool:
        """Return True if play records deciders' pay for each decision (``verdict_gradient: expected``)."""
        return getattr(self.settings(), "verdict_gradient", "sampled") == "expected"

    def base_lr(self, iteration: int) -> float:
        """The learning rate of an iteration, annealed over the experiment's iterations if configured."""
        return base_lr(self.settings(), iteration, self.total_iterations)

    def who_learns(self, iteration: int) -> tuple[str, ...]:
        """The agents that learn in an iteration: not resting by their schedule and in `policies_to_train`."""
        agents, chosen = self._agents(), self.policies_to_train
        if chosen is not None:
            agents = tuple(agent for agent in agents if (chosen(agent, None) if callable(chosen) else agent in chosen))
        return updated_agents(self.schedules, agents, iteration)

    def split(self) -> str:
        """The split that env runners play: as in `env_config`, else held-out in evaluations and training otherwise."""
        return self.env_config.get("split", "test" if self.in_evaluation else "train")

    def _experiment_in_force(self) -> ExperimentConfig:
        """The experiment with this config's changes. Raises UserError for settings of wrong type or out of bounds."""
        experiment = self.env_config["experiment"]
        play = {
            "num_env_runners": self.num_env_runners,
            "num_copies": self.num_envs_per_env_runner,
            "max_staleness": self.max_staleness,
        }
        changed = {
            "algorithm": asdict(self.settings()),
            "play": {**experiment["play"], **play},
            "learners": {**experiment["learners"], "num_learners": self.num_learners},
        }
        return cast(ExperimentConfig, config_from_dict({**experiment, **changed}))

    def _hand_on_seed(self) -> None:
        """Set the experiment's seed to this config's: all draws in env runners, learners and new networks use it."""
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise UserError(
                f"seed: got {self.seed!r}, expected a whole number from 0 on; every random draw comes from it"
            )
        experiment = self.env_config["experiment"]
        if experiment["seed"] == self.seed:
            return
        experiment = {**experiment, "seed": self.seed}
        self.env_config = {**self.env_config, "experiment": experiment}
        spec = copy.deepcopy(self.rl_module_spec)
        for own in spec.rl_module_specs.values():
            own.model_config = {**cast(dict[str, Any], own.model_config), "experiment": experiment}
        self.rl_module(rl_module_spec=spec)

    @classmethod
    def _rule_names(cls) -> set[str]:
        return {f.name for f in fields(cls.settings_class)} - {"name"}

    def _word(self, key: str) -> str:
        """The name of `key` in the settings of the learning rule; RLlib's own attributes are unchanged."""
        return key if key in vars(self) else word_for(key, self._rule_names())

    def _refuse_unknown(self, defaults: Self) -> None:
        known = {*vars(defaults), "class", STDOUT_FILE, STDERR_FILE}  # RLlib and Tune set those
        rule = ", ".join(sorted(self._rule_names()))
        for key in vars(self):
            if key not in known:
                near = difflib.get_close_matches(key, {*known, *self._rule_names()}, 1)
                hint = f"did you mean {near[0]}?" if near else f"expected one of {rule}, or an option of RLlib"
                raise UserError(f"{key}: unknown option, {hint}")
        for ours, theirs in _RLLIB_NAMES.items():
            if ours not in self._rule_names() and getattr(self, theirs) != getattr(defaults, theirs):
                raise UserError(f"{theirs}: {self.settings_class().name} has no such setting, expected one of {rule}")

    def _check_game(self) -> None:
        """The environment and its agents are those of the experiment."""
        if self.env is not ProtocolEnv:
            raise UserError(f"env: got {self.env!r}, not honoured by {type(self).__name__}, use instead: .experiment()")
        for key in self.env_config:
            if key not in ("experiment", "split"):
                raise UserError(f"env_config.{key}: unknown key, {suggest(str(key), ('experiment', 'split'))}")
        if self.split() not in SPLITS:
            raise UserError(f"env_config.split: got {self.split()!r}, {suggest(str(self.split()), SPLITS)}")
        agents = self._agents()
        if {*self.policies} != {*agents}:
            raise UserError(
                f"policies: got {', '.join(map(str, self.policies))}, expected one for each agent: {', '.join(agents)}"
            )
        if self.policy_mapping_fn is not agent_is_module:
            raise UserError(
                "policy_mapping_fn: every agent has the module of its own name; leave it as .experiment() sets it"
            )
        chosen = self.policies_to_train
        for key, named in (
            ("policies_to_train", () if chosen is None or callable(chosen) else chosen),
            ("algorithm_config_overrides_per_module", self.algorithm_config_overrides_per_module),
        ):
            for name in named:
                if name not in agents:
                    raise UserError(f"{key}: {name!r} is not an agent of this game, {suggest(str(name), agents)}")
        for agent, own in self.algorithm_config_overrides_per_module.items():
            if {*own} - ({"lr"} & self._rule_names()):
                takes = "lr" if "lr" in self._rule_names() else "nothing; set roles"
                raise UserError(
                    f"algorithm_config_overrides_per_module: {agent}: got {', '.join(own)}, expected {takes}"
                )

    def _check_evaluation(self) -> None:
        """Nothing learns in an evaluation, and its length and place are set by options of the config itself."""
        own = {**vars(self), **self.rule}
        for key, value in (self.evaluation_config or {}).items():
            word = self._word(key)
            idle = word in {*self._rule_names(), *_RLLIB_NAMES.values(), "num_env_runners", *SET_IN_EVALUATION}
            if (idle or key.startswith("evaluation_")) and value != own.get(word, value):
                raise UserError(
                    f"evaluation_config.{key}: has no effect in an evaluation, set it in the config itself or leave"
                    " it out"
                )

    def _check_modules(self) -> None:
        """Custom classes must be derived from ours, whose interface the rest uses."""
        for key, given, ours in (
            ("env_runner_cls", self.env_runner_cls, ProtocolEnvRunner),
            ("learner_class", self.learner_class, ProtocolLearner),
        ):
            if not (isinstance(given, type) and issubclass(given, ours)):
                raise UserError(f"{key}: got {given!r}, expected a subclass of {ours.__name__}")
        specs = getattr(self.rl_module_spec, "rl_module_specs", None) or {}
        if {*specs} != {*self._agents()}:
            raise UserError(f"rl_module_spec: expected a module for each agent: {', '.join(self._agents())}")
        for agent, spec in specs.items():
            if not issubclass(spec.module_class, AgentModule):
                raise UserError(
                    f"rl_module_spec: {agent}: got {spec.module_class.__name__}, expected a subclass of AgentModule"
                )
            for name in _FORWARDS:
                if getattr(spec.module_class, name) is not getattr(AgentModule, name):
                    raise UserError(
                        f"rl_module_spec: {agent}: a custom {name} is never called, set `network` in setup()"
                    )
            if not _alike((spec.model_config or {}).get("experiment"), self.env_config["experiment"]):
                raise UserError(
                    "env_config.experiment: differs from that of the modules, call .experiment() with the new one"
                )

    def _check_callbacks(self) -> None:
        for name in ("on_episode_created", "on_episode_start", "on_episode_step"):
            for made in force_list(self.callbacks_class):
                if getattr(made, name) is not getattr(RLlibCallback, name):
                    raise UserError(
                        f"{made.__name__}.{name}: never called, use instead: on_episode_end or on_sample_end"
                    )

    def _agents(self) -> tuple[str, ...]:
        return scenario_of(self.env_config["experiment"]).protocol.agents

    def _limit_restarts(self, settings: FaultToleranceSettings) -> None:
        self.fault_tolerance(
            restart_failed_env_runners=settings.max_env_runner_restarts > 0,
            max_num_env_runner_restarts=settings.max_env_runner_restarts,
            delay_between_env_runner_restarts_s=settings.restart_delay_s,
        )
        self.sample_timeout_s, self.hang_timeout_s = settings.sample_timeout_s, settings.hang_timeout_s

    def _take(self, settings: Any) -> None:
        # a dict, in which Tune finds search spaces, without RLlib's own keys: Tune would find those twice
        self.rule = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in _RLLIB_NAMES}
        for ours, theirs in _RLLIB_NAMES.items():
            if hasattr(settings, ours):
                setattr(self, theirs, getattr(settings, ours))


def _alike(one: Any, other: Any) -> bool:
    """Equal as JSON: a copy may have lists for tuples."""
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)


def agent_is_module(agent_id: str, episode: Any = None, **kwargs: Any) -> str:
    """Every agent has a module of its own name."""
    return agent_id
