"""Kuhn poker between language models: paid as between networks, strategies read off probabilities, and runs without a
verifier."""

import asyncio
import json
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_from_dict, load_config
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply
from nip_ray.play.dialogues import Answer, play_dialogue
from nip_ray.protocols import build
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.matrix_games.language import ITEMS, KuhnPokerInWords, build_language_game, information_sets
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.matrix_games import LanguageMatrixGameSettings
from nip_ray.storage.folder import RunFolder
from nip_ray.text.judging.judge_run import judge_run
from tests.scenarios.matrix_games.test_kuhn import LINES, equilibrium, pay, policy


def poker(attempts: int = 20) -> KuhnPokerInWords:
    agents = {"_default": LanguageAgentSettings(max_invalid_replies=attempts)}
    return build_language_game(build("kuhn_poker"), LanguageMatrixGameSettings(agents=agents))


def spoken(scenario: KuhnPokerInWords, number: int, replies: list[str]) -> Dialogue:
    """The dialogue in which these replies are given, in order."""
    left = iter(replies)

    async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: tuple[int, ...]) -> Answer:
        return Answer(next(left))

    return asyncio.run(play_dialogue(scenario, ITEMS[number], 0, ask))


@pytest.mark.parametrize("line", LINES)
def test_every_line_of_every_deal_pays_as_between_networks(line: str) -> None:
    words = {"pp": "check check", "pbp": "check bet fold", "pbb": "check bet call", "bp": "bet fold", "bb": "bet call"}[
        line
    ]
    for number, cards in enumerate(permutations(range(3), 2)):
        dialogue = spoken(poker(), number, words.split())
        assert (dialogue.total("player0"), dialogue.total("player1")) == (pay(line, cards), -pay(line, cards))
        assert dialogue.ended
        assert len(dialogue.rounds) == len(line)


def test_what_is_no_word_is_asked_again_and_at_last_passes() -> None:
    dialogue = spoken(poker(2), 0, ["Hm.", " check\n", "call", "bet it all", "call"])
    assert [turns[0].retries for turns in dialogue.rounds] == [1, 2]
    assert [turns[0].invalid for turns in dialogue.rounds] == [False, True]
    assert dialogue.total("player0") == -1, "jack against queen, both checked"
    with pytest.raises(InvalidReply, match="expected check or bet, got 'fold'"):
        poker().parse(Dialogue(ITEMS[0], 0), "player0", "fold")


def test_a_chat_says_what_its_player_may_know() -> None:
    scenario = poker()
    chats = {
        (player, state): scenario.chat(dialogue, f"player{player}") for player, state, dialogue in information_sets()
    }
    assert [(message["role"], message["content"]) for message in chats[0, 3]] == [
        ("system", "Kuhn poker. Your card: queen."),
        ("user", "check or bet?"),
        ("assistant", "check"),
        ("user", "bet: fold or call?"),
    ]
    assert len({str(chat) for chat in chats.values()}) == len(chats) == 12


def test_an_unusable_reply_looks_like_a_pass() -> None:
    """To both players: else they would see chats that exploitability does not cover."""
    scenario = poker(1)
    unusable, passed = (spoken(scenario, 0, replies) for replies in (["Hm.", "bet", "call"], ["check", "bet", "call"]))
    assert [turns[0].invalid for turns in unusable.rounds] == [True, False, False]
    for after in (1, 2):
        seen = [
            scenario.chat(Dialogue(one.item, 0, one.rounds[:after]), f"player{after % 2}") for one in (unusable, passed)
        ]
        assert seen[0] == seen[1]


