"""Images through both doors: RLlib's one-copy env keeps RLlib's contract and plays what the batched core plays, step by step."""

from typing import Any

import pytest

from tests.rllib import test_doors
from tests.scenarios.image_classification.files import PROTOCOLS, protocol_id
from tests.scenarios.image_classification.test_rules import tiny

SEEN_BY_ENV = [protocol for protocol in PROTOCOLS if not protocol.get("zero_knowledge")]  # similarity cannot be paid from actions alone


@pytest.mark.parametrize("protocol", SEEN_BY_ENV, ids=protocol_id)
def test_the_env_plays_what_the_core_plays(protocol: dict[str, Any]) -> None:
    config = tiny(protocol, dict(name="ppo"))
    test_doors.test_both_doors_give_the_same_episodes(config)
    test_doors.test_the_env_keeps_rllibs_contract(config)
