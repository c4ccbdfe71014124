"""Play that is staged: like the ordinary one where nothing is staged, and exactly what was asked for where it is."""

from dataclasses import fields
from typing import Any

import pytest
import torch

from nip_ray.evaluation.attackers import silence
from nip_ray.play.core import BatchedPlay, Player, play_rollout
from nip_ray.play.rollout import Rollout
from nip_ray.play.staged import stage, stage_all
from nip_ray.protocols import build
from nip_ray.seeding import generator
from tests.builders import PROTOCOLS, graph_scenario, protocol_id


def parts(protocol: Any = "nip", **settings: Any) -> tuple[BatchedPlay, dict[str, Any], torch.Tensor, torch.Tensor]:
    scenario = graph_scenario(protocol, **settings)
    networks = {
        agent: scenario.build_agent(agent, number).eval() for number, agent in enumerate(scenario.protocol.agents)
    }
    ids = scenario.ids("test")
    return BatchedPlay(scenario), networks, ids, torch.arange(len(ids)) * 7


def equal(first: Rollout, second: Rollout) -> bool:
    pairs: list[tuple[Any, Any]] = [(getattr(first, f.name), getattr(second, f.name)) for f in fields(Rollout)]
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("given", PROTOCOLS, ids=protocol_id)
@pytest.mark.parametrize("greedy", [True, False])
def test_without_staging_it_is_ordinary_play(given: tuple[str, dict[str, Any]], greedy: bool) -> None:
    play, networks, ids, seeds = parts(build(given[0], **given[1]), linear_symbols=3)

    def noise() -> torch.Generator | None:
        return None if greedy else generator(5, "noise")

    ordinary = play_rollout(play, networks, ids, seeds, noise())
    shared = noise()
    staged = stage(play, {agent: Player(network, shared) for agent, network in networks.items()}, ids, seeds)
    assert equal(ordinary, staged.rollout)


def test_batches_make_no_difference() -> None:
    play, networks, ids, seeds = parts()
    players = {agent: Player(network) for agent, network in networks.items()}
    whole, small = (stage_all(play, players, ids, seeds, batch) for batch in (512, 4))
    assert torch.equal(whole.rollout.main_BRACM, small.rollout.main_BRACM)
    assert torch.equal(whole.rollout.verdict_B, small.rollout.verdict_B)
    assert torch.allclose(whole.chance_BRD, small.chance_BRD, atol=1e-5)


def test_chances_are_the_verifiers_where_its_decision_counts() -> None:
    play, networks, ids, seeds = parts(build("nip", max_rounds=5, min_rounds=3))
    found = stage(play, {agent: Player(network) for agent, network in networks.items()}, ids, seeds)
    sums_BR = found.chance_BRD.sum(-1)
    verifier = play.protocol.verifier_index
    counts_BR = found.rollout.turn_BRA[:, :, verifier] & (torch.arange(5) >= 2)
    assert torch.allclose(sums_BR, counts_BR.float())
    likeliest_BR = found.chance_BRD.argmax(-1)
    assert torch.equal(likeliest_BR[counts_BR], found.rollout.decision_BRA[:, :, verifier][counts_BR])


def test_one_agent_can_be_greedy_beside_one_that_is_not() -> None:
    play, networks, ids, seeds = parts(build("adp"))
    first, second = (
        stage(
            play,
            {"prover": Player(networks["prover"]), "verifier": Player(networks["verifier"], generator(seed, "x"))},
            ids,
            seeds,
        )
        for seed in (1, 2)
    )
    prover, verifier = (play.protocol.agents.index(agent) for agent in ("prover", "verifier"))
    assert torch.equal(first.rollout.main_BRACM[:, :, prover], second.rollout.main_BRACM[:, :, prover])
    assert not torch.equal(first.rollout.main_BRACM[:, :, verifier], second.rollout.main_BRACM[:, :, verifier])


def test_silence_is_heard_as_nothing_said() -> None:
    play, networks, ids, seeds = parts(linear_symbols=3)
    players = {"prover": Player(networks["prover"], edit=silence), "verifier": Player(networks["verifier"])}
    rollout = stage(play, players, ids, seeds).rollout
    prover = play.protocol.agents.index("prover")
    assert bool((rollout.main_BRACM[:, :, prover] == -1).all())
    assert bool((rollout.linear_BRACM[:, :, prover] == -1).all())
    assert bool(rollout.turn_BRA[:, :, prover].any()), "it had its turns"


def test_a_prover_can_be_shown_another_instance() -> None:
    play, networks, ids, seeds = parts(build("adp"))
    shown = ids.roll(1)
    players = {"prover": Player(networks["prover"], shown_B=shown), "verifier": Player(networks["verifier"])}
    mixed = stage_all(play, players, ids, seeds, batch=4).rollout
    other = stage(play, {agent: Player(network) for agent, network in networks.items()}, shown, seeds).rollout
    prover = play.protocol.agents.index("prover")
    assert torch.equal(mixed.main_BRACM[:, 0, prover], other.main_BRACM[:, 0, prover])
    assert torch.equal(mixed.y_B, play.scenario.label_I[ids])
