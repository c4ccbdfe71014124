"""Settings of expert iteration, MALT, and other algorithms with fine-tuning jobs."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class FineTuningSettings:
    """Hyper-parameters of a fine-tuning job."""

    __pydantic_config__ = FORBID_UNKNOWN

    num_epochs: int | None = option(None, "Passes over the examples (none: the provider's default; local: 3).", ge=1)
    batch_size: int | None = option(None, "Examples in a step (none: the provider's default; local: 8).", ge=1)
    learning_rate_multiplier: float | None = option(
        None, "Factor on the provider's learning rate (none: its default).", gt=0
    )
    learning_rate: float | None = option(
        None, "Learning rate (local, training_service; none: 1e-4 for lora, 1e-3 for full).", gt=0
    )
    beta: float | None = option(
        None,
        "DPO's weight of staying close to its start (none: the provider's; local: 0.1).",
        gt=0,
    )
    nll_coefficient: float = option(
        0.0,
        "Weight of the better reply's negative log-likelihood in DPO's loss (local, training_service).",
        ge=0,
    )
    min_examples: int = option(10, "Fewer examples than these are not fine-tuned on.", ge=1)

    def faults(self) -> Iterator[str]:
        """Two learning rates."""
        if self.learning_rate is not None and self.learning_rate_multiplier is not None:
            yield "learning_rate_multiplier: learning_rate is given, which it would be a factor on, leave out either"


@dataclass(frozen=True)
class BaseRunSettings:
    """Another run that this one starts from: its settings of scenario and protocol are this config's own."""

    __pydantic_config__ = FORBID_UNKNOWN

    run_dir: str = option("", "Folder of the other run.", meaning={"path": "run"})
    kind: Literal["models", "rerun_tests"] = option(
        "models", "Continue from its last models, or test every iteration's models without training."
    )

    def faults(self) -> Iterator[str]:
        """A folder that is not a run of language models."""
        if not self.run_dir:
            yield "run_dir: missing, name the folder of another run"
        elif not (Path(self.run_dir) / "state.json").is_file():
            yield (
                f"run_dir: {self.run_dir}: not a run of language models (it has no state.json), name the folder of one"
            )


@dataclass(frozen=True)
class TextTrainingSettings:
    """Settings of all algorithms of language agents with fine-tuning jobs."""

    __pydantic_config__ = FORBID_UNKNOWN

    rollouts_per_iteration: int = option(200, "Items played in an iteration (malt: trees).", ge=1)
    format_warmup: int = option(
        0,
        "Dialogues of random, well-formed replies to learn the format from first (0: none).",
        ge=0,
    )
    warmup_agents: tuple[str, ...] = option(
        (),
        "Agents whose warm-up uses the scenario's examples instead of random replies.",
    )
    format_warmup_tuning: FineTuningSettings = option(
        FineTuningSettings, "Hyper-parameters of the format warm-up's fine-tuning jobs."
    )
    fine_tune_on_all_previous_rollouts: bool = option(
        False, "Learn from rollouts of all iterations, not only the last."
    )
    fine_tune_after_last: bool = option(False, "Fine-tune after the last sampling too (published: no).")
    guess_replacement: float = option(
        0.0, "Share of rollouts whose true verdict the verifier learns instead of its own.", ge=0, le=1
    )
    guess_replacement_annealing: Literal["none", "linear", "exponential"] = option(
        "none", "Decay of that share over iterations."
    )
    guess_replacement_rate: float = option(
        0.1, "Decay: subtracted (linear), or as factor 1 - rate (exponential).", ge=0, le=1
    )
    test_scheme: Literal["none", "all", "last", "first_and_last"] = option(
        "all", "Iterations in which held-out items are played."
    )
    num_test_items: int | None = option(None, "Held-out items to play (none: all).", ge=1)
    num_test_repeats: int = option(1, "Plays of each held-out item.", ge=1)
    test_while_fine_tuning: bool = option(False, "Play held-out items while fine-tuning jobs run.")
    fine_tuning: FineTuningSettings = option(FineTuningSettings, "Hyper-parameters of fine-tuning jobs.")

    replaces_guesses: ClassVar[bool] = True
    """True if `guess_replacement` has an effect; false for learning from pairs or trees."""

    def faults(self) -> Iterator[str]:
        """Settings without an effect."""
        if self.test_while_fine_tuning and self.test_scheme == "none":
            yield "test_while_fine_tuning: test_scheme is none, so there is nothing to play, set it to false"
        if self.warmup_agents and not self.format_warmup:
            yield "warmup_agents: format_warmup is 0, leave it out or raise that"
        for key in ("beta", "nll_coefficient", "min_examples"):
            if getattr(self.format_warmup_tuning, key) != getattr(FineTuningSettings, key):
                yield (
                    f"format_warmup_tuning.{key}: not for the warm-up, which is supervised and has all its examples,"
                    " leave it out"
                )
        if self.replaces_guesses:
            return
        name: str = self.name  # type: ignore[attr-defined]  # of the subclass
        for key in ("guess_replacement", "guess_replacement_annealing", "guess_replacement_rate"):
            if (given := getattr(self, key)) != getattr(TextTrainingSettings, key):
                yield f"{key}: got {given}, but {name} learns from pairs and replaces no guesses, leave it out"