def test_exploitability_is_that_of_the_tables() -> None:
    known = equilibrium(0.2)
    places = {str(poker().chat(dialogue, f"player{p}")): (p, s) for p, s, dialogue in information_sets()}

    def table(agent: str, chats: Sequence[Chat], replies: Sequence[str]) -> list[list[float]]:
        found = [places[str(chat)] for chat in chats]
        return [
            [float(known[player][state, int(reply in ("bet", "call"))]) for reply in replies] for player, state in found
        ]

    figures = poker().exact_figures(ITEMS, table)
    assert figures["exploitability"] == pytest.approx(0, abs=1e-9)
    assert figures["player0/value"] == pytest.approx(-1 / 18)
    assert figures["off_form"] == pytest.approx(0)
    assert poker().exact_figures(ITEMS, lambda *_: [[0.5, 0.5]])["exploitability"] == pytest.approx(11 / 24)
    (first, _), off_form = poker(2).strategies(lambda *_: [[0.25, 0.25]])
    assert off_form == pytest.approx(0.5)
    assert first.tolist() == policy([0.375] * 6).tolist(), "a quarter at once or after half a miss; two misses pass"


@pytest.mark.parametrize("rule", ["expert_iteration", "malt"])
def test_a_run_has_players_and_no_verifier(rule: str, tmp_path: Path) -> None:
    data: dict[str, Any] = {
        "iterations": 2,
        "protocol": {"name": "kuhn_poker"},
        "scenario": {"name": "matrix_game", "agents": {"_default": {"provider": "nobody"}}},
        "algorithm": {
            "name": rule,
            "rollouts_per_iteration": 12,
            "format_warmup": 4,
            "fine_tuning": {"min_examples": 1},
        },
        "providers": {"nobody": {"name": "dummy"}},
    }
    config = config_from_dict(data)
    assert isinstance(config, TextExperimentConfig)
    run_experiment(config, tmp_path / "run", quiet=True)
    with RunFolder.open(tmp_path / "run") as folder:
        row, transcripts, record = (
            folder.metrics()[-1],
            folder.read_transcripts("test-000002"),
            folder.read_json("evaluation.json"),
        )
    assert row["eval_sampled/player0/return"] == -row["eval_sampled/player1/return"]
    assert not [key for key in (*row, *record["sampled"]) if "verifier" in key]
    assert not record["held_out"]
    assert len(transcripts) == 6
    assert not {"label", "verdict", "correct"} & set(transcripts[0])
    assert "jack" in (tmp_path / "run" / "report.html").read_text()
    with pytest.raises(UserError, match=r"plays matrix_game, but judges work on code_validation"):
        judge_run(tmp_path / "run", dry_run=True)
    assert [
        json.loads(line)["id"] for line in (tmp_path / "run" / "items" / "test.jsonl").read_text().splitlines()
    ] == list(range(6))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"protocol": {"name": "matrix_game"}},
            "protocol.name: got matrix_game, but kuhn_poker is played under kuhn_poker",
        ),
        ({"protocol": {"name": "nip"}}, "protocol.name: got nip, but matrix_game is played under"),
        (
            {"algorithm": {"name": "expert_iteration", "guess_replacement": 0.5}},
            "algorithm.guess_replacement: got 0.5, but kuhn_poker has no",
        ),
        (
            {"scenario": {"name": "code_validation"}},
            "scenario.name: got code_validation, but the protocol kuhn_poker is played in matrix_game",
        ),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    data = {"protocol": {"name": "kuhn_poker"}, "scenario": {"name": "matrix_game"}, "algorithm": {"name": "malt"}}
    with pytest.raises(UserError, match=said):
        check(config_from_dict({**data, **change}))


def test_an_evaluation_holds_the_exact_metrics_of_the_last_test(tmp_path: Path) -> None:
    changes = ["iterations=1", "algorithm.rollouts_per_iteration=4", "algorithm.group_size=2", "algorithm.num_epochs=1"]
    changes += ["algorithm.format_warmup=4", "algorithm.warmup_batch_size=4"]
    made = load_config(Path(__file__).resolve().parents[3] / "tune_configs" / "pg_kuhn_poker.yaml", changes)
    run_experiment(made, tmp_path / "run", quiet=True)
    row = RunFolder.open(tmp_path / "run").metrics()[-1]
    found = evaluate_run(tmp_path / "run", quiet=True)
    exact = {key: value for key, value in row.items() if key.startswith("eval/")}
    assert "eval/exploitability" in exact
    assert exact.items() <= found.items()
