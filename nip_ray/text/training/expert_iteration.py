"""Expert iteration: learn, supervised, from one's own dialogues that went well.

Decisions that matter here:
- an agent's reward is its undiscounted sum over the episode, and a dialogue that reaches the threshold exactly is kept, whatever rounding
  says: a verdict given at 95 per cent pays 0.95 - 0.05, which is a little less than 0.9 in binary;
- an example is the whole dialogue as the agent saw it, its own turns as assistant turns, up to its last usable one; where a scenario shows
  an agent each turn afresh, every turn is an example. Invalid replies are in none: scenarios do not show an agent its own
  (`training_chat`), and none is a completion;
- where all rewards are equal, weights are uniform (normalising them would divide 0 by 0).
Source: Anthony, Tian and Barber, "Thinking Fast and Slow with Deep Learning and Tree Search", NeurIPS 2017.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nip_ray.play.dialogue import Dialogue
from nip_ray.settings.text_training import ExpertIterationSettings
from nip_ray.text.training.learning_agent import Example, LearningAgent

ROUNDING = 1e-6
"""Rewards this far below the threshold reach it: protocols pay in single precision."""


def select(rewards: Sequence[float], settings: ExpertIterationSettings, random: np.random.Generator) -> list[int]:
    """Indices of the dialogues to learn from, by their episode rewards (n of them).

    threshold: all with reward >= reward_threshold, in order. weighted_sampling: round(n * sample_size_factor) draws in the order in
    which they were drawn by `random`; without replacement no more than have a weight.
    """
    if settings.selection == "threshold":
        return [index for index, reward in enumerate(rewards) if reward >= settings.reward_threshold - ROUNDING]
    if not rewards:
        return []
    weight_B = weights(rewards, settings)
    count = round(len(rewards) * settings.sample_size_factor)
    if not settings.weighting_with_replacement:
        count = min(count, int(np.count_nonzero(weight_B)))
    return random.choice(len(rewards), size=count, replace=settings.weighting_with_replacement, p=weight_B).tolist()


def weights(rewards: Sequence[float], settings: ExpertIterationSettings) -> npt.NDArray[np.float64]:
    """(n,) probabilities of a draw: proportional to max(r, m) - m for the least reward m, plus weighting_epsilon / n, normalised.

    m is weighting_minimum or, if none, the smallest reward. Uniform where that leaves no reward above m. n is at least 1.
    """
    reward_B = np.asarray(rewards, dtype=np.float64)
    least = reward_B.min() if settings.weighting_minimum is None else settings.weighting_minimum
    above_B = np.maximum(reward_B, least) - least
    if not above_B.any():
        return np.full(len(reward_B), 1 / len(reward_B))
    weight_B = above_B / above_B.sum() + settings.weighting_epsilon / len(reward_B)
    return weight_B / weight_B.sum()


def examples(dialogues: Sequence[Dialogue], agent: LearningAgent) -> list[Example]:
    """What `select` takes. A dialogue drawn twice gives its examples twice; one without a usable turn of the agent gives none."""
    chosen = select([dialogue.total(agent.name) for dialogue in dialogues], agent.settings, agent.random())
    return [example for index in chosen for example in agent.examples(dialogues[index])]
