"""Verdict scales: what may be said, and what it means."""

import pytest

from nip_ray.play.dialogues import verdict_of
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT
from nip_ray.scenarios.code_validation.parse import SCALES


@pytest.mark.parametrize(
    ("scale", "stated", "confidence", "verdict"),
    [
        ("accept_reject", "accept", 1.0, ACCEPT),
        ("accept_reject", " REJECT ", 0.0, REJECT),
        ("accept_reject", "accepted", None, None),
        ("one_to_seven", "1", 0.0, REJECT),
        ("one_to_seven", "4", 0.5, CONTINUE),
        ("one_to_seven", "5", 4 / 6, ACCEPT),
        ("one_to_seven", "7", 1.0, ACCEPT),
        ("one_to_seven", "8", None, None),
        ("one_to_seven", "5%", None, None),
        ("percent", "0", 0.0, REJECT),
        ("percent", "49 %", 0.49, REJECT),
        ("percent", "50", 0.5, CONTINUE),
        ("percent", "100", 1.0, ACCEPT),
        ("percent", "101", None, None),
        ("percent", "72.5", None, None),
        ("percent", "٧", None, None),
    ],
)
def test_what_is_stated(scale: str, stated: str, confidence: float | None, verdict: int | None) -> None:
    assert SCALES[scale].confidence(stated) == confidence
    assert (None if confidence is None else verdict_of(confidence)) == verdict
