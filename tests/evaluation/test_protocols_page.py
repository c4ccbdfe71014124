"""docs/protocols.md: current, of every protocol, and drawn as it is played."""

from pathlib import Path

import pytest
import torch

from nip_ray.protocols import Protocol, build
from nip_ray.protocols.drawing import drawing
from nip_ray.protocols.tables import SHIPPED
from scripts.protocols_page import ENTRIES, page

ROOT = Path(__file__).parents[2]
NOT_COMPARED = {"multi_channel_test", "matrix_game", "kuhn_poker", "leduc_poker", "hironaka"}
"""One for tests of masks, and those that their scenario pays."""


def test_the_page_is_up_to_date() -> None:
    text = (ROOT / "docs" / "protocols.md").read_text(encoding="utf-8")
    assert text == page(), "write it again: python scripts/protocols_page.py > docs/protocols.md"


def test_every_protocol_is_on_it_and_every_table_is_one_that_is_played() -> None:
    assert {entry.name for entry in ENTRIES} == set(SHIPPED) - NOT_COMPARED
    assert len({entry.title for entry in ENTRIES}) == len(ENTRIES)
    for entry in ENTRIES:
        assert build(entry.name, **entry.params) == entry.table


@pytest.mark.parametrize("protocol", [entry.table for entry in ENTRIES], ids=[entry.title for entry in ENTRIES])
def test_the_drawing_is_the_turn_table(protocol: Protocol) -> None:
    """Read back, it says who has a turn in which round, in which channel."""
    parts = "\n".join(drawing(protocol)).split("\n\n")
    assert len(parts) == len(protocol.turns)
    for number, part in enumerate(parts):
        drawn = torch.zeros_like(protocol.turn_table_SKAC[number])
        for row in part.splitlines()[1:]:
            agent, _, rest = row.partition(" ")
            channel = rest.split()[1] if rest.startswith("> ") else protocol.channels[0]
            marks = [cell for cell in row.split() if cell in ("o", "V", "C", ".")]
            for r, mark in enumerate(marks):
                drawn[r, protocol.agents.index(agent), protocol.channels.index(channel)] = mark != "."
        assert torch.equal(drawn, protocol.turn_table_SKAC[number])
