"""One table of how our algorithms treat each option of RLlib's `AlgorithmConfig`, for `refuse_unhonoured` and the docs.

`python -m nip_ray.rllib.options` prints docs/rllib-options.md.
"""

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from nip_ray.errors import UserError


@dataclass(frozen=True)
class Row:
    """Options that are treated alike. text: the effect of an honoured one, or the alternative to a refused one."""

    options: tuple[str, ...]
    verdict: Literal["honoured", "refused", "no effect"]
    text: str


def _honoured(options: str, text: str) -> Row:
    return Row(tuple(options.split()), "honoured", text)


def _refused(options: str, text: str) -> Row:
    return Row(tuple(options.split()), "refused", text)


def _no_effect(options: str, text: str) -> Row:
    return Row(tuple(options.split()), "no effect", text)


OPTIONS: tuple[Row, ...] = (
    # learning
    _honoured(
        "lr gamma num_epochs minibatch_size", "settings of the learning rule under RLlib's names; numbers, no schedules"
    ),
    _honoured("grad_clip", "`max_grad_norm` of the learning rule: the largest norm of an agent's whole gradient"),
    _honoured("seed", "the seed of every draw, before that of the experiment"),
    _honoured("policies_to_train", "agents that are not named, or for which the function is false, rest"),
    _honoured(
        "algorithm_config_overrides_per_module", "`lr` of an agent (not in DQN, which has `roles`); others are refused"
    ),
    _honoured(
        "_rl_module_spec",
        "one `AgentModule`, or a subclass with another `setup`, for each agent; `load_state_path` is loaded",
    ),
    _honoured("_learner_class", "a subclass of `ProtocolLearner`"),
    _refused(
        "grad_clip_by",
        "gradients are clipped by `global_norm`, agent by agent or jointly (`training(clip_gradients='joint')`)",
    ),
    _refused(
        "train_batch_size _train_batch_size_per_learner",
        "an iteration learns from all that it plays: `num_envs_per_env_runner`",
    ),
    _refused("shuffle_batch_per_epoch", "every epoch is shuffled, whole copies together"),
    _refused("learner_config_dict", "a field of the rule's settings class, by `training()`"),
    _refused("optimizer", "`training(optimizer=...)` of rules that have such a setting"),
    _refused("_torch_lr_scheduler_classes", "`training(anneal_lr=True)`"),
    _refused("_torch_grad_scaler_class", "learning is in single precision"),
    _refused(
        "_learner_connector add_default_connectors_to_learner_pipeline",
        "learners take rollouts: `ProtocolLearner.prepare`",
    ),
    _refused("model _model_config", "networks come from `scenario.agents` of the experiment"),
    _refused("torch_skip_nan_gradients", "a gradient that is not finite always ends the run"),
    _refused("torch_ddp_kwargs", "gradients are summed by one all-reduce, without DDP"),
    _refused(
        "torch_compile_learner torch_compile_learner_what_to_compile torch_compile_learner_dynamo_backend"
        " torch_compile_learner_dynamo_mode torch_compile_worker torch_compile_worker_dynamo_backend"
        " torch_compile_worker_dynamo_mode",
        "networks are not compiled",
    ),
    # play
    _honoured("num_envs_per_env_runner", "copies that an env runner plays in an iteration, as tensors"),
    _honoured(
        "env_config", "`experiment` as `.experiment()` sets it, and `split`: `train` or `test`; other keys are refused"
    ),
    _honoured("env_runner_cls", "a subclass of `ProtocolEnvRunner`"),
    _honoured("explore", "false: the most likely actions, in DQN always (there true is refused)"),
    _honoured("create_env_on_local_worker", "the local env runner can play beside remote ones"),
    _refused("env", "`.experiment()`"),
    _refused("policies policy_mapping_fn", "every agent has a module of its own name, as `.experiment()` sets it"),
    _refused(
        "_env_to_module_connector _module_to_env_connector add_default_connectors_to_env_to_module_pipeline "
        "add_default_connectors_to_module_to_env_pipeline",
        "env runners have no connectors; what agents see and do is the scenario's",
    ),
    _refused(
        "observation_filter preprocessor_pref observation_fn", "observations are the scenario's: `Scenario.observe`"
    ),
    _refused("clip_rewards", "rewards are the protocol's"),
    _refused(
        "observation_space action_space clip_actions normalize_actions action_mask_key",
        "spaces and actions are the scenario's",
    ),
    _refused("rollout_fragment_length batch_mode", "every sample holds complete episodes: `num_envs_per_env_runner`"),
    _refused("episode_lookback_horizon", "every sample holds complete episodes"),
    _refused("create_local_env_runner", "there is always a local env runner, which knows the spaces"),
    _refused("count_steps_by", "steps are rounds of the protocol (`env_steps`)"),
    _refused("exploration_config", "`explore`, and the rule's own settings"),
    _refused("render_env", "`nip-ray report` shows dialogues"),
    _no_effect("gym_env_vectorize_mode", "copies are played as tensors"),
    _no_effect("episodes_to_numpy compress_observations", "samples hold tokens, not observations"),
    _no_effect("disable_env_checking", "only `ProtocolEnv` is played"),
    _no_effect(
        "merge_env_runner_states broadcast_env_runner_states", "there are no connectors with states to merge or send"
    ),
    # evaluation
    _honoured(
        "evaluation_interval evaluation_duration evaluation_duration_unit evaluation_num_env_runners"
        " evaluation_parallel_to_training evaluation_auto_duration_min_env_steps_per_sample"
        " evaluation_auto_duration_max_env_steps_per_sample evaluation_sample_timeout_s"
        " evaluation_unhealthy_workers_timeout_s evaluation_error_after_n_consecutive_skips custom_evaluation_function",
        "RLlib's evaluation; time steps are met by whole episodes",
    ),
    _honoured("evaluation_config", "also `env_config.split`; without it held-out instances (`test`) are played"),
    _honoured(
        "evaluation_force_reset_envs_before_iteration",
        "each evaluation plays the same episodes; false: each plays others",
    ),
    _refused("off_policy_estimation_methods ope_split_batch_by_episode", "evaluations are played"),
    # callbacks
    _honoured(
        "callbacks_class callbacks_on_algorithm_init callbacks_on_train_result callbacks_on_evaluate_start"
        " callbacks_on_evaluate_end callbacks_on_env_runners_recreated callbacks_on_checkpoint_loaded",
        "as RLlib calls them",
    ),
    _honoured(
        "callbacks_on_environment_created", "`env` is the one-copy `ProtocolEnv` that knows the env runner's spaces"
    ),
    _honoured("callbacks_on_sample_end", "`samples` is a list of `RolloutSamples`"),
    _honoured(
        "callbacks_on_episode_end",
        "`episode` is a `RolloutSamples` of one copy, called when all copies of a sample have ended",
    ),
    _refused(
        "callbacks_on_episode_created callbacks_on_episode_start callbacks_on_episode_step",
        "copies are played together as tensors: `on_episode_end` or `on_sample_end`",
    ),
    _refused(
        "callbacks_on_evaluate_offline_start callbacks_on_evaluate_offline_end"
        " callbacks_on_offline_eval_runners_recreated",
        "there is no offline evaluation",
    ),
    # processes, faults
    _honoured(
        "num_env_runners num_cpus_per_env_runner num_gpus_per_env_runner custom_resources_per_env_runner num_learners"
        " num_cpus_per_learner num_gpus_per_learner custom_resources_per_learner local_gpu_idx placement_strategy"
        " num_cpus_for_main_process custom_resources_for_main_process",
        "processes and the resources that they request",
    ),
    _honoured(
        "sample_timeout_s restart_failed_env_runners max_num_env_runner_restarts delay_between_env_runner_restarts_s "
        "env_runner_health_probe_timeout_s env_runner_restore_timeout_s validate_env_runners_after_construction",
        "how lost env runners are noticed and recreated",
    ),
    _refused(
        "ignore_env_runner_failures restart_failed_sub_environments num_consecutive_env_runner_failures_tolerance",
        "a lost env runner's share is played by another: `max_num_env_runner_restarts`",
    ),
    _refused(
        "num_aggregator_actors_per_learner max_requests_in_flight_per_aggregator_actor",
        "an iteration is synchronous, without aggregators",
    ),
    _refused("use_env_runner_state_server env_runner_state_server_max_concurrency", "weights are sent once a node"),
    _refused("_dont_auto_sync_env_runner_states", "there are no states of connectors to send"),
    _refused(
        "extra_python_environs_for_driver extra_python_environs_for_worker", "`runtime_env` of `ray.init` or of the job"
    ),
    _refused("num_gpus _fake_gpus", "`num_gpus_per_learner`"),
    _no_effect(
        "max_requests_in_flight_per_env_runner max_requests_in_flight_per_learner", "training waits for every request"
    ),
    # reports, checkpoints
    _honoured(
        "min_time_s_per_iteration min_train_timesteps_per_iteration min_sample_timesteps_per_iteration",
        "RLlib's iteration lasts until it has so much; one of ours at least",
    ),
    _honoured("log_level stats_cls_lookup _use_msgpack_checkpoints", "as in RLlib"),
    _refused("metrics_num_episodes_for_smoothing", "metrics are means over all episodes of a sample"),
    _refused("log_gradients", "`learn/<agent>/grad_norm` is always there"),
    _refused(
        "export_native_model_files checkpoint_trainable_policies_only",
        "checkpoints hold all agents; `networks()` are torch modules",
    ),
    _no_effect(
        "log_sys_usage metrics_episode_collection_timeout_s sync_filters_on_rollout_workers_timeout_s",
        "of RLlib's old stack",
    ),
    # the rest
    _refused(
        "input_ offline_data_class input_read_method input_read_method_kwargs input_read_schema input_read_episodes"
        " input_read_sample_batches input_read_batch_size input_filesystem input_filesystem_kwargs"
        " input_compress_columns input_spaces_jsonable input_config materialize_data materialize_mapped_data"
        " map_batches_kwargs iter_batches_kwargs ignore_final_observation prelearner_class prelearner_buffer_class"
        " prelearner_buffer_kwargs prelearner_module_synch_period prelearner_use_recorded_module_states"
        " dataset_num_iters_per_learner actions_in_input_normalized postprocess_inputs shuffle_buffer_size _is_online",
        "learning is on what is played, or by `learn_from(samples)`",
    ),
    _refused(
        "output output_config output_compress_columns output_max_file_size output_max_rows_per_file"
        " output_write_remaining_data output_write_method output_write_method_kwargs output_filesystem"
        " output_filesystem_kwargs output_write_episodes offline_sampling",
        "`on_sample_end`, whose samples can be pickled",
    ),
    _refused(
        "offline_evaluation_interval num_offline_eval_runners offline_evaluation_type offline_eval_runner_class"
        " offline_loss_for_module_fn offline_evaluation_duration offline_evaluation_parallel_to_training"
        " offline_evaluation_timeout_s num_cpus_per_offline_eval_runner num_gpus_per_offline_eval_runner"
        " custom_resources_per_offline_eval_runner restart_failed_offline_eval_runners"
        " ignore_offline_eval_runner_failures max_num_offline_eval_runner_restarts"
        " offline_eval_runner_restore_timeout_s max_requests_in_flight_per_offline_eval_runner"
        " validate_offline_eval_runners_after_construction offline_eval_runner_health_probe_timeout_s"
        " offline_eval_rl_module_inference_only broadcast_offline_eval_runner_states offline_eval_batch_size_per_runner"
        " dataset_num_iters_per_eval_runner",
        "evaluations are played: `evaluation_interval`",
    ),
    _refused("framework_str", "networks are torch modules"),
    _refused(
        "enable_rl_module_and_learner enable_env_runner_and_connector_v2 eager_tracing eager_max_retraces"
        " tf_session_args local_tf_session_args enable_tf1_exec_eagerly remote_worker_envs remote_env_batch_wait_ms"
        " sample_collector update_worker_filter_stats use_worker_filter_stats sampler_perf_stats_ema_coef"
        " policy_map_capacity policy_states_are_swappable keep_per_episode_custom_metrics fake_sampler"
        " replay_sequence_length _is_atari _disable_preprocessor_api _disable_action_flattening"
        " _disable_initialize_loss_from_dummy_batch _tf_policy_handles_more_than_one_loss _prior_exploration_config",
        "nothing: they are for RLlib's old stack",
    ),
    _refused("_validate_config", "configs are always checked"),
)

