"""What RLlib's own options do to our algorithms, one option after the other, in this process."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from ray._common.deprecation import DEPRECATED_VALUE
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.tune.result import STDERR_FILE, STDOUT_FILE

from nip_ray.errors import UserError
from nip_ray.rllib.env_runner import ProtocolEnvRunner
from nip_ray.rllib.module import AgentModule
from nip_ray.rllib.options import CHECKED_APART, OPTIONS, REFUSED_CALLS, options_markdown, refuse_unhonoured
from nip_ray.rllib.ppo import ProtocolPPO, ProtocolPPOConfig
from nip_ray.rllib.protocol_env import ProtocolEnv
from nip_ray.rllib.registry import ALGORITHMS
from tests.rllib.experiments import Weights, distance, message_game, train, trained, weights
from tests.rllib.test_dqn import dqn


def config_of(**changes: Any) -> ProtocolPPOConfig:
    return ProtocolPPOConfig().experiment(message_game(**changes))


def after(config: AlgorithmConfig, iterations: int = 1) -> Weights:
    algorithm: Any = config.build_algo()
    try:
        return train(algorithm, iterations)
    finally:
        algorithm.stop()


@pytest.fixture(scope="module")
def baseline() -> Weights:
    return trained(message_game(), 1)


def test_rllibs_seed_is_the_seed(baseline: Weights) -> None:
    """Of new networks, of what is played, and of minibatches: the numbers are those of an experiment with that seed."""
    assert distance(after(config_of().debugging(seed=0)), baseline) == 0
    given: Any = {**config_of().to_dict(), "seed": 1, STDOUT_FILE: None, STDERR_FILE: None}  # as Tune gives it
    algorithm: Any = ProtocolPPO(given)
    tried = train(algorithm, 1)
    algorithm.stop()
    assert distance(tried, trained(message_game(seed=1), 1)) == 0
    assert distance(tried, baseline) > 1e-3
    with pytest.raises(UserError, match="seed: got None"):
        config_of().debugging(seed=None).validate()


@pytest.mark.parametrize("chosen", [["prover"], lambda agent, batch: agent == "prover"])
def test_policies_to_train(baseline: Weights, chosen: Any) -> None:
    """Whoever is not named rests, whatever the form."""
    fresh = after(config_of(), 0)
    found = after(config_of().multi_agent(policies_to_train=chosen))
    assert distance({"_": found["verifier"]}, {"_": fresh["verifier"]}) == 0
    assert distance({"_": found["prover"]}, {"_": baseline["prover"]}) == 0


def test_policies_to_train_are_agents() -> None:
    with pytest.raises(UserError, match="'provers' is not an agent of this game, did you mean prover"):
        config_of().multi_agent(policies_to_train=["provers"]).validate()


class Watched(ProtocolEnvRunner):
    """Remembers the instances that it has played."""

    played: list[list[int]] = []

    def _played(self, id_B: torch.Tensor, *rest: Any, **extra: Any) -> Any:
        self.played.append(id_B.tolist())
        return super()._played(id_B, *rest, **extra)


@pytest.mark.parametrize("interval", [None, 1])
def test_evaluation_plays_held_out_instances(interval: int | None) -> None:
    """By `algo.evaluate()` and within `train`; the same ones each time, and training instances where they are asked
    for."""
    algorithm: Any = (
        config_of()
        .env_runners(env_runner_cls=Watched)
        .evaluation(evaluation_interval=interval, evaluation_duration=5)
        .build_algo()
    )
    try:
        test, train_ids = (set(algorithm.scenario.ids(split).tolist()) for split in ("test", "train"))
        Watched.played.clear()
        results = algorithm.train()
        assert set(Watched.played[0]) <= train_ids
        found = (results["evaluation"] if interval else algorithm.evaluate())["env_runners"]
        assert found["num_episodes"] == 5
        again = algorithm.evaluate()["env_runners"]
        assert Watched.played[1] == Watched.played[2]
        assert set(Watched.played[1]) <= test
        assert len(set(Watched.played[1])) == 5
        assert again["episode_return_mean"] == found["episode_return_mean"]
        assert distance(weights(algorithm), trained(message_game(), 1)) == 0
    finally:
        algorithm.stop()


@pytest.mark.parametrize("none", [{"num_episodes": 0}, {"num_timesteps": 0}])
def test_a_runner_without_a_share_plays_nothing(none: dict[str, int]) -> None:
    """RLlib's evaluation gives 0 to runners when there are more of them than episodes, and reads their counts."""
    algorithm: Any = config_of().build_algo()
    try:
        assert algorithm.env_runner.sample(**none) == []
        found = algorithm.env_runner.get_metrics()
        assert (found["num_episodes"].peek(), found["num_env_steps_sampled"].peek()) == (0, 0)
        assert sum(map(len, algorithm.env_runner.sample(num_episodes=3))) == 3
    finally:
        algorithm.stop()


