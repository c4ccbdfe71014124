"""Transcripts as JSON in words: one record per episode, one picture per instance.

Decisions that matter here:
- rollouts keep no logits, so a decider's probabilities are recomputed from its observations, for the stored episodes;
- a picture depends on the instance alone, so it is stored once in the run folder (`instances.json`), not in every
  evaluation's transcripts.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.evaluation.report.source import INSTANCES, read_pictures
from nip_ray.play.rollout import Dialogue, Rollout
from nip_ray.play.scenario import Scenario

_MAX_PICTURES = 500
_NOBODY: Mapping[str, nn.Module] = {}


def transcript_records(
    scenario: Scenario, rollout: Rollout, limit: int, networks: Mapping[str, nn.Module] = _NOBODY
) -> Iterator[dict[str, Any]]:
    """The first `limit` copies of `rollout`, each as a mapping of plain JSON values:

    instance (id), label, seed (of the episode), role (where roles are drawn), length (rounds played), verdict (its
    name, or "undecided"), correct, votes (of a panel: member -> the same words), reward (agent -> sum over the
    episode), rounds: a list of {round, turns}, and turns: a list of {agent, channel, message} in the protocol's order.
    A turn has "linear" where the scenario has a second message; the first of a decider's turns in a round has
    "decision", whether or not it counted, and, where it could count and `networks` has the agent, "probabilities" of
    each decision. A game without a verifier has no label, verdict and correct. A scenario may add more:
    `Scenario.record_extras`. Nothing is raised; the rollout must be one of `scenario`.
    """
    rollout = rollout.copies(slice(0, max(limit, 0))).to("cpu")
    chances_BRAD, words = decision_probabilities(scenario, rollout, networks), scenario.protocol.verdict_words
    for copy in range(rollout.num_copies):
        label, verdict, length = (int(part[copy]) for part in (rollout.y_B, rollout.verdict_B, rollout.length_B))
        totals = rollout.reward_BRA[copy].sum(0).tolist()
        judged = {} if scenario.protocol.verifier is None else {"verdict": words[verdict], "correct": verdict == label}
        if rollout.vote_BM is not None:
            judged["votes"] = {
                agent: words[vote] for agent, vote in zip(scenario.protocol.verifiers, rollout.vote_BM[copy].tolist())
            }
        device = scenario.label_I.device
        linear = None if rollout.linear_BRACM is None else rollout.linear_BRACM[copy : copy + 1].to(device)
        yield {
            "instance": int(rollout.id_B[copy]),
            **({"label": label} if judged else {}),
            "seed": int(rollout.seed_B[copy]),
            **({"role": scenario.protocol.role_of(int(rollout.seed_B[copy]))} if scenario.protocol.roles else {}),
            "length": length,
            **judged,
            "reward": {agent: round(total, 6) for agent, total in zip(scenario.protocol.agents, totals)},
            "rounds": [{"round": r, "turns": _turns(scenario, rollout, chances_BRAD, copy, r)} for r in range(length)],
            **scenario.record_extras(
                int(rollout.id_B[copy]), Dialogue(rollout.main_BRACM[copy : copy + 1].to(device), linear), networks
            ),
        }


@torch.no_grad()
def decision_probabilities(scenario: Scenario, rollout: Rollout, networks: Mapping[str, nn.Module]) -> Tensor:
    """(B, R, A, D) on the CPU: each decider's probabilities of the verdicts and of continuing where its decision could
    count, else NaN."""
    protocol = scenario.protocol
    chances_BRAD = torch.full((*rollout.turn_BRA.shape, protocol.undecided + 1), torch.nan)
    for a, agent in enumerate(protocol.agents):
        network = networks.get(agent)
        copy_N, round_N = rollout.turn_BRA[:, :, a].nonzero(as_tuple=True)
        if network is None or agent not in protocol.deciders or len(copy_N) == 0:
            continue
        device = scenario.label_I.device
        said = Dialogue(rollout.main_BRACM, rollout.linear_BRACM).rows(copy_N).before(round_N)
        said = Dialogue(said.main.to(device), None if said.linear is None else said.linear.to(device))
        obs = scenario.observe(
            agent, rollout.id_B[copy_N].to(device), said, round_N.to(device), rollout.seed_B[copy_N].to(device)
        )
        training = network.training
        policy, _ = network.eval()(obs, True, False)
        network.train(training)
        if policy.decision is not None and policy.may_decide is not None:
            may_N1 = policy.may_decide[:, None]
            chances_BRAD[copy_N, round_N, a] = (
                torch.where(may_N1, torch.softmax(policy.decision, -1), torch.nan).float().cpu()
            )
    return chances_BRAD


def instance_pictures(scenario: Scenario, ids: Iterable[int]) -> dict[str, dict[str, Any]]:
    """Instance (as text) -> its picture as plain JSON, where it has one; see `Scenario.instance_picture`."""
    drawn = ((number, scenario.instance_picture(number)) for number in dict.fromkeys(ids))
    return {str(number): picture for number, picture in drawn if picture is not None}


def keep_pictures(run_dir: Path, scenario: Scenario, ids: Iterable[int]) -> None:
    """Add missing pictures of these instances to the run's `instances.json`.

    Raises UserError when it cannot be written. A damaged file is rewritten.
    """
    from nip_ray.storage.files import write_atomically
    from nip_ray.storage.folder import VERSION

    known = read_pictures(run_dir)
    missing = [number for number in ids if str(number) not in known][: max(0, _MAX_PICTURES - len(known))]
    if found := instance_pictures(scenario, missing):
        document = {"format": "nip_ray.instances", "version": VERSION, "pictures": {**known, **found}}
        write_atomically(run_dir / INSTANCES, json.dumps(document, separators=(",", ":"), allow_nan=False).encode())


def _turns(scenario: Scenario, rollout: Rollout, chances_BRAD: Tensor, copy: int, r: int) -> list[dict[str, Any]]:
    protocol, words = scenario.protocol, scenario.protocol.decision_words
    table_AC = (
        protocol.turn_table_SKAC[int(rollout.seed_B[copy]) % len(protocol.turns), r]
        & rollout.turn_BRA[copy, r, :, None]
    )
    turns: list[dict[str, Any]] = []
    told: set[int] = set()
    for a, c in table_AC.nonzero().tolist():
        turn: dict[str, Any] = {"agent": protocol.agents[a], "channel": protocol.channels[c]}
        turn["message"] = rollout.main_BRACM[copy, r, a, c].tolist()
        if rollout.linear_BRACM is not None:
            turn["linear"] = rollout.linear_BRACM[copy, r, a, c].tolist()
        if protocol.agents[a] in protocol.deciders and a not in told:
            turn["decision"] = words[int(rollout.decision_BRA[copy, r, a])]
            chances = chances_BRAD[copy, r, a].tolist()
            if chances[0] == chances[0]:  # not NaN
                turn["probabilities"] = {word: round(chance, 4) for word, chance in zip(words, chances)}
            told.add(a)
        turns.append(turn)
    return turns
