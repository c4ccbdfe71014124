"""What was said, in words that a reader and a JSON file can hold: one record an episode."""

from collections.abc import Iterator
from typing import Any

from nip_ray.play.rollout import Rollout
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT

DECISIONS = {REJECT: "reject", ACCEPT: "accept", CONTINUE: "continue"}
VERDICTS = {**DECISIONS, CONTINUE: "undecided"}


def transcript_records(scenario: Scenario, rollout: Rollout, limit: int) -> Iterator[dict[str, Any]]:
    """The first `limit` copies of `rollout`, each as a mapping of plain JSON values:

    instance (id), label, seed (of the episode), length (rounds played), verdict ("accept", "reject" or "undecided"), correct,
    reward (agent -> sum over the episode), rounds: a list of {round, turns}, and turns: a list of {agent, channel, message} in the
    protocol's order. A turn has "linear" where the scenario has a second message; the first of the verifier's turns in a round has
    "decision", what it said, whether or not it counted. A game without a verifier has no label, verdict and correct.
    Nothing is raised; the rollout must be one of `scenario`.
    """
    rollout = rollout.copies(slice(0, max(limit, 0))).to("cpu")
    for copy in range(rollout.num_copies):
        label, verdict, length = (int(part[copy]) for part in (rollout.y_B, rollout.verdict_B, rollout.length_B))
        totals = rollout.reward_BRA[copy].sum(0).tolist()
        judged = {} if scenario.protocol.verifier is None else {"verdict": VERDICTS[verdict], "correct": verdict == label}
        yield {
            "instance": int(rollout.id_B[copy]),
            **({"label": label} if judged else {}),
            "seed": int(rollout.seed_B[copy]),
            "length": length,
            **judged,
            "reward": {agent: round(total, 6) for agent, total in zip(scenario.protocol.agents, totals)},
            "rounds": [{"round": r, "turns": _turns(scenario, rollout, copy, r)} for r in range(length)],
        }


def _turns(scenario: Scenario, rollout: Rollout, copy: int, r: int) -> list[dict[str, Any]]:
    protocol = scenario.protocol
    table_AC = protocol.turn_table_SKAC[int(rollout.seed_B[copy]) % len(protocol.turns), r] & rollout.turn_BRA[copy, r, :, None]
    turns: list[dict[str, Any]] = []
    told: set[int] = set()
    for a, c in table_AC.nonzero().tolist():
        turn: dict[str, Any] = {"agent": protocol.agents[a], "channel": protocol.channels[c]}
        turn["message"] = rollout.main_BRACM[copy, r, a, c].tolist()
        if rollout.linear_BRACM is not None:
            turn["linear"] = rollout.linear_BRACM[copy, r, a, c].tolist()
        if protocol.agents[a] in protocol.deciders and a not in told:
            turn["decision"] = DECISIONS[int(rollout.decision_BRA[copy, r, a])]
            told.add(a)
        turns.append(turn)
    return turns
