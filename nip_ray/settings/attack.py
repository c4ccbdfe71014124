"""Settings of attacks on a frozen verifier: the adversarial provers, their training, and how the verifier plays."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class AttackSettings:
    """Approximate best responses to a frozen verifier: provers trained by PPO on instances of one label, and scripted
    ones."""

    __pydantic_config__ = FORBID_UNKNOWN

    enabled: bool = option(
        False, "At the end of every run (the command line's `evaluate --attack` does it at any time)."
    )
    goals: tuple[Literal["soundness", "completeness"], ...] | None = option(
        None,
        "Goals to attack: rejection of false claims, acceptance of true ones (none: those that a prover is paid to "
        "prevent).",
        min_length=1,
    )
    max_soundness_error: float | None = option(
        0.05,
        "Soundness counts as shown where the upper end of the soundness error's interval is at most this (none: it is"
        " only reported).",
        ge=0,
        le=1,
    )
    verifier: Literal["greedy", "sampled"] = option(
        "greedy",
        "The verifier that is measured: its most likely actions, or sampled ones. Attackers always train against the"
        " latter.",
    )
    seeds: int = option(2, "Attackers trained for each size, each with first weights and instances of its own.", ge=1)
    sizes: tuple[Literal[1, 2, 4, 8], ...] = option(
        (1, 2), "Widths of fresh attackers' networks, as factors on those of the run's prover.", min_length=1
    )
    continued: bool = option(True, "Also train the run's own prover on, once for each seed.")
    iterations: int = option(25, "Iterations of play and learning of each attacker.", ge=1)
    extensions: int = option(
        0,
        "Train each attacker `iterations` more while that fools more of the instances kept back, at most so often (0:"
        " never).",
        ge=0,
    )
    search: int = option(
        256,
        "The best attacker also searches: about each instance it tries up to so many dialogues with the frozen verifier"
        " before it speaks (0: it does not).",
        ge=0,
    )
    copies: int = option(256, "Episodes that an attacker plays in an iteration.", ge=2)
    lr: float = option(2e-3, "Learning rate of Adam, falling linearly to a tenth.", gt=0)
    num_epochs: int = option(3, "Passes over an iteration's turns.", ge=1)
    minibatch_size: int = option(128, "Turns in a minibatch.", ge=1)
    entropy_coefficient: float = option(0.01, "Weight of the entropy bonus.", ge=0)
    selection_instances: int = option(
        300,
        "Training instances kept back, of each label, on which the attacker that counts is chosen (at most half of"
        " them).",
        ge=1,
    )
    max_instances: int | None = option(
        None, "Measure on at most so many held-out instances of a label (none: all).", ge=1
    )
    max_nodes: int = option(
        200_000,
        "Compute the worst case over all messages where the dialogues of all instances have at most so many beginnings"
        " (0: never).",
        ge=0,
    )
    text_iterations: int | None = option(
        None,
        "Iterations of a language model's attack: samplings with a fine-tuning of the prover between each two of them"
        " (none: 4; 1: the prover as it is); on a run of policy gradient, iterations of that (none: 50).",
        ge=1,
    )
    text_best_of: int = option(
        1,
        "Language models: hold up to so many dialogues about each held-out item, until one fools the verifier (1: no"
        " such attack).",
        ge=1,
    )
    text_prompts: tuple[str, ...] = option(
        (),
        "Language models: instructions to try on training items; the best one is used on held-out items.",
    )
    text_proposed_prompts: int = option(
        0, "Language models: number of further instructions that the prover's model proposes.", ge=0
    )
    text_prompt_items: int = option(20, "Language models: training items on which each instruction is tried.", ge=1)
