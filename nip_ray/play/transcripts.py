"""Transcripts of dialogues for readers, as JSON.

They have the shape of those of tensor play (`nip_ray.evaluation.transcripts`), with text for symbols, so that one
report shows both. Characters that a page should not interpret (controls, changes of writing direction) are made
visible; a record (`dialogue_record`) keeps them.
"""

import re
from typing import Any

from nip_ray.play.dialogue import Dialogue, LanguageScenario, Turn
from nip_ray.play.dialogues import rulebook, verdict_of
from nip_ray.protocols import CONTINUE, VERDICTS


def transcript_record(scenario: LanguageScenario, dialogue: Dialogue) -> dict[str, Any]:
    """`dialogue` for readers: instance, label, seed, role (where roles are drawn), length (rounds), verdict, correct,
    votes (of a panel: member -> its own verdict), reward (agent -> sum) and rounds, a list of {round, turns}. A game
    without a verifier has no label, verdict and correct. A turn has agent, channel ("" without a message), message, and
    for the verifier decision; also confidence (of a verdict), reasoning, retries, truncated and invalid if set, and
    written: the reply of an invalid turn, unchanged."""
    label, verdict, words = dialogue.item.y, dialogue.verdict, scenario.protocol.verdict_words
    judged: dict[str, Any] = (
        {} if scenario.protocol.verifier is None else {"verdict": words[verdict], "correct": verdict == label}
    )
    if votes := rulebook(scenario.protocol).votes(label, dialogue.rounds):
        judged["votes"] = {
            agent: VERDICTS[CONTINUE if grade is None else verdict_of(grade)] for agent, grade in votes.items()
        }
    return {
        "instance": dialogue.item.id,
        **({"label": label} if judged else {}),
        "seed": dialogue.seed,
        **({"role": scenario.protocol.role_of(dialogue.seed)} if scenario.protocol.roles else {}),
        "length": len(dialogue.rounds),
        **judged,
        "reward": {agent: round(dialogue.total(agent), 6) for agent in scenario.protocol.agents},
        "rounds": [
            {"round": r, "turns": [row for turn in turns for row in _transcript_turns(scenario, turn)]}
            for r, turns in enumerate(dialogue.rounds)
        ],
    }


def _transcript_turns(scenario: LanguageScenario, turn: Turn) -> list[dict[str, Any]]:
    """One row per channel; without a message, a single row with the reply."""
    said = [(c, turn.messages[c]) for c in scenario.protocol.channels if c in turn.messages] or [("", turn.raw)]
    rows: list[dict[str, Any]] = [
        {"agent": turn.agent, "channel": channel, "message": visible(text)} for channel, text in said
    ]
    if turn.agent in scenario.protocol.deciders:
        rows[0]["decision"] = (
            VERDICTS[CONTINUE] if turn.confidence == 0.5 else scenario.protocol.decision_words[turn.decision]
        )
    if turn.confidence is not None:
        rows[0]["confidence"] = round(turn.confidence, 6)
    if turn.reasoning:
        rows[0]["reasoning"] = visible(turn.reasoning)
    for flag in ("retries", "truncated", "invalid"):
        if getattr(turn, flag):
            rows[0][flag] = getattr(turn, flag)
    if turn.invalid and turn.messages:
        rows[0]["written"] = visible(turn.raw)
    return rows


_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """`text` with control characters and those that change the writing direction spelled out, as in ``<U+202E>``."""
    return _UNSEEN.sub(lambda found: f"<U+{ord(found[0]):04X}>", text)
