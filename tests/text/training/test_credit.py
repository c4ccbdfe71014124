"""What turns were worth: returns, penalties and groups worked out by hand, and what a rule remembers from agent to agent."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from nip_ray.learning.token_losses import Advantages, AgentTurns
from nip_ray.learning.token_rows import Turn as Tokens
from nip_ray.play.dialogue import Dialogue, Turn
from nip_ray.play.dialogues import start_dialogue
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.text.training.credit import credit
from nip_ray.text.training.model_play import Reply
from tests.text.small_dialogues import Item


def dialogue(item: int, *paid: tuple[float, float], invalid: int | None = None) -> Dialogue:
    """`first` and `second` both speak in every round. invalid: the round in which `first` gave no usable reply."""
    rounds = tuple((Turn("first", "a", {}, invalid=r == invalid), Turn("second", "b", {})) for r in range(len(paid)))
    return replace(start_dialogue(Item(item, 1), 0), rounds=rounds, rewards=tuple({"first": one, "second": two} for one, two in paid))


def test_credit_is_by_agent_item_and_round() -> None:
    dialogues = [dialogue(7, (0, 1), (4, 0)), dialogue(8, (1, 0)), dialogue(7, (2, 1), (0, 8), invalid=0)]
    places = [(place, r) for place, one in enumerate(dialogues) for r in range(len(one.rounds))]
    replies = [Reply(place, agent, r, Tokens([1], [2])) for place, r in places for agent in ("first", "second")]
    seen: list[tuple[str, list[float], list[int], list[int]]] = []

    def advantages(turns: AgentTurns, memory: Mapping[str, float], settings: Any) -> tuple[Advantages, dict[str, float]]:
        seen.append((turns.agent, turns.return_N.tolist(), turns.group_N.tolist(), turns.dialogue_N.tolist()))
        return Advantages(10 * turns.return_N, 2, 1, 1), {turns.agent: memory["start"] + len(memory)}

    settings = PolicyGradientSettings(discount=0.5, invalid_penalty=0.25)
    found = credit(advantages, settings, ["first", "second"], dialogues, replies, {"start": 5.0})
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
