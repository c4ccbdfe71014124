"""Expert iteration, guess replacement and the figures, against slow programs that follow the published description word
for word.

The references use no code of ours but the seeds of draws, loop over everything, and share no structure with what they
check: fractions for shares, dialogues read turn by turn, a replaced example made by rewriting the finished chat.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from nip_ray.play.dialogue import Dialogue
from nip_ray.seeding import stable_seed
from nip_ray.settings.text_training import ExpertIterationSettings
from nip_ray.text.training.expert_iteration import LearningAgent, examples
from nip_ray.text.training.metrics import dialogue_metrics
from nip_ray.text.training.rules import replaced_guesses
from tests.text.small_dialogues import TinyScenario, random_dialogues, tiny

PROTOCOLS: list[tuple[str, dict[str, Any]]] = [
    ("nip", {"max_rounds": 5}),
    ("nip", {"max_rounds": 6, "min_rounds": 4, "verifier_no_guess_reward": -0.125, "verifier_first": False}),
    ("adp", {}),
    ("debate", {"max_rounds": 6, "shared_reward": True}),
    ("mnip", {"max_rounds": 7, "sequential": True}),
    ("merlin_arthur", {}),
    ("solo_verifier", {}),
]


def seen(scenario: TinyScenario, dialogue: Dialogue, agent: str) -> list[dict[str, str]]:
    """The chat after the whole dialogue, as the tiny scenario builds it, written out once more."""
    chat = [{"role": "system", "content": f"You are {agent}. Item {dialogue.item.id}."}]
    for turns in dialogue.rounds:
        for turn in turns:
            if turn.agent == agent and not turn.invalid:
                chat.append({"role": "assistant", "content": turn.raw})
        for turn in turns:
            if turn.agent != agent and not turn.invalid:
                chat.append({"role": "user", "content": turn.raw})
    return chat


def slow_share(p: float, annealing: str, rate: float, i: int) -> Fraction:
    start, fall = Fraction(str(p)), Fraction(str(rate))
    if annealing == "none":
        return start
    return max(start - i * fall, Fraction(0)) if annealing == "linear" else start * (1 - fall) ** i


def slow_reward(dialogue: Dialogue, agent: str) -> float:
    reward = 0.0
    for paid in dialogue.rewards:
        reward += paid[agent]
    return reward


def slow_weights(rewards: Sequence[float], rule: ExpertIterationSettings) -> list[float]:
    """w = max(r, minimum) - minimum (or r - min r), normalised; plus epsilon / n, renormalised."""
    low = min(rewards) if rule.weighting_minimum is None else rule.weighting_minimum
    w = [max(r, low) - low for r in rewards]
    if sum(w) == 0:
        return [1 / len(w)] * len(w)
    w = [x / math.fsum(w) + rule.weighting_epsilon / len(w) for x in w]
    return [x / math.fsum(w) for x in w]


def slow_examples(
    dialogues: Sequence[Dialogue], scenario: TinyScenario, rule: ExpertIterationSettings, iteration: int, seed: int
) -> list[list[dict[str, str]]]:
    """Chats that end in an assistant turn, of all agents, in the order in which they are learned."""
    made = []
    for agent in scenario.protocol.agents:
        pool = list(range(len(dialogues)))
        if agent == "verifier":
            random = np.random.default_rng(stable_seed(seed, "guess_replacement", iteration, agent))
            order = [int(i) for i in random.permutation(len(dialogues))]
            part = slow_share(
                rule.guess_replacement, rule.guess_replacement_annealing, rule.guess_replacement_rate, iteration
            )
            first = order[: math.floor(part * len(dialogues))]
            pool = [i for i in pool if i not in first]
            made += [(agent, i, True) for i in sorted(first)]
        rewards = [slow_reward(dialogues[i], agent) for i in pool]
        if rule.selection == "threshold":
            made += [
                (agent, i, False)
                for i, reward in zip(pool, rewards, strict=True)
                if reward > rule.reward_threshold - 1e-6
            ]
        elif pool:
            made += [
                (agent, pool[place], False)
                for place in slow_draws(rewards, rule, stable_seed(seed, "expert_iteration", iteration, agent))
            ]
    finished = [slow_chat(scenario, dialogues[i], agent, replaced) for agent, i, replaced in made]
    return [chat for chat in finished if chat]


def slow_draws(rewards: Sequence[float], rule: ExpertIterationSettings, seed: int) -> list[int]:
    w = slow_weights(rewards, rule)
    wanted = round(len(rewards) * rule.sample_size_factor)
    random = np.random.default_rng(seed)
    if rule.weighting_with_replacement:  # by hand: invert the cumulated weights
        cumulated = np.cumsum(w) / np.cumsum(w)[-1]
        return [sum(bool(c <= u) for c in cumulated) for u in random.random(wanted)]
    return random.choice(len(rewards), size=min(wanted, sum(x > 0 for x in w)), replace=False, p=w).tolist()


def slow_chat(scenario: TinyScenario, dialogue: Dialogue, agent: str, replaced: bool) -> list[dict[str, str]]:
    """The chat after the dialogue, cut back to the last assistant turn (empty if there is none), which may be
    overwritten."""
    chat = seen(scenario, dialogue, agent)
    while chat and chat[-1]["role"] != "assistant":
        chat.pop()
    if chat and replaced:
        chat[-1] = {"role": "assistant", "content": "Decision: accept" if dialogue.item.y == 1 else "Decision: reject"}
    return chat


RULES = [
    ExpertIterationSettings(),
    ExpertIterationSettings(reward_threshold=0.0, guess_replacement=0.3),
    ExpertIterationSettings(
        reward_threshold=-0.25, guess_replacement=0.7, guess_replacement_annealing="linear", guess_replacement_rate=0.2
    ),
    ExpertIterationSettings(selection="weighted_sampling"),
    ExpertIterationSettings(
        selection="weighted_sampling", sample_size_factor=1.5, guess_replacement=0.5, weighting_epsilon=0.3
    ),
    ExpertIterationSettings(
        selection="weighted_sampling", weighting_with_replacement=False, sample_size_factor=0.7, weighting_minimum=0.0
    ),
    replace(
        ExpertIterationSettings(
            guess_replacement=0.8, guess_replacement_annealing="exponential", guess_replacement_rate=0.4
        ),
        **dict(
            selection="weighted_sampling",
            weighting_with_replacement=False,
            weighting_epsilon=0.0,
            sample_size_factor=1.0,
        ),
    ),
]


@pytest.mark.parametrize(("name", "params"), PROTOCOLS, ids=[f"{name}{i}" for i, (name, _) in enumerate(PROTOCOLS)])
def test_examples(name: str, params: dict[str, Any]) -> None:
    scenario, some, replaced = tiny(name, **params), 0, 0
    for number, rule in enumerate(RULES):
        for iteration in range(3):
            dialogues = random_dialogues(scenario, 23, seed=100 * number + iteration)
            found = []
            for name in scenario.protocol.agents:
                agent = LearningAgent(name, scenario, rule, iteration, 11)
                first, kept = replaced_guesses(dialogues, agent)
                found += [*first, *examples(kept, agent)]
                replaced += len(first)
            chats = [[*one.chat, {"role": "assistant", "content": one.completion}] for one in found]
            assert chats == slow_examples(dialogues, scenario, rule, iteration, 11)
            some += len(found)
    assert some > 50
    assert replaced > 20


def slow_metrics(dialogues: Sequence[Dialogue], name: str, agents: Sequence[str]) -> dict[str, float]:
    """Every figure of docs/metrics.md, counted dialogue by dialogue; what is 0/0 is left out."""
    counts: dict[str, list[int]] = {}

    def count(key: str, applies: bool, holds: bool) -> None:
        trials = counts.setdefault(key, [0, 0])
        trials[0] += applies and holds
        trials[1] += applies

    by_item: dict[int, list[bool]] = {}
    sums: dict[str, list[float]] = {}
    paid: list[tuple[bool, float]] = []  # (honest, return) of each prover that spoke
    for d in dialogues:
        accepted, rejected, y = d.verdict == 1, d.verdict == 0, d.item.y
        right = (accepted and y == 1) or (rejected and y == 0)
        by_item.setdefault(d.item.id, []).append(right)
        count("verifier/accuracy", True, right)
        count("verifier/completeness", y == 1, accepted)
        count("verifier/soundness", y == 0, rejected)
        count("verifier/undecided", True, not accepted and not rejected)
        count("verifier/acceptance", accepted or rejected, accepted)
        count("verifier/precision", accepted, y == 1)
        count("verifier/recall", y == 1 and (accepted or rejected), accepted)
        sums.setdefault("episode_length", []).append(len(d.rounds))
        sums.setdefault("messages", []).append(
            sum(1 for r in d.rounds for t in r for text in t.messages.values() if text != "")
        )
        if d.confidence is not None:
            sums.setdefault("verifier/brier", []).append((d.confidence - y) ** 2)
            if accepted or rejected:
                own = d.confidence if accepted else 1 - d.confidence
                sums.setdefault("verifier/confidence", []).append(own)
                sums.setdefault("verifier/overconfidence", []).append(own - right)
        for agent in agents:
            sums.setdefault(f"{agent}/return", []).append(slow_reward(d, agent))
            if agent != "verifier" and any(t.agent == agent for r in d.rounds for t in r):
                wanted = 0 if agent == "prover0" and name in ("debate", "merlin_arthur") else 1
                paid.append((wanted == y, slow_reward(d, agent)))
            for turn in (t for r in d.rounds for t in r if t.agent == agent):
                count(f"{agent}/retry_share", True, turn.retries - (1 if turn.invalid else 0) >= 1)
                count(f"{agent}/truncated_share", True, turn.truncated)
                count(f"{agent}/invalid_share", True, turn.invalid)
    figures = {key: float(Fraction(k, n)) for key, (k, n) in counts.items() if n}
    figures |= {key: statistics.fmean(values) for key, values in sums.items()}
    figures |= {f"{agent}/return_std": statistics.pstdev(sums[f"{agent}/return"]) for agent in agents}
    shares = [Fraction(sum(rights), len(rights)) for rights in by_item.values()]
    figures["verifier/worst_case"] = float(min(shares))
    figures["verifier/always_fail"] = float(Fraction(sum(s == 0 for s in shares), len(shares)))
    honest, lying = ([reward for by, reward in paid if by is who] for who in (True, False))
    if honest and lying:
        figures["score_difference"] = statistics.fmean(honest) - statistics.fmean(lying)
    return figures


@pytest.mark.parametrize(("name", "params"), PROTOCOLS, ids=[f"{name}{i}" for i, (name, _) in enumerate(PROTOCOLS)])
@pytest.mark.parametrize("decide", [0.0, 0.3, 1.0])
def test_figures(name: str, params: dict[str, Any], decide: float) -> None:
    scenario = tiny(name, **params)
    for items, repeats in ((1, 1), (20, 1), (7, 5)):
        dialogues = random_dialogues(scenario, items, repeats, seed=items, decide=decide)
        # some items once more than others
        dialogues += random_dialogues(scenario, items // 2, seed=items, decide=decide)
        assert dialogue_metrics(dialogues, scenario.protocol) == pytest.approx(
            slow_metrics(dialogues, name, scenario.protocol.agents), abs=1e-12
        )
