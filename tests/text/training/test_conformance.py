"""The rules that ship and the example pass `check_text_algorithm`, which notices what would spoil a run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from nip_ray.config.plugins import import_plugins
from nip_ray.errors import UserError
from nip_ray.learning.token_losses import Advantages, AgentTurns
from nip_ray.plugins import register_text_algorithm
from nip_ray.settings.options import option
from nip_ray.settings.policy_gradient import RatioClipSettings, TokenTrainingSettings
from nip_ray.settings.text_training import TextTrainingSettings
from nip_ray.text.training import malt
from nip_ray.text.training.conformance import check_text_algorithm
from nip_ray.text.training.expert_iteration import Example, LearningAgent, Preferences
from nip_ray.text.training.rules import TEXT_ALGORITHMS, TextRule

pytestmark = pytest.mark.usefixtures("no_plugins")
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "own_text_algorithm.py"


@dataclass(frozen=True)
class Jobs(TextTrainingSettings):
    name: Literal["odd"] = option("odd", "A rule.")
    share: float = option(0.5, "Of the dialogues.")


@dataclass(frozen=True)
class Trees(TextTrainingSettings):
    replaces_guesses = False
    name: Literal["odd"] = option("odd", "A rule.")
    num_responses: int = option(2, "Replies at a node.", ge=2)
    reward_threshold: float | None = option(None, "As of MALT.")


@dataclass(frozen=True)
class Tokens(RatioClipSettings, TokenTrainingSettings):
    name: Literal["odd"] = option("odd", "A rule.")
    scale: float = option(1.0, "Of returns.")


@dataclass(frozen=True)
class Lossy(TokenTrainingSettings):
    name: Literal["odd"] = option("odd", "A rule.")


@pytest.mark.parametrize("name", ["expert_iteration", "malt", "policy_gradient", "best_of_group"])
def test_rules_that_ship_and_the_example_pass(name: str) -> None:
    import_plugins([str(EXAMPLE)])
    check_text_algorithm(TEXT_ALGORITHMS[name].settings())


def some(dialogues: Sequence[Any], agent: LearningAgent) -> list[Example]:
    """Of the right kind."""
    chosen = dialogues[: int(agent.settings.share * len(dialogues))]
    return [example for dialogue in chosen for example in agent.examples(dialogue)]


FLIP = cycle((1, -1))


def anyhow(dialogues: Sequence[Any], agent: LearningAgent) -> list[Example]:
    return some(dialogues, agent)[:: next(FLIP)]


def others(dialogues: Sequence[Any], agent: LearningAgent) -> list[Example]:
    other = next(name for name in agent.scenario.protocol.agents if name != agent.name)
    return some(dialogues, replace(agent, name=other))


def emptied(dialogues: Any, agent: LearningAgent) -> list[Example]:
    found = some(dialogues, agent)
    dialogues.clear()
    return found


def tired() -> Any:
    """Learns nothing any more after a while, whatever a resumed run would do."""
    calls: list[int] = []

    def examples(dialogues: Sequence[Any], agent: LearningAgent) -> list[Example]:
        calls.append(agent.iteration)
        return some(dialogues, agent) if len(calls) < 25 else []

    return examples


def swapped(trees: Sequence[Any], agent: LearningAgent) -> Preferences:
    found = malt.pairs(trees, agent)
    return Preferences(
        [replace(pair, chat=[*pair.chat, {"role": "assistant", "content": pair.rejected}]) for pair in found.pairs]
    )


def plainly(turns: AgentTurns, memory: Any, settings: Any) -> tuple[Advantages, dict[str, float]]:
    """Of the right kind, without settings."""
    return Advantages(turns.return_N), dict(memory)


def standardised(turns: AgentTurns, memory: Any, settings: Any) -> tuple[Advantages, dict[str, float]]:
    return Advantages((turns.return_N - turns.return_N.mean()) / turns.return_N.std() * settings.scale), dict(memory)


def forgetful(turns: AgentTurns, memory: Any, settings: Any) -> tuple[Advantages, dict[str, float]]:
    memory["mean"] = settings.scale * float(turns.return_N.mean())
    return Advantages(turns.return_N - memory["mean"]), memory


def likelihood(log_prob_NT: Any, *rest: Any) -> tuple[Any, dict[str, Any]]:
    return -log_prob_NT, {}


def untied(log_prob_NT: Any, *rest: Any) -> tuple[Any, dict[str, Any]]:
    return -log_prob_NT.detach(), {}


def renamed(log_prob_NT: Any, *rest: Any) -> tuple[Any, dict[str, Any]]:
    return -log_prob_NT, {"tokens": log_prob_NT}


def unclamped(log_prob_NT: Any, old_NT: Any, advantage_N: Any, *rest: Any) -> tuple[Any, dict[str, Any]]:
    return -torch.exp(2 * (log_prob_NT - old_NT)) * advantage_N[:, None], {}


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (TextRule(Jobs, examples=anyhow), "examples returns something else when it is called again"),
        (TextRule(Jobs, examples=others), "'prover' learns a reply that it never gave"),
        (TextRule(Jobs, examples=emptied), "examples changes the dialogues"),
        (
            TextRule(Jobs, examples=lambda dialogues, agent: []),
            "examples finds nothing to learn .*; share: nothing reads this key",
        ),
        (TextRule(Jobs, examples=tired()), "stopped and resumed has other metrics"),
        (TextRule(Trees, pairs=swapped), "learns from a chat that is empty or ends in a reply"),
        (TextRule(Tokens, advantages=standardised), "advantages must be one finite number"),
        (TextRule(Tokens, advantages=forgetful), "advantages depends on more than its arguments, or changes them"),
        (TextRule(Tokens, advantages=plainly), "scale: nothing reads this key"),
        (
            TextRule(Lossy, advantages=plainly, loss=likelihood),
            "depends on the advantages",
        ),
        (TextRule(Lossy, advantages=plainly, loss=unclamped), "clamp the ratio"),
        (
            TextRule(Lossy, advantages=plainly, loss=lambda log_prob_NT, *rest: -log_prob_NT),
            "loss returned .*expected \\(loss_NT, metrics",
        ),  # type: ignore[arg-type,return-value]
        (
            TextRule(Lossy, advantages=plainly, loss=lambda log_prob_NT, *rest: (-log_prob_NT.mean(), {})),
            "loss and its metrics must have",
        ),
        (TextRule(Lossy, advantages=plainly, loss=untied), "loss has no gradient .*without detach"),
        (TextRule(Lossy, advantages=plainly, loss=renamed), "loss returned a metric tokens, which the run itself has"),
        (
            TextRule(Lossy, advantages=lambda turns, *rest: Advantages(turns.return_N), loss=likelihood),
            "advantages gives .*expected",
        ),  # type: ignore[arg-type,return-value]
        (
            TextRule(
                Lossy,
                advantages=lambda turns, *rest: (Advantages(turns.return_N), {"mean": turns.return_N}),
                loss=likelihood,
            ),  # type: ignore[dict-item]
            "advantages must remember finite numbers",
        ),
        (
            TextRule(Lossy, advantages=lambda turns, *rest: (Advantages(turns.return_N.tolist()), {}), loss=likelihood),  # type: ignore[arg-type]
            "advantages must be one finite number",
        ),
    ],
)
def test_what_would_spoil_a_run_is_noticed(rule: TextRule, said: str) -> None:
    register_text_algorithm(rule)
    with pytest.raises(UserError, match=said):
        check_text_algorithm(rule.settings())


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"examples": [None]}, r"examples gives \[None\], expected a list of Example"),
        ({"pairs": []}, r"pairs gives \[\], expected Preferences"),
        ({"pairs": Preferences([("a", "b")])}, "pairs gives .*expected a list of Pair"),  # type: ignore[list-item]
        ({"examples": [], "figures": {"mean": "0.5"}}, "figures gives .*expected numbers by name"),
        ({"examples": [], "figures": {"rounds": 0.5}}, "figures gives rounds, names of other metrics"),
    ],
)
def test_what_a_rule_gives_is_looked_at_in_runs(made: dict[str, Any], said: str) -> None:
    rule = TextRule(Jobs, **{name: lambda *given, value=value: value for name, value in made.items()})
    agent: Any = LearningAgent("verifier", None, Jobs(), 0, 1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"algorithm 'odd': {said}"):
        rule.told([], rule.learned([], agent), Jobs(), ["rounds"])  # type: ignore[arg-type]


def test_only_settings_can_be_checked() -> None:
    with pytest.raises(UserError, match=r"expected settings of a rule, such as MySettings\(\)"):
        check_text_algorithm(Jobs)
