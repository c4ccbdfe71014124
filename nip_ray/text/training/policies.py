"""Models that play and learn under policy gradient, one for a group of agents, wherever they run."""

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

    chat: makes tokens of chats. samples_apart: what samples has weights of its own, as of the last `take`, so that it
    may be asked (from another thread) while a step is taken; else it samples by the weights that learn.
    """

    chat: ChatFormat
    samples_apart: bool

    @property
    def steps(self) -> int:
        """Of learning, since it was made."""
        ...

    def sample(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Replies with log-probabilities, in the order of the requests."""
        ...

    def forget(self) -> None:
        """Start sampling afresh: what was computed for earlier prompts changes the last bits of later ones."""
        ...

    def logprobs(self, turns: Sequence[Turn], max_tokens: int = 16384) -> list[list[float]]:
        """The log-probability of every token of these replies, as a learner with the weights that sample would compute
        it.

        max_tokens: in one forward pass.
        """
        ...

    def keep_start(self, folder: Path) -> None:
        """Have the model in `folder` as the one that KL divergences are to: what it was made of, or what `save` has put
        there."""
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

    def weights(self) -> Mapping[str, Any]:
        """The weights that learn, as they are now, or how they can be had again: tensors on the CPU and plain
        values."""
        ...

    def take(self, weights: Mapping[str, Any]) -> None:
        """Sample by these `weights` from here on."""
        ...

    def state(self) -> dict[str, Any]:
        """All that it takes to learn on: nested dicts of tensors on the CPU and plain values."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Learn on, and sample, from a `state`."""
        ...

    def save(self, folder: Path) -> str:
        """Keep it, under the folder's name or in it, whole or not at all; returns the name by which its provider serves
        it."""
        ...

    def close(self) -> None:
        """Give back what it holds elsewhere."""
        ...


def policy_for(config: TextExperimentConfig, group: str, run_dir: Path) -> Policy:
    """The policy of a group of agents. Raises UserError for a model that cannot be used."""
    rule = config.algorithm
    assert isinstance(rule, TokenTrainingSettings)
    device = "cpu" if rule.num_rollout_workers and rule.num_learners else None  # this process has little to compute
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
    """The model of a group of agents, in this process. Raises UserError where it cannot be used."""
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
    assert isinstance(provider, LocalProvider)  # the rules of the config see to it
    return provider


def _seed(config: TextExperimentConfig, group: str) -> int:
    return stable_seed(config.seed, "model", group)


def home_of(config: TextExperimentConfig, group: str, run_dir: Path) -> Path:
    """The folder of a group's provider in a run's; models that are kept stand in its `models`."""
    return run_dir / language_agents(config)[groups(config)[group][0]].provider


def start_folder(config: TextExperimentConfig, group: str, run_dir: Path) -> Path:
    """The folder of the model that the config names for a group: of a hosted one that of its provider, with no model in
    it."""
    first, home = language_agents(config)[groups(config)[group][0]], home_of(config, group, run_dir)
    provider = config.providers[first.provider]
    return (
        ModelFolders(home, provider.default_model_seed).locate(first.model)
        if isinstance(provider, LocalProvider)
        else home
    )


def use_threads(config: TextExperimentConfig) -> None:
    """Compute with as many threads as the provider of local models says."""
    for provider in config.providers.values():
        if isinstance(provider, LocalProvider):
            torch.set_num_threads(provider.threads)