def test_means_of_unequal_shares_are_means_over_episodes() -> None:
    algorithm: Any = config_of().build_algo()
    try:
        runner, returns, parts = algorithm.env_runner, [], []
        for share in (7, 1, 0, 2):
            returns += [
                gain
                for sample in runner.sample(num_episodes=share)
                for gain in sample.rollout.reward_BRA.sum((1, 2)).tolist()
            ]
            parts.append(runner.get_metrics())
        root = MetricsLogger(root=True)
        root.aggregate(parts[:2], key="env_runners")
        root.aggregate(parts[2:], key="env_runners")
        found = root.reduce()["env_runners"]
        assert float(found["episode_return_mean"]) == pytest.approx(sum(returns) / 10)
        assert len({sum(returns[:7]) / 7, returns[7], sum(returns[8:]) / 2}) > 1
        assert found["num_episodes"] == 10
    finally:
        algorithm.stop()


def other_than(value: Any) -> Any:
    """A value that nobody has as a default."""
    if isinstance(value, bool):
        return not value
    return {"other": 1} if isinstance(value, dict) else ["other"] if isinstance(value, list) else "other"


INTERNAL = ("algo_class", "in_evaluation", "_is_frozen", "_per_module_overrides")  # attributes that are no options
DEFAULTS = {
    name: value
    for name, value in vars(AlgorithmConfig()).items()
    if name not in INTERNAL and str(value) != str(DEPRECATED_VALUE)
}
VERDICTS = {option: row.verdict for row in OPTIONS for option in row.options}


def test_every_option_of_rllib_has_a_verdict() -> None:
    """A new Ray brings new options, which belong into the table."""
    assert sorted(VERDICTS) == sorted(DEFAULTS)
    assert sum(len(row.options) for row in OPTIONS) == len(VERDICTS), "an option stands twice"


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_refused_options_are_refused_by_name(name: str) -> None:
    """Each one set away from its default is refused, alone; none of the others is by the table."""
    made = ALGORITHMS[name]()
    for option, verdict in VERDICTS.items():
        if option in CHECKED_APART:
            continue
        config = made.copy(copy_frozen=False)
        vars(config)[option] = other_than(vars(config)[option])
        if verdict == "refused":
            said = (
                f"^{option.lstrip('_').removesuffix('_str')}: not honoured by {type(made).__name__}, use instead: .+$"
            )
            with pytest.raises(UserError, match=said):
                refuse_unhonoured(config, made)
        else:
            refuse_unhonoured(config, made)


class OwnForward(AgentModule):
    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {}


class Stepping(RLlibCallback):
    def on_episode_step(self, **kwargs: Any) -> None: ...


