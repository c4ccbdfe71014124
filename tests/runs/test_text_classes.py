"""Language models that name one of three verdicts: prompts, scripted dialogues, a run with its attack, what is
refused."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.load import config_from_dict
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.play.dialogue import Chat, Dialogue, Parsed, dialogue_from_record, dialogue_record
from nip_ray.play.dialogues import Answer, play_dialogue
from nip_ray.play.transcripts import transcript_record
from nip_ray.protocols import build
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.language_conformance import check_language_scenario
from nip_ray.text.training.metrics import dialogue_metrics
from nip_ray.text.training.metrics import dialogue_record as figures

pytestmark = pytest.mark.usefixtures("no_plugins")

PLUGIN = str(Path(__file__).resolve().parents[1] / "text" / "three_boxes.py")
NAMES = ["oak", "ash", "elm"]
CONSULTANCY: dict[str, Any] = dict(
    name="consultancy", one_prover=True, verdicts=NAMES, verifier_first=False, max_rounds=4
)


def config(protocol: dict[str, Any], **changes: Any) -> Any:
    data = {
        "iterations": 1,
        "plugins": [PLUGIN],
        "protocol": protocol,
        "scenario": {"name": "boxes", "agents": {"_default": {"provider": "nobody", "model": "none"}}},
        "algorithm": {"name": "expert_iteration", "rollouts_per_iteration": 12, "fine_tuning": {"min_examples": 1}},
        "providers": {"nobody": {"name": "dummy"}},
    }
    return config_from_dict({**data, **changes})


@pytest.mark.parametrize("name", ["consultancy", "debate", "helpful_sneaky", "solo_verifier"])
def test_a_scenario_keeps_its_promises(name: str) -> None:
    params = dict(one_prover=True) if name == "consultancy" else {}
    check_language_scenario(config(CONSULTANCY).scenario, build(name, verdicts=tuple(NAMES), **params))


def test_a_scripted_dialogue() -> None:
    """Round by round: what is shown names the verdicts, the verifier asks, is answered and decides; who is paid, and
    what is kept of it."""
    from nip_ray.scenarios.language import language_kind

    kind = language_kind(config(CONSULTANCY).scenario)
    scenario = kind.build(build(**CONSULTANCY), config(CONSULTANCY).scenario)
    (item, *_) = [item for item in kind.items(scenario.settings, 0)["train"] if item.y == 2]
    shown: list[Chat] = []

    def script(verdict: str) -> Any:
        replies = {
            ("prover", 0): "oak!",
            ("verifier", 1): "ask",
            ("prover", 2): "oak, really",
            ("verifier", 3): verdict,
        }

        async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: Any) -> Answer:
            shown.append(chat)
            return Answer(replies[agent, len(dialogue.rounds)])

        return ask

    fooled, right, open_ = (
        asyncio.run(play_dialogue(scenario, item, 0, script(said))) for said in ("oak", "elm", "ask")
    )
    assert "boxes oak, ash, elm" in shown[1][0]["content"]
    assert "It is in elm. Argue for oak." in shown[0][0]["content"]
    assert [(one.verdict, one.confidence) for one in (fooled, right, open_)] == [(0, 1.0), (2, 1.0), (3, None)]
    assert [(one.total("prover"), one.total("verifier")) for one in (fooled, right, open_)] == [
        (1, -1),
        (0, 1),
        (0, -1),
    ]
    for one, words in ((fooled, ("oak", False)), (right, ("elm", True)), (open_, ("undecided", False))):
        assert dialogue_from_record(json.loads(json.dumps(dialogue_record(scenario, one))), item) == one
        found = transcript_record(scenario, one)
        assert (found["verdict"], found["correct"], found["role"]) == (*words, "oak")
    found = dialogue_metrics([fooled, right, open_], scenario.protocol)
    assert found["verifier/accuracy"] == found["verifier/soundness"] == pytest.approx(1 / 3)
    assert found["verifier/soundness/oak"] == pytest.approx(1 / 3), "undecided is not sound"
    assert "verifier/completeness" not in found, "nobody argued for the right one"
    assert figures([fooled, right, open_], scenario.protocol)["verifier/confusion/elm=oak"][
        "estimate"
    ] == pytest.approx(1 / 3)


def test_a_run_and_its_attack(tmp_path: Path) -> None:
    run_experiment(config(dict(name="debate", verdicts=NAMES)), tmp_path / "run", quiet=True)
    found = evaluate_run(tmp_path / "run", attacked=True, settings=["evaluation.attack.text_iterations=2"])
    document = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert document["sampled"]["verifier/accuracy"]["n"] == 12
    fooled = [found[f"soundness_error/{name}"] for name in NAMES]
    assert [record["n"] for record in fooled] == [8, 8, 8]
    assert found["soundness_error"]["n"] == 12
    assert found["soundness_error"]["estimate"] >= max(record["estimate"] for record in fooled) * 8 / 12
    assert found["attack"]["soundness/ash"]["agents"] == ["prover1"]
    assert "Confusion matrix" in (tmp_path / "run" / "report.html").read_text()


def test_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"protocol.verdicts: no instance of boxes has the label of yew"):
        run_experiment(config({**CONSULTANCY, "verdicts": [*NAMES, "yew"]}), tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match="'boxes' has the labels 2, but 'nip' has two verdicts"):
        run_experiment(config(dict(name="nip")), tmp_path / "two", quiet=True)
    code = config(
        dict(name="debate", verdicts=NAMES),
        scenario={"name": "code_validation", "agents": {"_default": {"provider": "nobody"}}},
    )
    with pytest.raises(UserError, match=r"protocol.verdicts: got 3, but code_validation has two labels"):
        check(code)
    scenario_class = type(_built())
    monkeypatch.setattr(scenario_class, "parse", lambda *_: Parsed(decision=1, confidence=0.7))
    with pytest.raises(UserError, match=r"confidence 0\.7, which is for two verdicts"):
        check_language_scenario(config(CONSULTANCY).scenario, build(**CONSULTANCY))


def _built() -> Any:
    from nip_ray.scenarios.language import language_kind

    made = config(CONSULTANCY).scenario
    return language_kind(made).build(build(**CONSULTANCY), made)