@dataclass(frozen=True)
class ExpertIterationSettings(TextTrainingSettings):
    """Expert iteration: learn, supervised, from one's own dialogues that went well (Anthony, Tian and Barber, 2017)."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["expert_iteration"] = option("expert_iteration", "Expert iteration.")
    selection: Literal["threshold", "weighted_sampling"] = option(
        "threshold", "Keep what reached a reward, or sample by reward."
    )
    reward_threshold: float = option(0.9, "Episode reward from which an agent learns from its dialogue (threshold).")
    sample_size_factor: float = option(
        0.5, "Dialogues to draw, as a share of those there are (weighted_sampling).", gt=0
    )
    weighting_minimum: float | None = option(
        None, "Reward that gets weight zero (weighted_sampling; none: the smallest that occurred)."
    )
    weighting_with_replacement: bool = option(True, "A dialogue may be drawn more than once (weighted_sampling).")
    weighting_epsilon: float = option(0.01, "Weight spread evenly over all dialogues (weighted_sampling).", ge=0)

    def faults(self) -> Iterator[str]:
        """Settings of the other selection, and of preferences."""
        unset, drawn = (
            ExpertIterationSettings(),
            [field.name for field in fields(self) if field.name.startswith(("sample_", "weighting_"))],
        )
        for key in drawn if self.selection == "threshold" else ["reward_threshold"]:
            if getattr(self, key) != getattr(unset, key):
                yield f"{key}: is not for selection {self.selection}, leave it out"
        for key in ("beta", "nll_coefficient"):
            if getattr(self.fine_tuning, key):
                yield (
                    f"fine_tuning.{key}: is for preferences (DPO), and expert iteration learns from examples, leave"
                    " it out"
                )


@dataclass(frozen=True)
class MaltSettings(TextTrainingSettings):
    """MALT: a tree of replies for each item, and preference pairs from what they led to (Motwani et al., 2024)."""

    __pydantic_config__ = FORBID_UNKNOWN

    replaces_guesses = False

    name: Literal["malt"] = option("malt", "MALT.")
    num_responses: int = option(2, "Joint replies sampled at every node of a tree.", ge=2)
    reward_threshold: float | None = option(
        None, "Expected reward from which a reply is positive (none: the agent's reward mid-point)."
    )


@dataclass(frozen=True)
class TextFaultToleranceSettings:
    """Limits for processes of language agents that hang."""

    __pydantic_config__ = FORBID_UNKNOWN

    hang_timeout_s: float = option(
        120.0,
        "Seconds without a sign of life until a process is lost.",
        gt=0,
    )


@dataclass(frozen=True)
class TalkSettings:
    """Number and place of simultaneous dialogues."""

    __pydantic_config__ = FORBID_UNKNOWN

    num_talkers: int = option(0, "Ray actors that hold dialogues (0: in the main process).", ge=0)
    num_cpus_per_talker: float = option(1, "CPUs that Ray reserves for each talker.", ge=0)
    max_in_flight: int = option(64, "Calls waiting for an answer at once, over all talkers.", ge=1)
    max_invalid_share: float = option(
        0.5,
        "End if more of an agent's last 50 hosted replies are invalid (1: never).",
        ge=0,
        le=1,
    )