def with_own_forward() -> AlgorithmConfig:
    config = config_of()
    spec: Any = config.rl_module_spec
    spec.rl_module_specs["prover"].module_class = OwnForward
    return config.rl_module(rl_module_spec=spec)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (lambda: config_of().environment(env="CartPole-v1"), r"env: got 'CartPole-v1'.* use instead: \.experiment"),
        (lambda: config_of().environment(env_config={"size": 3}), r"env_config\.size: unknown key"),
        (
            lambda: config_of().environment(env_config={"experiment": {"iterations": 7}}),
            r"env_config\.experiment: differs",
        ),
        (
            lambda: config_of().multi_agent(policy_mapping_fn=lambda agent, episode: "prover"),
            "policy_mapping_fn: every agent",
        ),
        (
            lambda: config_of().multi_agent(policies={"prover"}),
            "policies: got prover, expected one for each agent: prover, verifier",
        ),
        (with_own_forward, "rl_module_spec: prover: a custom _forward is never called"),
        (lambda: config_of().callbacks(Stepping), "Stepping.on_episode_step: never called, use instead"),
        (lambda: config_of().training(lr=[[0, 1e-3], [100, 1e-4]]), r"algorithm\.lr: got \[\[0, .*expected number > 0"),
        (
            lambda: config_of().training(entropy_coefficent=0.1),
            "entropy_coefficent=.*unknown, did you mean entropy_coefficient",
        ),
        (
            lambda: config_of().rl_module(algorithm_config_overrides_per_module={"prover": {"gamma": 0.5}}),
            "prover: got gamma, expected lr",
        ),
        (lambda: config_of().training(lam=0.9, lambda_=0.8), "lambda_=.*: lam is another word for it and is given too"),
        (lambda: config_of().update_from_dict({"learner_class": 3}), "learner_class: got 3, expected a subclass"),
        (
            lambda: config_of().evaluation(evaluation_config={"lam": 0.5}),
            r"evaluation_config\.lam: has no effect in an evaluation",
        ),
        (lambda: config_of().training(minibatch_size=65), "minibatch_size: got 65, but an iteration has 64 frames"),
        (
            lambda: config_of().learners(num_learners=3),
            "num_learners: got 3, but 16 copies in an iteration cannot be shared evenly",
        ),
        (
            lambda: ALGORITHMS["dqn"]().experiment(dqn()).env_runners(num_envs_per_env_runner=8),
            "num_copies: dqn has no use for it",
        ),
        (
            lambda: ALGORITHMS["dqn"]().experiment(dqn()).env_runners(explore=True),
            "explore: got true, which is for policies",
        ),
        (lambda: ProtocolPPOConfig(), r"call \.experiment"),
    ],
)
def test_what_is_not_honoured_is_said(config: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        config().validate()


@pytest.mark.parametrize("name", REFUSED_CALLS)
def test_methods_that_are_not_honoured_say_what_to_use(name: str) -> None:
    assert hasattr(Algorithm, name), "RLlib has it no longer"
    with pytest.raises(UserError, match=f"{name}: ProtocolPPO does not have it, use instead"):
        getattr(object.__new__(ProtocolPPO), name)({})


def test_the_page_of_options_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "rllib-options.md"
    assert page.read_text() == options_markdown(), (
        "write it again: python -m nip_ray.rllib.options > docs/rllib-options.md"
    )


def test_settings_of_the_rule_count_by_name(baseline: Weights) -> None:
    """In a dumped config with one changed, as an attribute, and under RLlib's own names: all as by `training`."""
    expected = after(config_of().training(entropy_coefficient=0.9, max_grad_norm=0.01))
    changed = {"entropy_coefficient": 0.9, "grad_clip": 0.01}
    assert distance(after(ProtocolPPOConfig().update_from_dict({**config_of().to_dict(), **changed})), expected) == 0
    config = config_of()
    config.entropy_coefficient, config.max_grad_norm = 0.9, 0.01  # type: ignore[attr-defined]
    assert distance(after(config), expected) == 0
    assert (
        distance(
            after(config_of().update_from_dict({"rule": {"entropy_coefficient": 0.9, "max_grad_norm": 0.01}})), expected
        )
        == 0
    )
    assert distance(after(config_of().training(entropy_coeff=0.9, grad_clip=0.01)), expected) == 0
    assert distance(expected, baseline) > 1e-4


def test_a_dumped_config_keeps_settings_that_are_as_by_rllibs_default() -> None:
    config = config_of(
        algorithm=dict(gamma=AlgorithmConfig().gamma, lr=AlgorithmConfig().lr, num_epochs=AlgorithmConfig().num_epochs)
    )
    assert (
        ProtocolPPOConfig().update_from_dict(config.to_dict()).settings() == config.settings() != config_of().settings()
    )


def test_an_agent_may_have_a_learning_rate_of_its_own(baseline: Weights) -> None:
    """That agent's weights are those of a run at that rate, the other's those of the base rate, in the first
    minibatches."""
    once = dict(num_epochs=1, minibatch_size=64)
    own = (
        config_of()
        .training(**once)
        .rl_module(algorithm_config_overrides_per_module={"prover": ProtocolPPOConfig.overrides(lr=0.01)})
    )
    found, fast, slow = after(own), after(config_of().training(**once, lr=0.01)), after(config_of().training(**once))
    assert distance({"_": found["prover"]}, {"_": fast["prover"]}) == 0
    assert distance({"_": found["verifier"]}, {"_": slow["verifier"]}) == 0
    assert distance(fast, slow) > 1e-4


class Counting(RLlibCallback):
    """Counts what it is told."""

    seen: Counter[str] = Counter()

    def on_environment_created(self, *, env: Any, env_context: Any, **kwargs: Any) -> None:
        self.seen["environment"] += isinstance(env, ProtocolEnv) and "experiment" in env_context

    def on_sample_end(self, *, samples: Any, **kwargs: Any) -> None:
        self.seen["samples"] += len(samples)

    def on_episode_end(self, *, episode: Any, env_index: int, metrics_logger: Any, **kwargs: Any) -> None:
        self.seen["episodes"] += len(episode)
        metrics_logger.log_value("longest", float(episode.env_steps()), reduce="max")


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_callbacks_of_env_runners(name: str) -> None:
    """Of the environment, of samples and of the episodes in them; what they log is in the results."""
    Counting.seen.clear()
    config = config_of() if name == "ppo" else ALGORITHMS[name]().experiment(dqn())
    algorithm: Any = config.callbacks(Counting).build_algo()
    try:
        results = algorithm.train()["env_runners"]
        assert Counting.seen["environment"] == 1
        assert Counting.seen["episodes"] == results["num_episodes"] > 0
        assert Counting.seen["samples"] >= 1
        assert results["longest"] > 0
    finally:
        algorithm.stop()
