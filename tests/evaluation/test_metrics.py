"""Metrics of a rollout against a slow implementation that looks at one copy after the other."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nip_ray.evaluation.intervals import proportion
from nip_ray.evaluation.metrics import evaluation_record, rollout_metrics
from nip_ray.play.rollout import Rollout
from nip_ray.protocols import Protocol, build

NAMES = ("nip", "debate", "merlin_arthur", "solo_verifier", "helpful_sneaky", "open_debate", "judge_panel")


def random_rollout(protocol: Protocol, copies: int, instances: int, seed: int) -> Rollout:
    """Any verdicts, labels, lengths and rewards: the metrics do not ask whether they fit together."""
    draw = torch.Generator().manual_seed(seed)
    rounds, agents = protocol.max_rounds, len(protocol.agents)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=draw)

    return Rollout(
        id_B=integers(0, instances, copies),
        seed_B=integers(0, 100, copies),
        y_B=integers(0, 2, copies),
        main_BRACM=integers(-1, 5, copies, rounds, agents, len(protocol.channels), 1),
        linear_BRACM=None,
        decision_BRA=integers(0, 3, copies, rounds, agents),
        turn_BRA=integers(0, 2, copies, rounds, agents).bool(),
        reward_BRA=torch.randn(copies, rounds, agents, generator=draw),
        log_prob_BRA=torch.randn(copies, rounds, agents, generator=draw),
        length_B=integers(1, rounds + 1, copies),
        verdict_B=integers(0, 3, copies),
        vote_BM=integers(0, 3, copies, 3) if protocol.panel else None,
    )


def slow_samples(protocol: Protocol, rollout: Rollout, groups: dict[str, Tensor]) -> dict[str, list[float]]:
    """Key -> what every copy that counts contributes to its mean."""
    samples: dict[str, list[float]] = {}
    for b in range(rollout.num_copies):
        verdict, y = int(rollout.verdict_B[b]), int(rollout.y_B[b])
        right = 1.0 if verdict == y else 0.0
        samples.setdefault("verifier/accuracy", []).append(right)
        if y == 1:
            samples.setdefault("verifier/completeness", []).append(1.0 if verdict == 1 else 0.0)
        else:
            samples.setdefault("verifier/soundness", []).append(1.0 if verdict == 0 else 0.0)
        samples.setdefault("verifier/undecided", []).append(1.0 if verdict not in (0, 1) else 0.0)
        for group, labels in groups.items():
            samples.setdefault(f"verifier/accuracy/{group}={int(labels[int(rollout.id_B[b])])}", []).append(right)
        samples.setdefault("episode_length", []).append(float(rollout.length_B[b]))
        for a, agent in enumerate(protocol.agents):
            samples.setdefault(f"{agent}/return", []).append(
                sum(float(rollout.reward_BRA[b, r, a]) for r in range(rollout.num_rounds))
            )
    for place, member in enumerate(protocol.verifiers if protocol.panel else ()):
        assert rollout.vote_BM is not None
        own = slow_samples(replace(protocol, panel=None), replace(rollout, verdict_B=rollout.vote_BM[:, place]), groups)
        samples |= {
            key.replace("verifier", member, 1): values for key, values in own.items() if key.startswith("verifier")
        }
    if protocol.roles:
        for place, role in enumerate(protocol.roles):
            drawn = rollout.copies(rollout.seed_B % len(protocol.roles) == place)
            own = slow_samples(replace(protocol, roles=(), told=()), drawn, {})
            samples |= {f"{key}/role={role}": values for key, values in own.items() if key != "episode_length"}
    return samples


def slow_score_difference(protocol: Protocol, rollout: Rollout) -> float | None:
    """None where nobody was honest, or nobody lied, among the provers who had a turn."""
    paid: dict[bool, list[float]] = {True: [], False: []}
    for b in range(rollout.num_copies):
        y, role = int(rollout.y_B[b]), protocol.role_of(int(rollout.seed_B[b]))
        for prover in protocol.provers:
            a = protocol.agents.index(prover)
            after = [verdict for verdict, roles in protocol.wanted_by(prover, y).items() if role in roles or not roles]
            # drawn to, whatever a random rollout has
            speaks = protocol.speaks_in(prover)[int(rollout.seed_B[b]) % len(protocol.turns)]
            if after and speaks and bool(rollout.turn_BRA[b, :, a].any()):
                paid[after == [y]].append(float(rollout.reward_BRA[b, :, a].double().sum()))
    return sum(paid[True]) / len(paid[True]) - sum(paid[False]) / len(paid[False]) if all(paid.values()) else None


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**31), st.integers(0, 2))
def test_against_one_copy_at_a_time(name: str, copies: int, instances: int, seed: int, num_groups: int) -> None:
    protocol = build(name)
    rollout = random_rollout(protocol, copies, instances, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    groups = {f"group{g}": torch.randint(-1, 3, (instances,), generator=draw) for g in range(num_groups)}
    samples = slow_samples(protocol, rollout, groups)

    found = rollout_metrics(protocol, rollout, groups)
    difference = slow_score_difference(protocol, rollout)
    assert found.pop("score_difference", None) == (None if difference is None else pytest.approx(difference, abs=1e-9))
    assert found.keys() == samples.keys()
    assert all(type(value) is float for value in found.values())
    assert found == pytest.approx({key: sum(values) / len(values) for key, values in samples.items()}, abs=1e-6)

    record = evaluation_record(protocol, rollout, groups)
    json.dumps(record, allow_nan=False)
    record.pop("score_difference", None)
    for key, values in samples.items():
        assert record[key]["n"] == len(values)
        assert record[key]["estimate"] == pytest.approx(found[key])
        if key.startswith("verifier/") and "/return" not in key:
            assert record[key] == proportion(int(sum(values)), len(values)).record()
    # a class or role that does not occur
    for key in (key for key in record.keys() - samples.keys() if "/return" not in key):
        assert record[key] == {"estimate": None, "lower": 0.0, "upper": 1.0, "n": 0}


def test_no_copies_have_no_metrics() -> None:
    protocol = build("nip")
    empty = random_rollout(protocol, 0, 1, 0)
    assert rollout_metrics(protocol, empty, {"wl_score": torch.tensor([-1])}) == {}
    assert evaluation_record(protocol, empty, {})["verifier/accuracy"]["n"] == 0
