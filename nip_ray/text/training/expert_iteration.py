"""Expert iteration: learn, supervised, from one's own dialogues that went well.

Decisions that matter here:
- an agent's reward is its undiscounted sum over the episode, and a dialogue that reaches the threshold exactly is kept, whatever rounding
  says: a verdict given at 95 per cent pays 0.95 - 0.05, which is a little less than 0.9 in binary;
- the verifier's guesses are replaced before selection, and selection sees the other dialogues only;
- an example is the whole dialogue as the agent saw it, its own turns as assistant turns, up to its last usable one. Invalid replies are
  in no example: scenarios do not show an agent its own (`LearnableScenario.training_chat`), and none is a completion;
- where all rewards are equal, weights are uniform (normalising them would divide 0 by 0);
- guess replacement: in a share of its dialogues the verifier learns the true verdict instead of its own. The schedule is the published
  one (Hammond and Adam-Day, ICLR 2025): iterations count from 0, so the first has the whole share, and of n dialogues int(share * n) are
  replaced, after what rounding took away is given back (0.29 of 100 is 29). Who is replaced depends on (seed, iteration, agent) alone.
Source: Anthony, Tian and Barber, "Thinking Fast and Slow with Deep Learning and Tree Search", NeurIPS 2017.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from nip_ray.play.dialogue import Chat, Dialogue
from nip_ray.protocols import Protocol as Rules
from nip_ray.seeding import stable_seed
from nip_ray.settings.text_training import ExpertIterationSettings, TextTrainingSettings

ROUNDING = 1e-6
"""Rewards this far below the threshold reach it: protocols pay in single precision."""


class LearnableScenario(Protocol):
    """What expert iteration asks of a scenario."""

    @property
    def protocol(self) -> Rules:
        """Who speaks when."""
        ...

    def training_chat(self, dialogue: Dialogue, agent: str, round: int) -> tuple[Chat, str]:
        """(all that `agent` was shown before its turn in `round`, its raw reply there), neither with its invalid replies."""
        ...

    def verdict_text(self, label: int) -> str:
        """The reply by which a verifier gives the verdict `label`."""
        ...


@dataclass(frozen=True)
class Example:
    """One conversation to learn from: `completion` is the assistant turn that follows `chat`.

    dialogue: index into the dialogues given. agent: whose turns are learned. replaced: the completion is the true verdict, not the reply.
    """

    dialogue: int
    agent: str
    chat: Chat
    completion: str
    replaced: bool = False


def select(rewards: Sequence[float], settings: ExpertIterationSettings, seed: int, *purpose: str | int) -> list[int]:
    """Indices of the dialogues to learn from, by their episode rewards (n of them).

    threshold: all with reward >= reward_threshold, in order. weighted_sampling: round(n * sample_size_factor) draws in the order in
    which they were drawn; without replacement no more than have a weight. The draws depend on (seed, *purpose) alone.
    """
    if settings.selection == "threshold":
        return [index for index, reward in enumerate(rewards) if reward >= settings.reward_threshold - ROUNDING]
    if not rewards:
        return []
    weight_B = weights(rewards, settings)
    count = round(len(rewards) * settings.sample_size_factor)
    if not settings.weighting_with_replacement:
        count = min(count, int(np.count_nonzero(weight_B)))
    random = np.random.default_rng(stable_seed(seed, "expert_iteration", *purpose))
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


def examples(
    dialogues: Sequence[Dialogue],
    agents: Sequence[str],
    scenario: LearnableScenario,
    settings: ExpertIterationSettings,
    iteration: int,
    seed: int,
) -> list[Example]:
    """What `agents`, who share a model, learn from `dialogues` after `iteration` (from 0), agent by agent.

    Provers: what `select` takes of all dialogues. The verifier: its replaced ones first (see `guess_replacement`), then what `select` takes
    of the others. A dialogue drawn twice gives two examples; one without a usable turn of the agent
    gives none.
    """
    found: list[Example] = []
    for agent in agents:
        replaced, kept = _split(len(dialogues), agent, scenario, settings, iteration, seed)
        chosen = select([dialogues[index].total(agent) for index in kept], settings, seed, iteration, agent)
        made = [_example(dialogues[index], index, agent, scenario, replaced=True) for index in replaced]
        made += [_example(dialogues[kept[place]], kept[place], agent, scenario, replaced=False) for place in chosen]
        found += [example for example in made if example is not None]
    return found


def _split(
    num: int, agent: str, scenario: LearnableScenario, settings: ExpertIterationSettings, iteration: int, seed: int
) -> tuple[list[int], list[int]]:
    if agent != scenario.protocol.verifier:
        return [], list(range(num))
    return split_for_replacement(num, share(settings, iteration), seed, iteration, agent)


def _example(dialogue: Dialogue, index: int, agent: str, scenario: LearnableScenario, replaced: bool) -> Example | None:
    last = last_usable_round(dialogue, agent)
    if last is None:
        return None
    chat, reply = scenario.training_chat(dialogue, agent, last)
    return Example(index, agent, chat, scenario.verdict_text(dialogue.item.y) if replaced else reply, replaced)


def last_usable_round(dialogue: Dialogue, agent: str) -> int | None:
    """The last round in which the agent gave a usable reply, None if there is none."""
    rounds = [r for r, turns in enumerate(dialogue.rounds) if any(turn.agent == agent and not turn.invalid for turn in turns)]
    return rounds[-1] if rounds else None


def share(settings: TextTrainingSettings, iteration: int) -> float:
    """The share of dialogues, in [0, 1], in which the verifier's guess is replaced in `iteration` (from 0).

    p = guess_replacement: none: p; linear: max(p - iteration * rate, 0); exponential: p * (1 - rate) ** iteration.
    Raises ValueError for a negative iteration.
    """
    if iteration < 0:
        raise ValueError(f"iteration is {iteration}, expected 0 or more")
    start, rate = settings.guess_replacement, settings.guess_replacement_rate
    if settings.guess_replacement_annealing == "linear":
        return max(start - iteration * rate, 0.0)
    if settings.guess_replacement_annealing == "exponential":
        return start * (1 - rate) ** iteration
    return start


def split_for_replacement(num: int, share: float, seed: int, iteration: int, agent: str) -> tuple[list[int], list[int]]:
    """(indices to replace, indices to keep) of `num` dialogues, each in ascending order: the first int(share * num) of a permutation.

    Raises ValueError for a share outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}, expected between 0 and 1")
    random = np.random.default_rng(stable_seed(seed, "guess_replacement", iteration, agent))
    order = random.permutation(num).tolist()
    count = int(share * num + 1e-9)
    return sorted(order[:count]), sorted(order[count:])
