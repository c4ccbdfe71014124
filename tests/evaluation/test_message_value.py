"""What messages are worth: everything, nothing, and never dependent on the order of instances or on batches."""

from typing import Any

import pytest
import torch

from nip_ray.evaluation.attackers import silence
from nip_ray.evaluation.message_value import WAYS, message_value
from nip_ray.play.core import BatchedPlay, Player
from nip_ray.play.staged import BATCH, stage_all
from tests.builders import graph_scenario
from tests.evaluation.gullible import PASSWORD, ROUNDS, SYMBOLS, Gullible, Mute, message_game


class Knowing(Mute):
    """Says the password about one secret alone, or about all that are to be accepted, and 0 about the others."""

    def __init__(self, secrets: tuple[int, ...] = (2, 3)) -> None:
        super().__init__()
        self.secrets = torch.tensor(secrets)

    def forward(self, obs: Any, want_policy: bool = True, want_value: bool = True) -> Any:
        policy, value = super().forward(obs)
        secret_N = obs["features"][:, ROUNDS + 2 * SYMBOLS :].argmax(-1)
        policy.message[torch.isin(secret_N, self.secrets), 0, PASSWORD] = 99.0
        return policy, value


def some_ids() -> torch.Tensor:
    return torch.randperm(1024, generator=torch.Generator().manual_seed(0))[:400]


def values(prover: Any, id_B: torch.Tensor, deaf: bool = False) -> dict[str, Any]:
    """Of a verifier that accepts for the password, if it can hear it."""
    play, seed_B = BatchedPlay(message_game()), torch.zeros_like(id_B)
    networks = {"prover": prover, "verifier": Gullible(deaf=deaf)}
    staged = stage_all(play, {agent: Player(network) for agent, network in networks.items()}, id_B, seed_B).rollout
    return message_value(play, networks, id_B, seed_B, staged.verdict_B == staged.y_B, 0)


def test_instances_may_be_sorted_by_their_labels() -> None:
    """Neighbours have the same label then, and what is said about one is right about the other."""
    found = values(Knowing(), message_game().label_I.argsort(stable=True))
    assert found["heard"]["estimate"] == 1
    for way in WAYS:
        assert found[way]["accuracy"]["estimate"] == pytest.approx(0.5, abs=0.1)


def test_no_instance_is_alone_in_its_batch_and_keeps_its_own_message() -> None:
    """A positive one among many negative ones, and one more than a batch takes: wherever it falls, it loses its
    password."""
    negative = (message_game().label_I == 0).nonzero().flatten()
    id_B = torch.cat([negative, negative[:1] + 2])
    assert len(id_B) == BATCH + 1
    for way in ("shuffled", "other_instance"):
        wrong = 1 - values(Knowing(), id_B)[way]["accuracy"]["estimate"]
        assert wrong * len(id_B) == pytest.approx(2), "it is rejected, and another is accepted"


def test_of_one_instance_there_is_no_other() -> None:
    found = values(Knowing(), torch.tensor([2]))
    assert set(found) == {"heard", "silenced"}
    assert (found["heard"]["estimate"], found["silenced"]["accuracy"]["estimate"]) == (1, 0)


def test_messages_that_carry_everything_are_worth_everything_and_unheard_ones_nothing() -> None:
    found, unheard = values(Knowing(), some_ids()), values(Knowing(), some_ids(), deaf=True)
    assert found["heard"]["estimate"] == 1
    for way in WAYS:
        assert found[way]["accuracy"]["estimate"] == pytest.approx(0.5, abs=0.1), "what is left is a guess"
        lost = found[way]["lost"]
        assert lost["estimate"] == pytest.approx(1 - found[way]["accuracy"]["estimate"])
        assert 0.4 < lost["lower"] < lost["estimate"] < lost["upper"] < 0.6
        assert lost["n"] == 400
        assert unheard[way]["lost"]["lower"] < unheard[way]["lost"]["estimate"] == 0 < unheard[way]["lost"]["upper"]


def test_a_prover_that_says_always_the_same_can_be_quoted_anywhere() -> None:
    found = values(Mute(), some_ids())
    assert found["shuffled"]["lost"]["estimate"] == found["other_instance"]["lost"]["estimate"] == 0


def test_of_several_provers_each_is_silenced_alone() -> None:
    scenario = graph_scenario("debate")
    play, id_B = BatchedPlay(scenario), scenario.ids("test").cpu()
    seed_B, networks = (
        torch.zeros_like(id_B),
        {agent: scenario.build_agent(agent, 3) for agent in scenario.protocol.agents},
    )

    def right(silenced: str) -> torch.Tensor:
        players = {
            agent: Player(network, edit=silence if agent == silenced else None) for agent, network in networks.items()
        }
        rollout = stage_all(play, players, id_B, seed_B).rollout
        return rollout.verdict_B == rollout.y_B

    heard_B = right("nobody")
    found = message_value(play, networks, id_B, seed_B, heard_B, 0)["without"]
    assert list(found) == ["prover0", "prover1"]
    for prover, record in found.items():
        left_B = right(prover)
        assert record["accuracy"]["estimate"] == pytest.approx(float(left_B.double().mean()), abs=1e-9)
        assert record["lost"]["estimate"] == pytest.approx(float((heard_B.double() - left_B.double()).mean()), abs=1e-9)


def test_a_game_without_a_prover_has_no_messages_to_value() -> None:
    scenario = graph_scenario("solo_verifier")
    ids = scenario.ids("test")
    assert (
        message_value(BatchedPlay(scenario), {"verifier": scenario.build_agent("verifier", 0)}, ids, ids, ids > 0, 0)
        == {}
    )
