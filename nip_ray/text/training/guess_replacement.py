"""Guess replacement: in a share of its dialogues the verifier learns the true verdict instead of its own.

Decisions that matter here:
- the verifier's guesses are replaced before a rule selects, and the rule sees the other dialogues only;
- the schedule is the published one (Hammond and Adam-Day, ICLR 2025): iterations count from 0, so the first has the whole share, and of n
  dialogues int(share * n) are replaced, after what rounding took away is given back (0.29 of 100 is 29). Who is replaced depends on (seed,
  iteration, agent) alone.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nip_ray.play.dialogue import Dialogue
from nip_ray.seeding import stable_seed
from nip_ray.settings.text_training import TextTrainingSettings
from nip_ray.text.training.learning_agent import Example, LearningAgent


def replaced_guesses(dialogues: Sequence[Dialogue], agent: LearningAgent) -> tuple[list[Example], list[Dialogue]]:
    """(examples in which the agent gives the true verdict, the dialogues that are left); provers, and all without a share, keep all."""
    part = share(agent.settings, agent.iteration)
    if agent.name not in agent.scenario.protocol.verifiers or not part:
        return [], list(dialogues)
    random = np.random.default_rng(stable_seed(agent.seed, "guess_replacement", agent.iteration, agent.name))
    order = random.permutation(len(dialogues)).tolist()
    count = int(part * len(dialogues) + 1e-9)
    examples: list[Example] = []
    for number in sorted(order[:count]):
        if own := agent.examples(dialogues[number]):
            examples += [*own[:-1], replace(own[-1], completion=agent.scenario.verdict_text(dialogues[number].item.y))]
    return examples, [dialogues[number] for number in sorted(order[count:])]


def share(settings: TextTrainingSettings, iteration: int) -> float:
    """The share of dialogues, in [0, 1], in which the verifier's guess is replaced in `iteration` (from 0).

    p = guess_replacement: none: p; linear: max(p - iteration * rate, 0); exponential: p * (1 - rate) ** iteration.
    """
    start, rate = settings.guess_replacement, settings.guess_replacement_rate
    if settings.guess_replacement_annealing == "linear":
        return max(start - iteration * rate, 0.0)
    if settings.guess_replacement_annealing == "exponential":
        return start * (1 - rate) ** iteration
    return start
