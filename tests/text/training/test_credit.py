"""What turns were worth: returns, penalties and groups worked out by hand, and what a rule remembers from agent to
agent."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from nip_ray.learning.token_losses import Advantages, AgentTurns, turn_advantages
from nip_ray.learning.token_rows import Turn as Tokens
from nip_ray.play.dialogue import Dialogue, Turn
from nip_ray.play.dialogues import start_dialogue
from nip_ray.protocols import Payment, Protocol, build
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.text.training.credit import credit
from nip_ray.text.training.model_play import Reply
from tests.text.small_dialogues import Item

TWO = Protocol(
    "two",
    ("first", "second"),
    ("main",),
    {},
    (((("first", "main"), ("second", "main")),),),
    4,
    1,
    Payment(),
    verifier=None,
)


def dialogue(item: int, *paid: tuple[float, float], invalid: int | None = None) -> Dialogue:
    """`first` and `second` both speak in every round. invalid: the round in which `first` gave no usable reply."""
    rounds = tuple((Turn("first", "a", {}, invalid=r == invalid), Turn("second", "b", {})) for r in range(len(paid)))
    return replace(
        start_dialogue(Item(item, 1), 0),
        rounds=rounds,
        rewards=tuple({"first": one, "second": two} for one, two in paid),
    )


def test_credit_is_by_agent_item_and_round() -> None:
    dialogues = [dialogue(7, (0, 1), (4, 0)), dialogue(8, (1, 0)), dialogue(7, (2, 1), (0, 8), invalid=0)]
    places = [(place, r) for place, one in enumerate(dialogues) for r in range(len(one.rounds))]
    replies = [Reply(place, agent, r, Tokens([1], [2])) for place, r in places for agent in ("first", "second")]
    seen: list[tuple[str, list[float], list[int], list[int]]] = []

    def advantages(
        turns: AgentTurns, memory: Mapping[str, float], settings: Any
    ) -> tuple[Advantages, dict[str, float]]:
        seen.append((turns.agent, turns.return_N.tolist(), turns.group_N.tolist(), turns.dialogue_N.tolist()))
        return Advantages(10 * turns.return_N, 2, 1, 1), {turns.agent: memory["start"] + len(memory)}

    settings = PolicyGradientSettings(discount=0.5, invalid_penalty=0.25)
    found = credit(advantages, settings, TWO, dialogues, replies, {"start": 5.0})
    groups = [0, 1, 2, 0, 1]  # item 7 round 0, item 7 round 1, item 8 round 0, and the first two again
    assert seen == [
        ("first", [2.0, 4.0, 1.0, 1.75, 0.0], groups, [0, 0, 1, 2, 2]),
        ("second", [1.0, 0.0, 0.0, 5.0, 8.0], groups, [0, 0, 1, 2, 2]),
    ]
    assert found.memory == {"start": 5.0, "first": 6.0, "second": 7.0}
    assert [(reply.agent, turn.advantage) for reply, turn in found.replies][:2] == [("first", 20.0), ("first", 40.0)]
    assert [turn.advantage for reply, turn in found.replies if reply.agent == "second"] == [10.0, 0.0, 0.0, 50.0, 80.0]
    means = {"first": 1.75, "second": 2.8}
    assert found.figures == pytest.approx(
        {f"learn/{agent}/return": mean for agent, mean in means.items()}
        | {f"learn/{agent}/groups_equal": 1.0 for agent in means}
        | {f"learn/{agent}/groups_alone": 0.5 for agent in means}
    )


@pytest.mark.parametrize(
    "settings", [{}, {"advantage": "leave_one_out"}, {"advantage": "role", "role_baseline_decay": 0.0}]
)
def test_turns_are_compared_with_those_of_the_same_role(settings: dict[str, Any]) -> None:
    """Every reply earns what its role earns: none is better than another, though one role earns more."""
    protocol, item = build("helpful_sneaky"), Item(3, 1)
    turns = ((Turn("prover", "a", {}),), (Turn("verifier", "b", {}),))
    dialogues = [
        replace(
            start_dialogue(item, seed), rounds=turns, rewards=({}, {"prover": float(seed % 2 == 0), "verifier": 1.0})
        )
        for seed in range(6)
    ]
    replies = [
        Reply(place, agent, r, Tokens([1], [2])) for place in range(6) for r, agent in enumerate(("prover", "verifier"))
    ]
    found = credit(turn_advantages, PolicyGradientSettings(**settings), protocol, dialogues, replies, {})
    # a baseline that has seen nothing is 0
    first = {"prover": 2, "verifier": 1} if settings.get("advantage") == "role" else {}
    for agent in ("prover", "verifier"):
        own = [turn.advantage for reply, turn in found.replies if reply.agent == agent]
        assert own[first.get(agent, 0) :] == pytest.approx([0.0] * (6 - first.get(agent, 0)), abs=1e-6)
    if first:
        assert set(found.memory) == {"prover/helpful", "prover/sneaky", "verifier"}


def test_a_chosen_side_counts_from_the_round_after_the_choice() -> None:
    """prover0 is compared by its choice where it chooses; prover1, for whom it is chosen, within each side."""
    protocol, item, paid = build("open_debate"), Item(3, 1), (1.0, 1.0, 0.0, 0.0)
    turns = ((Turn("prover0", "a", {}),), (Turn("prover1", "b", {}),))
    dialogues = [
        replace(start_dialogue(item, seed), rounds=turns, rewards=({}, {"prover0": one, "prover1": 1 - one}))
        for seed, one in zip((1, 1, 0, 0), paid, strict=True)
    ]
    replies = [
        Reply(place, agent, r, Tokens([1], [2])) for place in range(4) for r, agent in enumerate(("prover0", "prover1"))
    ]
    settings = PolicyGradientSettings(advantage="leave_one_out")
    found = credit(turn_advantages, settings, protocol, dialogues, replies, {})
    own = {
        agent: [turn.advantage for reply, turn in found.replies if reply.agent == agent]
        for agent in ("prover0", "prover1")
    }
    assert own["prover0"] == pytest.approx([2 / 3, 2 / 3, -2 / 3, -2 / 3])
    assert own["prover1"] == [0.0] * 4
