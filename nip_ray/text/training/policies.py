"""Models that play and learn under policy gradient, one per group of agents, wherever they run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.learning.token_losses import Surrogate, clipped_surrogate
from nip_ray.learning.token_rows import Turn
from nip_ray.seeding import stable_seed
from nip_ray.serving.chat_format import ChatFormat
from nip_ray.serving.generation import Generation, GenerationRequest
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.serving.shelf import ModelFolders
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.providers import LocalProvider, ProviderSettings, TrainingServiceProvider


class Policy(Protocol):
    """One set of weights that is sampled from and that learns.

    chat: makes tokens of chats. samples_apart: sampling has separate weights, of the last `take`, so it may be called
    (from another thread) while a step is taken; else it uses the learning weights.
    """

    chat: ChatFormat
    samples_apart: bool

    @property
    def steps(self) -> int:
        """Number of learning steps."""
        ...

    def sample(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Replies with log-probabilities, in the order of the requests."""
        ...

    def forget(self) -> None:
        """Clear sampling caches: cached prompts change the last bits of later results."""
        ...

    def logprobs(self, turns: Sequence[Turn], max_tokens: int = 16384) -> list[list[float]]:
        """The log-probability of every token of these replies, as a learner with the sampling weights computes it.

        max_tokens: in one forward pass.
        """
        ...

    def keep_start(self, folder: Path) -> None:
        """Use the model in `folder` as the reference of KL divergences: the initial one, or one from `save`."""
        ...

    def step(
        self,
        turns: Sequence[Turn],
        settings: TokenTrainingSettings,
        max_tokens: int,
        surrogate: Surrogate = clipped_surrogate,
    ) -> dict[str, float]:
        """One step of policy gradient on a minibatch; see `PolicyModel.step`."""
        ...

    def supervised_step(self, turns: Sequence[Turn], settings: TokenTrainingSettings) -> dict[str, float]:
        """One step of supervised learning on replies; see `PolicyModel.supervised_step`."""
        ...

    def forget_moments(self) -> None:
        """Restart the optimizer: moments of another loss would scale the steps of the next one."""
        ...

    def average(self, decay: float) -> None:
        """Add the weights to their exponential average."""
        ...

    def show_averages(self, shown: bool) -> None:
        """Put the averages in the place of the weights, or put these back; between them nothing is learned."""
        ...

    def weights(self) -> Mapping[str, Any]:
        """The current learning weights, or how to obtain them: tensors on the CPU and plain values."""
        ...

    def take(self, weights: Mapping[str, Any]) -> None:
        """Sample with these `weights` from now on."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything needed to continue learning: nested dicts of tensors on the CPU and plain values."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue learning and sampling from a `state`."""
        ...

    def save(self, folder: Path) -> str:
        """Save it, under the folder's name or in it, atomically; return the name by which its provider serves it."""
        ...

    def close(self) -> None:
        """Release resources."""
        ...


def policy_for(config: TextExperimentConfig, group: str, run_dir: Path) -> Policy:
    """The policy of a group of agents. Raises UserError for an unusable model."""
    rule = config.algorithm
    assert isinstance(rule, TokenTrainingSettings)
    device = "cpu" if rule.num_rollout_workers and rule.num_learners else None  # this process computes little
    first, provider = _first(config, group)
    if isinstance(provider, TrainingServiceProvider):
        from nip_ray.text.providers.training_policy import ServicePolicy

        return ServicePolicy(first.model, provider, trained=not first.frozen, seed=_seed(config, group) % 2**31)
    if first.frozen or not rule.num_learners:
        return model_for(config, group, run_dir, device)
    from nip_ray.serving.learner_group import LearnerGroup

    limit_s = config.fault_tolerance.hang_timeout_s
    return LearnerGroup(
        start_folder(config, group, run_dir), _local(provider), rule, _seed(config, group), device, limit_s
    )


def model_for(config: TextExperimentConfig, group: str, run_dir: Path, device: str | None = None) -> PolicyModel:
    """The model of a group of agents, in this process. Raises UserError if it cannot be used."""
    first, provider = _first(config, group)
    return PolicyModel(
        start_folder(config, group, run_dir),
        _local(provider),
        trained=not first.frozen,
        seed=_seed(config, group),
        device=device,
    )


def _first(config: TextExperimentConfig, group: str) -> tuple[LanguageAgentSettings, ProviderSettings]:
    first = language_agents(config)[groups(config)[group][0]]
    return first, config.providers[first.provider]


def _local(provider: ProviderSettings) -> LocalProvider:
    assert isinstance(provider, LocalProvider)  # ensured by the rules of the config
    return provider


def _seed(config: TextExperimentConfig, group: str) -> int:
    return stable_seed(config.seed, "model", group)


def home_of(config: TextExperimentConfig, group: str, run_dir: Path) -> Path:
    """The folder of a group's provider in a run folder; saved models are in its `models`."""
    return run_dir / language_agents(config)[groups(config)[group][0]].provider


def start_folder(config: TextExperimentConfig, group: str, run_dir: Path) -> Path:
    """The folder of the config's model for a group; for a hosted one that of its provider, without a model in it."""
    first, home = language_agents(config)[groups(config)[group][0]], home_of(config, group, run_dir)
    provider = config.providers[first.provider]
    return (
        ModelFolders(home, provider.default_model_seed).locate(first.model)
        if isinstance(provider, LocalProvider)
        else home
    )


def use_threads(config: TextExperimentConfig) -> None:
    """Use as many threads as the provider of local models allows."""
    for provider in config.providers.values():
        if isinstance(provider, LocalProvider):
            torch.set_num_threads(provider.threads)
