"""The message game: what each side sees, labels, rules, and that random players are right half of the time."""

import pytest
import torch
from torch import Tensor

from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.rollout import Dialogue
from nip_ray.protocols import build
from nip_ray.scenarios.message_game.scenario import MessageGame, build_message_game
from nip_ray.settings.message_game import MessageAgentSettings, MessageGameSettings

ROUNDS, SYMBOLS, SECRETS = 8, 5, 6


def game(kind: str = "learned", secrets: int = SECRETS) -> MessageGame:
    agents = {"_default": MessageAgentSettings(kind=kind, hidden=16)}  # type: ignore[arg-type]
    return build_message_game(
        build("message_game"), MessageGameSettings(num_symbols=SYMBOLS, num_secrets=secrets, agents=agents)
    )


def dialogue(count: int, seed: int = 0) -> Tensor:
    """(N, R, A, C, 1): both speak in every round, each in its own channel."""
    main = torch.full((count, ROUNDS, 2, 2, 1), -1)
    said = torch.randint(SYMBOLS, (count, ROUNDS, 2), generator=torch.Generator().manual_seed(seed))
    for side in range(2):
        main[:, :, side, side, 0] = said[:, :, side]
    return main


def observe(scenario: MessageGame, agent: str, ids: Tensor, main: Tensor, round: int) -> Tensor:
    round_N = torch.full((len(ids),), round)
    said = Dialogue(main).before(round_N)
    return scenario.observe(agent, ids, said, round_N, torch.zeros_like(ids))["features"]


@pytest.mark.parametrize("agent", ["prover", "verifier"])
def test_layout(agent: str) -> None:
    scenario, ids, main = game(), torch.arange(20), dialogue(20)
    for round in range(ROUNDS):
        features = observe(scenario, agent, ids, main, round)
        expected = torch.zeros(20, ROUNDS + 2 * SYMBOLS + SECRETS)
        for n in range(20):
            expected[n, round] = 1
            if round:
                expected[n, ROUNDS + int(main[n, round - 1, 0, 0, 0])] = 1
                expected[n, ROUNDS + SYMBOLS + int(main[n, round - 1, 1, 1, 0])] = 1
            if agent == "prover":
                expected[n, ROUNDS + 2 * SYMBOLS + n % SECRETS] = 1
        assert torch.equal(features, expected)


@pytest.mark.parametrize("secrets", [2, 3, 4, 7])
def test_labels(secrets: int) -> None:
    scenario = game(secrets=secrets)
    ids = scenario.ids("test")
    assert torch.equal(ids, scenario.ids("train"))
    assert scenario.label_I.tolist() == [int(2 * (i % secrets) >= secrets) for i in ids.tolist()]
    if secrets % 2 == 0:
        assert abs(float(scenario.label_I.double().mean()) - 0.5) < 0.01


def test_rules() -> None:
    protocol = build("message_game")
    assert protocol.agents == ("prover", "verifier")
    assert (protocol.max_rounds, protocol.min_rounds) == (ROUNDS, ROUNDS)
    scenario = game("random")
    agents = {agent: scenario.build_agent(agent, 0) for agent in protocol.agents}
    ids = scenario.ids("train")
    rollout = play_rollout(BatchedPlay(scenario), agents, ids, torch.zeros_like(ids), torch.Generator().manual_seed(0))
    assert bool(rollout.turn_BRA.all())
    assert bool((rollout.length_B == ROUNDS).all())
    assert bool((rollout.decision_BRA[:, :-1] == 2).all())  # a decision that cannot count is not made
    assert torch.equal(rollout.decision_BRA[:, -1, 1], rollout.verdict_B)
    assert not rollout.reward_BRA[:, :-1].any()
    right = rollout.verdict_B == rollout.y_B
    assert torch.equal(rollout.reward_BRA[:, -1], torch.where(right, 1.0, -1.0)[:, None].expand(-1, 2))
    assert float(right.double().mean()) == pytest.approx(1 / 3, abs=0.06)  # reject, accept, undecided
    said = rollout.main_BRACM[..., 0]
    assert bool((said[:, :, 0, 1] == -1).all())
    assert bool((said[:, :, 1, 0] == -1).all())
    frequency = torch.bincount(said[:, :, 0, 0].flatten(), minlength=SYMBOLS) / said[:, :, 0, 0].numel()
    assert frequency.tolist() == pytest.approx([1 / SYMBOLS] * SYMBOLS, abs=0.03)
