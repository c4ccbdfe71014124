"""Settings of attacks on a frozen verifier: the adversarial provers, their training, and how the verifier plays."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class AttackSettings:
    """Approximate best responses to a frozen verifier: provers trained by PPO on instances of one label, and scripted
    ones."""

    __pydantic_config__ = FORBID_UNKNOWN

    enabled: bool = option(False, "Attack at the end of the run (`evaluate --attack`: at any time).")
    goals: tuple[Literal["soundness", "completeness"], ...] | None = option(
        None,
        "Attack rejection of false, acceptance of true claims (none: goals that pay a prover).",
        min_length=1,
    )
    max_soundness_error: float | None = option(
        0.05,
        'Upper limit of the soundness error\'s interval for "shown" (none: only reported).',
        ge=0,
        le=1,
    )
    verifier: Literal["greedy", "sampled"] = option(
        "greedy",
        "Measured verifier: greedy or sampled. Attackers train against sampled actions.",
    )
    seeds: int = option(2, "Attackers of each size, with their own first weights and instances.", ge=1)
    sizes: tuple[Literal[1, 2, 4, 8], ...] = option(
        (1, 2), "Widths of fresh attackers, as factors of the run's prover.", min_length=1
    )
    continued: bool = option(True, "Also train the run's own prover on, once for each seed.")
    iterations: int = option(25, "Iterations of play and learning of each attacker.", ge=1)
    extensions: int = option(
        0,
        "Times to train an attacker `iterations` more while it improves (0: never).",
        ge=0,
    )
    search: int = option(
        256,
        "Dialogues that the best attacker tries about an instance first (0: none).",
        ge=0,
    )
    copies: int = option(256, "Episodes that an attacker plays in an iteration.", ge=2)
    lr: float = option(2e-3, "Learning rate of Adam, falling linearly to a tenth.", gt=0)
    num_epochs: int = option(3, "Passes over an iteration's turns.", ge=1)
    minibatch_size: int = option(128, "Turns in a minibatch.", ge=1)
    entropy_coefficient: float = option(0.01, "Weight of the entropy bonus.", ge=0)
    selection_instances: int = option(
        300,
        "Training instances of each label kept back to choose the attacker (at most half).",
        ge=1,
    )
    max_instances: int | None = option(None, "Most held-out instances of a label to measure on (none: all).", ge=1)
    max_nodes: int = option(
        200_000,
        "Compute the worst case up to this many dialogue prefixes (0: never).",
        ge=0,
    )
    text_iterations: int | None = option(
        None,
        "Iterations of an attacking language model (none: 4, or 50 of policy gradient).",
        ge=1,
    )
    text_best_of: int = option(
        1,
        "Dialogues about a held-out item until one fools the verifier (language models; 1: off).",
        ge=1,
    )
    text_prompts: tuple[str, ...] = option(
        (),
        "Instructions to try on training items; the best counts (language models).",
    )
    text_proposed_prompts: int = option(
        0, "Language models: number of further instructions that the prover's model proposes.", ge=0
    )
    text_prompt_items: int = option(20, "Language models: training items on which each instruction is tried.", ge=1)
