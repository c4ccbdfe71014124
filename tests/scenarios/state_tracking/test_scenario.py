"""State tracking as tensors: what each agent sees of what was said, and that the exact worst case is of the play
itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nip_ray.config.load import config_from_dict
from nip_ray.errors import UserError
from nip_ray.play.conformance import check_scenario
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.protocols import build
from nip_ray.protocols.solo import solo_protocol
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.state_tracking.network import (
    COMMITTED,
    DISPUTED,
    HIGH,
    LOW,
    MIDDLE,
    MOVE,
    NOTHING,
    TRUTH,
    StateAgent,
)
from nip_ray.scenarios.state_tracking.scenario import StateTracking, build_state_tracking
from nip_ray.settings.state_tracking import StateAgentSettings, StateTrackingSettings

PLAYED: list[tuple[str, dict[str, Any]]] = [
    ("solo_verifier", {}),
    ("adp", {}),
    ("nip", {}),
    ("nip", {"min_rounds": 3, "max_rounds": 3}),
    ("debate", {"sequential": True, "verifier_first": False, "prover0_first": False, "max_rounds": 3}),
    ("bisection", {"max_rounds": 5}),
    ("bisection", {"max_rounds": 5, "half_chosen_by": "verifier"}),
    ("prover_estimator", {"max_rounds": 7}),
]


def scenario(name: str = "bisection", alone: bool = False, kind: str = "learned", **params: Any) -> StateTracking:
    agents = {"_default": StateAgentSettings(kind=kind, d=8, num_layers=1, num_heads=2)}  # type: ignore[arg-type]
    settings = StateTrackingSettings(length=4, num_train=40, num_test=12, agents=agents)
    protocol = build(name, **params)
    return build_state_tracking(solo_protocol(protocol, "verifier") if alone else protocol, settings)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("name", "params"), PLAYED, ids=str)
def test_conformance(name: str, params: dict[str, Any], alone: bool) -> None:
    made = scenario(name, alone, **params)
    check_scenario(made)
    assert not made.occurring().any()


def test_refusals() -> None:
    for name, params, said in [
        ("mnip", {}, "protocol.name: got mnip"),
        ("bisection", {"max_rounds": 9}, "scenario.length: got 4.*of 16"),
        (
            "prover_estimator",
            {},
            "scenario.length: got 4, but prover_estimator in 13 rounds comes down to one move of 16",
        ),
    ]:
        with pytest.raises(UserError, match=said):
            scenario(name, **params)


def played(made: StateTracking, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    networks = {agent: made.build_agent(agent, seed).eval() for agent in made.protocol.agents}
    ids = made.ids("test")
    return play_rollout(
        BatchedPlay(made), networks, ids, torch.zeros_like(ids), torch.Generator().manual_seed(seed)
    ), networks


@pytest.mark.parametrize("chooser", ["opponent", "verifier"])
def test_bisection_shows_the_interval_that_is_left(chooser: str) -> None:
    """Replayed one by one, in plain Python; and the worst case asks networks about exactly these observations."""
    made = scenario(max_rounds=5, half_chosen_by=chooser, kind="random")
    rollout, networks = played(made)
    chains, agents = made.chains, made.protocol.agents
    for n, item in enumerate(rollout.id_B.tolist()):
        said = rollout.main_BRACM[n].amax((1, 2, 3)).tolist()
        truth, moves = chains.state_IP[item].tolist(), chains.move_IT[item].tolist()
        low, high, low_state, high_state = 0, 4, truth[0], int(chains.claim_I[item])
        for r in range(5):
            middle, half = said[r - 1] if r in (1, 3) else NOTHING, (low + high) // 2
            speaker = next(agent for agent in agents if rollout.turn_BRA[n, r, agents.index(agent)])
            one = torch.tensor([r])
            obs = made.observe(
                speaker, rollout.id_B[n : n + 1], rollout.dialogue.rows(one * 0 + n).before(one), one, one * 0
            )
            seen: dict[int, list[tuple[int, int]]] = {}
            for role, token, place in zip(
                networks[speaker].body_.role_L.tolist(), obs["token"][0].tolist(), obs["place"][0].tolist()
            ):
                seen.setdefault(role, []).append((token, place))
            ends = {LOW: [(low_state, low)], HIGH: [(high_state, high)], MIDDLE: [(middle, half)]}
            if speaker == "verifier":
                left = 5 + moves[low] if r == 4 else NOTHING
                ends = {role: [(token, 0) for token, _ in pairs] for role, pairs in ends.items()} | {
                    DISPUTED: [(left, 0)]
                }
                if chooser == "opponent":
                    del ends[MIDDLE]
            else:
                ends[TRUTH] = list(zip(truth, range(5)))
            assert seen == ends
            assert bool(obs["speaks"].any()) == (r < 4)
            if r in (1, 3):
                low, high = (half, high) if said[r] else (low, half)
                low_state, high_state = (middle, high_state) if said[r] else (low_state, middle)
            elif r < 4:
                assert said[r] < 5


@pytest.mark.parametrize("name", ["nip", "debate"])
def test_the_verifier_sees_the_move_that_was_pointed_at(name: str) -> None:
    made = scenario(name, **dict(PLAYED[3:5])[name])
    rollout, networks = played(made)
    pointer = "verifier" if name == "nip" else "prover0"
    said = rollout.main_BRACM.amax(3)
    move = said[:, 0 if name == "nip" else 1, made.protocol.agents.index(pointer), 0]
    chain = said[:, 1 if name == "nip" else 0, made.protocol.agents.index(made.protocol.provers[-1])]
    committed = torch.cat([made.chains.state_IP[rollout.id_B, :1], chain, made.chains.claim_I[rollout.id_B, None]], 1)
    final = torch.full_like(rollout.id_B, 2)
    obs = made.observe("verifier", rollout.id_B, rollout.dialogue.before(final), final, final)
    role = networks["verifier"].body_.role_L.tolist()
    around = {LOW: committed.gather(1, move[:, None]), HIGH: committed.gather(1, move[:, None] + 1)}
    around[DISPUTED] = 5 + made.chains.move_IT[rollout.id_B].gather(1, move[:, None])
    for kind, expected in around.items():
        assert torch.equal(obs["token"][:, role.index(kind)], expected[:, 0])
    assert (role.count(MOVE), role.count(COMMITTED), role.count(TRUTH)) == (4, 2, 0), (
        "all moves, start and claim, no other state"
    )
    assert int(move.max()) < 4
    assert int(chain.max()) < 5


@pytest.mark.parametrize(("name", "params"), [PLAYED[3], *PLAYED[5:]], ids=str)
def test_the_worst_case_bounds_what_is_played(name: str, params: dict[str, Any]) -> None:
    """What a lie of this very prover achieves, estimated from episodes, is no more than the exact worst case allows."""
    made = scenario(name, **params)
    _, networks = played(made)
    found = made.exact_figures(networks)
    ids = made.ids("test").repeat(200)
    rollout = play_rollout(BatchedPlay(made), networks, ids, torch.zeros_like(ids), torch.Generator().manual_seed(1))
    accepted = (rollout.verdict_B == 1).double()
    assert 1 - found["worst_case/soundness"] > 0.0
    assert float(accepted[rollout.y_B == 0].mean()) <= 1 - found["worst_case/soundness"] + 0.03
    if name == "bisection":
        assert float(accepted[rollout.y_B == 1].mean()) >= found["worst_case/completeness"] - 0.03


def test_random_agents_say_only_what_has_a_meaning() -> None:
    for name, params in PLAYED:
        made = scenario(name, kind="random", **params)
        rollout, networks = played(made)
        assert all(isinstance(network, StateAgent) and not network.groups() for network in networks.values())
        assert int(rollout.main_BRACM.max()) < (10 if made.seats.estimator else 5)
        if made.seats.estimator:
            said_BR = rollout.main_BRACM.amax((2, 3, 4))
            assert int(said_BR[:, [0, 3]].max()) < 5
            assert int(said_BR[:, [1, 4]].max()) < 9


@pytest.mark.slow
def test_ppo_learns_to_tell_true_claims_from_false_ones(tmp_path: Path) -> None:
    """Two moves, all three learn from nothing: alone or blind, this verifier is right half of the time."""
    config = {
        "iterations": 24,
        "protocol": {"name": "bisection", "max_rounds": 3},
        "scenario": {
            "name": "state_tracking",
            "length": 2,
            "num_train": 60,
            "num_test": 20,
            "agents": {"_default": {"d": 32, "num_layers": 1}},
        },
        "algorithm": {
            "num_epochs": 2,
            "minibatch_size": 512,
            "lr": 0.003,
            "gamma": 1.0,
            "lam": 1.0,
            "entropy_coefficient": 0.01,
        },
        "play": {"num_copies": 512},
        "evaluation": {"interval": 0, "num_transcripts": 0, "worst_case_episodes": 0},
        "runtime": {"num_threads": 1},
    }
    run_experiment(config_from_dict(config), tmp_path / "run", quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    accuracy = [row["train/verifier/accuracy"] for row in rows]
    assert min(accuracy[-4:]) > 0.6
    assert 0.0 < rows[-1]["eval/worst_case/soundness"] < 1.0