CHECKED_APART = ("env", "policies", "policy_mapping_fn")
"""Refused unless they have the values of `.experiment()`; see `ProtocolAlgorithmConfig.validate`."""
SET_IN_EVALUATION = ("batch_mode", "rollout_fragment_length")
"""Set by RLlib itself in the config of an evaluation."""

REFUSED_CALLS = {
    "compute_single_action": "get_module(agent).policy(obs), or networks()",
    "compute_actions": "get_module(agent).policy(obs), or networks()",
    "add_module": "a protocol with that agent: each agent has one module, of its name",
    "remove_module": "a protocol without that agent: each agent has one module, of its name",
    "get_policy": "get_module(agent)",
    "add_policy": "a protocol with that agent",
    "remove_policy": "a protocol without that agent",
    "export_policy_model": "networks(), which are torch modules",
    "export_policy_checkpoint": "save_to_path()",
    "export_model": "networks(), which are torch modules",
}
"""Methods of RLlib's `Algorithm` that ours do not support -> the alternative."""


_MOST = 3
"""Options of a row that the page names; a refused one is named by the error anyway."""
_WHOLE = 6
"""Refused options of one kind of which the page names the kind alone."""
_EXAMPLE = """
from nip_ray.config.load import load_config
from nip_ray.rllib.ppo import ProtocolPPOConfig

config = ProtocolPPOConfig().experiment(load_config("tune_configs/message_game.yaml"))
config.training(lr=1e-3, minibatch_size=512).env_runners(num_envs_per_env_runner=64)
"""


