"""Message regression: it reads what was sent, finds a code where there is one, and none where there is none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nip_ray.evaluation.message_regression import first_messages, message_regression
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.play.rollout import Rollout
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Protocol, build
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.message_game.scenario import build_message_game
from nip_ray.scenarios.registry import build_agents
from nip_ray.settings.experiment import MessageRegressionSettings
from nip_ray.settings.message_game import MessageGameSettings
from tests.builders import graph_scenario, random_pairs
from tests.docs.metrics import documented_metrics
from tests.runs.small import GRAPHS, MESSAGES, small

SETTINGS = MessageRegressionSettings(enabled=True)
THOROUGH = replace(SETTINGS, num_epochs=60)  # for few messages
PAIRS = random_pairs(3, sizes=(4,) * 300)


def played(scenario: Scenario) -> Rollout:
    """Every training instance once, with sampled actions."""
    networks = build_agents(scenario, None, 0)
    ids = scenario.ids("train")
    seeds = torch.arange(len(ids)) % 7
    return play_rollout(BatchedPlay(scenario), networks, ids, seeds, torch.Generator().manual_seed(0))


def saying(protocol: Protocol, rollout: Rollout, agent: str, symbol_B: Tensor, round: int = 0) -> Rollout:
    """The same, but for one agent's symbols of a round, in all its channels and positions."""
    main = rollout.main_BRACM.clone()
    own = main[:, round, protocol.agents.index(agent)]
    main[:, round, protocol.agents.index(agent)] = torch.where(own < 0, -1, symbol_B[:, None, None])
    return replace(rollout, main_BRACM=main)


def noise(rollout: Rollout, symbols: int) -> Tensor:
    return torch.randint(symbols, (rollout.num_copies,), generator=torch.Generator().manual_seed(9))


def scores(
    scenario: Scenario, rollout: Rollout, settings: MessageRegressionSettings = SETTINGS
) -> dict[str, float | None]:
    return {agent: score.estimate for agent, score in message_regression(scenario, rollout, settings, 0).items()}


@pytest.fixture(scope="module")
def game() -> Scenario:
    return build_message_game(build("message_game"), MessageGameSettings(num_symbols=6))


@pytest.fixture(scope="module")
def rollout(game: Scenario) -> Rollout:
    return played(game)


def test_a_message_that_is_the_label(game: Scenario, rollout: Rollout) -> None:
    code = saying(game.protocol, rollout, "prover", rollout.y_B * 2 + 1)
    found = message_regression(game, saying(game.protocol, code, "verifier", noise(rollout, 6)), SETTINGS, 0)
    assert (found["prover"].estimate, found["prover"].n) == (1.0, 205), "a fifth of 1024, rounded up"
    assert found["prover"].lower > 0.98
    assert found["verifier"].lower < 0.5 < found["verifier"].upper


def test_what_was_received_does_not_count() -> None:
    """In nip the prover answers: what it was asked would tell all, what it says tells nothing, and the other way
    round."""
    scenario = graph_scenario(build("nip", min_rounds=3), PAIRS)
    protocol, rollout = scenario.protocol, played(scenario)
    asked = saying(protocol, rollout, "verifier", rollout.y_B)
    found = scores(scenario, saying(protocol, asked, "prover", 4 + noise(rollout, 4), round=1), THOROUGH)
    assert found["verifier"] == 1.0
    assert found["prover"] == pytest.approx(0.5, abs=0.2)
    asked = saying(protocol, rollout, "verifier", 4 + noise(rollout, 4))
    found = scores(scenario, saying(protocol, asked, "prover", rollout.y_B, round=1), THOROUGH)
    assert found["verifier"] == pytest.approx(0.5, abs=0.2)
    assert found["prover"] == 1.0


def test_later_messages_do_not_count(game: Scenario, rollout: Rollout) -> None:
    code = saying(game.protocol, rollout, "prover", noise(rollout, 6))
    for round in range(1, game.protocol.max_rounds):
        code = saying(game.protocol, code, "prover", rollout.y_B, round)
    assert scores(game, code)["prover"] == pytest.approx(0.5, abs=0.12)


def test_what_is_kept_back_is_new_to_the_reader() -> None:
    """Everyone has a symbol of its own: what is learned by heart helps with nobody else."""
    scenario = build_message_game(build("message_game"), MessageGameSettings(num_symbols=1024))
    rollout = saying(scenario.protocol, played(scenario), "prover", torch.arange(1024))
    assert scores(scenario, rollout, THOROUGH)["prover"] == pytest.approx(0.5, abs=0.12)


def test_linear_messages_count_too() -> None:
    scenario = graph_scenario("nip", PAIRS, linear_symbols=3)
    rollout = played(scenario)
    rollout = saying(scenario.protocol, rollout, "verifier", noise(rollout, 8))
    linear = rollout.linear_BRACM.clone()
    linear[:, 0, 1] = rollout.y_B[:, None, None]
    assert scores(scenario, replace(rollout, linear_BRACM=linear), THOROUGH)["verifier"] == 1.0


def test_symbols_are_one_hot_by_channel_and_position() -> None:
    scenario = graph_scenario("debate", PAIRS, message_size=2)
    rollout = played(scenario)
    said_NX, y_N = first_messages(scenario, rollout, "verifier")
    assert said_NX.shape == (300, 2 * 2 * scenario.num_symbols)
    said_NCMS = said_NX.view(300, 2, 2, -1)
    assert bool((said_NCMS.sum(-1) == 1).all())
    assert torch.equal(said_NCMS.argmax(-1), rollout.main_BRACM[:, 0, 2])
    assert torch.equal(y_N, rollout.y_B)


def test_only_copies_in_which_it_had_the_turn() -> None:
    """In merlin_arthur the episode's seed says who speaks."""
    scenario = graph_scenario("merlin_arthur", PAIRS)
    rollout = played(scenario)
    for number in range(2):
        said_NX, y_N = first_messages(scenario, rollout, f"prover{number}")
        own = rollout.seed_B % 2 == number
        assert torch.equal(y_N, rollout.y_B[own])
        assert torch.equal(said_NX.argmax(1), rollout.main_BRACM[own, 0, number, 0, 0])


def test_too_few_messages_have_no_score(game: Scenario, rollout: Rollout) -> None:
    for count, found in ((0, 0), (1, 0), (2, 2)):
        assert len(scores(game, rollout.copies(slice(0, count)))) == found


@pytest.mark.parametrize(("base", "sampled"), [(MESSAGES, "true"), (GRAPHS, "false")], ids=["sampled", "greedy-only"])
def test_rows_and_documents_and_evaluate_agree(tmp_path: Path, base: dict[str, object], sampled: str) -> None:
    asked = ("evaluation.message_regression.enabled=true", f"evaluation.sampled={sampled}", "iterations=2")
    run = run_experiment(small(*asked, base=base), tmp_path / "run", quiet=True).run_dir
    last = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    document = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))["message_regression"]
    figures = evaluate_run(run)
    for agent in ("prover", "verifier"):
        key, record = f"eval/{agent}/message_regression", document[agent]
        assert last[key] == record["estimate"] == figures[key]
        assert (figures[f"{key}/lower"], figures[f"{key}/upper"]) == (record["lower"], record["upper"])
    assert "- `eval/<agent>/message_regression` " in documented_metrics()