def refuse_unhonoured(config: Any, defaults: Any) -> None:
    """Raise one UserError naming all refused options of `config` that differ from `defaults`, a config of its class."""
    skipped = (*CHECKED_APART, *(SET_IN_EVALUATION if config.in_evaluation else ()))
    faults = [
        f"{_shown(option)}: not honoured by {type(config).__name__}, use instead: {row.text.replace('`', '')}"
        for row in OPTIONS
        if row.verdict == "refused"
        for option in row.options
        if option not in skipped and getattr(config, option, None) != getattr(defaults, option, None)
    ]
    if faults:
        raise UserError("; ".join(faults))


def refused_call(name: str) -> Any:
    """A method that raises UserError with the alternative."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise UserError(f"{name}: {type(self).__name__} does not have it, use instead: {REFUSED_CALLS[name]}")

    return refuse


def options_markdown() -> str:
    """docs/rllib-options.md."""
    return "\n".join(_page())


def _shown(option: str) -> str:
    """An option as users write it: some are stored under another name."""
    return "framework" if option == "framework_str" else option.lstrip("_")


def _page() -> Iterator[str]:
    yield "# RLlib's options"
    yield ""
    yield "Use this page when you set options of RLlib on `ProtocolPPOConfig` or another config of this package."
    yield ""
    yield from ("```python", *_EXAMPLE.strip().splitlines(), "```", "")
    yield "`validate()`, and so `build_algo()`, names each refused option that is set, and the substitute listed here."
    for verdict, title in (("honoured", "Honoured"), ("refused", "Refused, with what to use instead")):
        yield from ("", f"## {title}", "")
        for row in OPTIONS:
            if row.verdict == verdict and not (verdict == "refused" and len(row.options) > _WHOLE):
                names = [f"`{_shown(option)}`" for option in row.options]
                more = [f"and {len(names) - _MOST} like them"] if len(names) > _MOST + 1 else []
                yield _entry([*(names[:_MOST] if more else names), *more], row.text)
    yield from ("", "Also refused: all options of offline data, offline evaluation, compilation and RLlib's old stack.")
    without = [f"`{_shown(option)}`" for row in OPTIONS if row.verdict == "no effect" for option in row.options]
    yield from ("", "## Without effect on results", "")
    yield textwrap.fill(f"{', '.join(without)}.", 118, break_long_words=False, break_on_hyphens=False)
    yield from ("", "## Methods of `Algorithm` that are refused", "")
    for text in dict.fromkeys(REFUSED_CALLS.values()):
        yield _entry([f"`{name}`" for name, instead in REFUSED_CALLS.items() if instead == text], text)
    yield from (
        "",
        "<!-- written by `python -m nip_ray.rllib.options`; edit the table there and write it again -->",
        "",
    )


def _entry(names: list[str], text: str) -> str:
    entry = f"- {', '.join(names)}: {text}"
    return textwrap.fill(entry, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.stdout.write(options_markdown())
