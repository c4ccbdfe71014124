"""What the page says of attacks, the worst case and cross-play: as evaluation.json has it, and plainly where it has
nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nip_ray.evaluation.intervals import proportion
from nip_ray.evaluation.report import report_page, write_report
from nip_ray.evaluation.report.contents import page_contents
from nip_ray.evaluation.report.findings import find
from nip_ray.evaluation.report.source import read_run
from nip_ray.evaluation.report.trust import examined_words, heat_map, trust
from nip_ray.evaluation.selective import selective


def record(right: int, n: int = 100) -> dict[str, Any]:
    return proportion(right, n).record()


def attacker(name: str, kind: str, right: int, chosen: bool = False, **more: Any) -> dict[str, Any]:
    shares = {"held_out": record(right), "fooled": record(100 - right)}
    return {"name": name, "kind": kind, **shares, "chosen": chosen, "mode": "greedy", **more}


def run_folder(path: Path, **parts: Any) -> Path:
    path.mkdir()
    row = {
        "iteration": 1,
        "version": 1,
        "train/verifier/return": 0.0,
        "train/verifier/accuracy": 0.5,
        "train/prover/return": 0.0,
    }
    (path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    table = {"verifier/accuracy": record(70), "verifier/soundness": record(60), "verifier/completeness": record(80)}
    document = {"format": "nip_ray.evaluation", "version": 1, "iteration": 1, "split": "test", "greedy": table, **parts}
    (path / "evaluation.json").write_text(json.dumps(document))
    return path


def attacked(right: int = 61, **more: Any) -> dict[str, Any]:
    fresh = attacker("fresh/size=2/seed=0", "fresh", right, chosen=True, size=2, seed=0)
    table = [attacker("own", "own", 80), fresh, attacker("random", "random", 95)]
    return {
        "soundness_under_attack": {**record(right), "attacker": "fresh/size=2/seed=0"},
        "attack": {"soundness": {"attackers": table, "any_attacker": record(55), "every_message": None, **more}},
    }


def interval(right: int, n: int = 100) -> str:
    share = proportion(right, n)
    return f"(95\u00a0% interval {100 * share.lower:.1f} to {100 * share.upper:.1f})"


def test_the_strongest_attacker_comes_first_in_words_and_into_the_headline(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", **attacked())
    source = read_run(folder)
    side = trust(source, True)["sides"]["soundness"]
    words = ["trained from scratch, twice the width, seed 0", "this run's prover as it is", "random messages"]
    assert [row["name"] for row in side["rows"]] == words
    assert (side["error"][0], side["n"], side["rows"][0]["at"]["estimate"]) == ("39.0\u00a0%", "100", 39.0)
    findings = find(source)
    who = "gainst the attacker (of 3) that did best on training instances,"
    assert findings.sentence.endswith(f". A{who} 39.0\u00a0% of false claims are accepted {interval(39)}.")
    assert any(f"a{who} it is 39.0\u00a0% {interval(39)}" in claim for claim in findings.not_shown)
    assert any("not tried" in claim for claim in findings.not_shown)
    assert "fresh/size" not in report_page(folder)[0]


@pytest.mark.parametrize(
    ("right", "most", "shown"), [(99, 0.06, True), (99, 0.05, False), (99, None, None), (60, 0.05, False)]
)
def test_soundness_is_shown_up_to_the_threshold_of_the_config(
    tmp_path: Path, right: int, most: float | None, shown: bool | None
) -> None:
    folder = run_folder(tmp_path / "run", **attacked(right))
    (folder / "config.yaml").write_text(json.dumps({"evaluation": {"attack": {"max_soundness_error": most}}}))
    findings = find(read_run(folder))
    assert any("Soundness error at most" in claim for claim in findings.shown) is (shown is True)
    assert any("Soundness error at most" in claim for claim in findings.not_shown) is (shown is False)
    assert findings.tone == ("plain" if shown is False else "good")
    tiles = page_contents(read_run(folder), findings)["tiles"]
    assert [tile[1] for tile in tiles] == ["70.0\u00a0%", f"{100 - right}.0\u00a0%", "80.0\u00a0%"]


def test_what_no_message_can_do_worse_leads_where_every_message_was_tried(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", **attacked(every_message=record(30)), soundness_error=record(70))
    findings = find(read_run(folder))
    assert (
        f"Over all possible prover messages, 70.0\u00a0% of false claims are accepted {interval(70)}."
        in findings.sentence
    )
    assert not any("not tried" in claim for claim in findings.not_shown), "there are no others"
    assert "Soundness error under attack: 70.0\u00a0%" in report_page(folder)[0]
    one_side = run_folder(tmp_path / "debate", **attacked(every_message=record(30), agents=["liar"]))
    assert "Over all possible messages of liar, 70.0" in find(read_run(one_side)).sentence, (
        "another prover plays as it was trained"
    )


def test_an_attack_on_true_claims_is_told_beside_that_on_false_ones(tmp_path: Path) -> None:
    parts = attacked(99)
    parts["attack"]["completeness"] = {
        "attackers": [attacker("own", "own", 40, chosen=True)],
        "every_message": record(30),
    }
    folder = run_folder(tmp_path / "run", **parts)
    (folder / "config.yaml").write_text(json.dumps({"protocol": {"name": "debate"}}))
    source = read_run(folder)
    findings = find(source)
    assert (
        f"When a prover attacks the true claims, 70.0\u00a0% of them are not accepted {interval(70)}."
        in findings.sentence
    )
    assert any(
        "at a completeness of 80.0\u00a0%, and of 30.0\u00a0% under attack" in claim
        for claim in findings.shown + findings.not_shown
    )
    assert page_contents(source, findings)["tiles"][-1][1] == "70.0\u00a0%"


def test_undecided_verdicts_lose_true_claims_and_fool_about_no_false_one(tmp_path: Path) -> None:
    """Without a bound over all messages: completeness counts what is not accepted, soundness what is accepted."""
    quiet = {"held_out": record(65), "fooled": record(2), "undecided": record(33)}
    loud = {"held_out": record(70), "fooled": record(10), "undecided": record(20)}
    soundness = [attacker("own", "own", 0, chosen=True) | loud, attacker("random", "random", 0) | quiet]
    completeness = attacker("own", "own", 60, chosen=True) | {"fooled": record(25), "undecided": record(15)}
    parts: dict[str, Any] = {
        "soundness_error": record(10),
        "soundness_under_attack": record(70),
        "completeness_under_attack": record(60),
        "attack": {"soundness": {"attackers": soundness}, "completeness": {"attackers": [completeness]}},
    }
    folder = run_folder(tmp_path / "run", **parts)
    (folder / "config.yaml").write_text(json.dumps({"protocol": {"name": "debate"}}))
    findings = find(read_run(folder))
    claims = "\n".join([*findings.shown, *findings.not_shown])
    assert "attacks the true claims, 40.0\u00a0% of them are not accepted" in findings.sentence
    assert "and of 60.0\u00a0% under attack" in claims
    assert "another did better" not in claims, "random messages fool it less often"
    soundness[1] |= {"held_out": record(75), "fooled": record(25), "undecided": record(0)}
    (folder / "evaluation.json").write_text(json.dumps(json.loads((folder / "evaluation.json").read_text()) | parts))
    findings = find(read_run(folder))
    better = "another did better (random messages): 25.0\u00a0%."
    assert better in "\n".join([*findings.shown, *findings.not_shown]), "it leaves less undecided, and is believed more"


def test_soundness_over_attack_budget_is_drawn_with_its_bound(tmp_path: Path) -> None:
    stops = [{"iterations": 25, "held_out": record(90)}, {"iterations": 50, "held_out": record(60)}, "strange"]
    tried = [{"tries": 1, "held_out": record(80)}, {"tries": 4, "held_out": record(50)}]
    table = [
        attacker("fresh/size=1/seed=0", "fresh", 60, chosen=True, budget=stops),
        attacker("search", "search", 50, search=tried),
    ]
    folder = run_folder(tmp_path / "run", attack={"soundness": {"attackers": table, "every_message": record(55)}})
    drawn = trust(read_run(folder), True)["sides"]["soundness"]["budgets"]
    assert [(one["lines"], one["bound"], one["longest"]) for one in drawn] == [
        ([[(50.0, 90.0), (100.0, 60.0)]], 55.0, "50"),
        ([[(25.0, 80.0), (100.0, 50.0)]], 55.0, "4"),
    ], "down from the top: what is judged wrongly, as in the table above it"
    page = report_page(folder)[0]
    assert 'points="50.0,90.0 100.0,60.0 "' in page
    assert 'y1="55.0" y2="55.0"' in page
    assert "wrong or undecided, 0 to 100 %" in page
    assert "rightly judged, 0 to 100 %" not in page


def test_a_refusal_to_help_is_no_headline_and_says_what_it_means(tmp_path: Path) -> None:
    found = {"attackers": [attacker("own", "own", 3, chosen=True)], "every_message": None}
    folder = run_folder(tmp_path / "run", refusal=record(3), attack={"refusal": found})
    findings, page = find(read_run(folder)), report_page(folder)[0]
    assert not any("ompleteness" in words for words in (findings.sentence, *findings.shown, *findings.not_shown))
    assert "a prover can always fail to prove" in page.partition("If the prover refuses to help")[2]


def test_instances_of_training_among_those_evaluated_are_left_out_of_the_headline(tmp_path: Path) -> None:
    unseen = {
        "greedy": {"verifier/accuracy": record(40, 80)},
        "solo_baseline": record(48, 80),
        "message_value": {
            "heard": record(40, 80),
            "silenced": {"accuracy": record(44, 80), "lost": {"estimate": -0.05}},
        },
        "worst_case": {"verifier/accuracy": record(4, 80)},
    }
    whole = {
        "solo_baseline": record(33),
        "message_value": {"heard": record(99)},
        "worst_case": {"verifier/accuracy": record(98)},
    }
    folder = run_folder(tmp_path / "run", held_out=False, overlap=20, unseen=unseen, **whole, **attacked())
    source, page = read_run(folder), report_page(folder)[0]
    findings = find(source)
    failed, _, rest = findings.sentence.partition(". ")
    assert failed.startswith("This run did not learn: its verifier is not shown to be above chance (50.0\u00a0%); try ")
    assert rest.startswith(
        "On 80 held-out instances (and 20 that it was trained with left out) the verifier decided 50.0\u00a0% correctly"
    )
    assert "the 60.0\u00a0% measured without a prover" in findings.sentence
    assert any("silenced, it loses -5.0 points" in words for words in findings.not_shown)
    assert "55.0\u00a0%" in page
    assert "99.0\u00a0%" not in page
    assert "98.0\u00a0%" not in page
    assert "Of 100 held-out instances with label reject" in page
    assert examined_words(source) == "evaluated", "the rows of a run have all instances"


def test_a_verifier_is_held_against_what_was_measured_without_a_prover_and_against_silence(tmp_path: Path) -> None:
    silenced = {"accuracy": record(50), "lost": {"estimate": 0.2, "lower": 0.1, "upper": 0.3, "n": 100}}
    value = {"heard": record(70), "silenced": silenced, "without": {"critic": silenced, "odd": 3}}
    parts = {"solo_baseline": record(48), "message_value": value}
    rows = trust(read_run(run_folder(tmp_path / "critic", **parts)), True)["messages"]
    assert [row[0] for row in rows] == ["as they were sent", "silenced", "critic alone silenced"]
    shown = find(read_run(run_folder(tmp_path / "run", **parts))).shown
    assert "It decides better than what was measured without a prover." in shown
    assert "Messages make it decide better: silenced, it loses 20.0 points (95\u00a0% interval 10.0 to 30.0)." in shown
    for name, found in (("worse", {**parts, "solo_baseline": record(90)}), ("unknown", {"message_value": value})):
        findings = find(read_run(run_folder(tmp_path / name, **found)))
        said = "\n".join([*findings.shown, *findings.not_shown])
        assert "make it decide better" not in said, "it may only have learned to need them"
        assert "It relies on messages, whether or not they help: silenced, it loses 20.0 points" in "\n".join(
            findings.shown
        )
    not_shown = find(read_run(run_folder(tmp_path / "bare"))).not_shown
    assert "That it decides better than without a prover: no such baseline was computed." in not_shown


def test_instances_of_training_are_not_called_held_out(tmp_path: Path) -> None:
    told = {}
    for held_out in (True, False):
        folder = run_folder(tmp_path / str(held_out), **attacked(), held_out=held_out)
        findings = find(read_run(folder))
        told[held_out] = "\n".join([findings.sentence, *findings.shown, *findings.not_shown, report_page(folder)[0]])
    claims = ("100 held-out instances", "not trained with.", "That attacker was chosen on other instances than these.")
    assert all(claim in told[True] and claim not in told[False] for claim in claims)
    assert "On 100 instances, on which it was trained too, the verifier decided" in told[False]
    assert "Anything about instances that it was not trained with: none was evaluated." in told[False]


def test_risk_against_coverage_is_drawn_with_its_band_and_figures(tmp_path: Path) -> None:
    found = selective(np.linspace(0.55, 0.95, 80), np.arange(80) % 8 != 0, 100)
    folder = run_folder(tmp_path / "run", calibration={"selective": found})
    chart = trust(read_run(folder), True)["selective"]
    assert chart["curve"][-1][:2] == [80.0, 75.0], "an eighth is wrong, on an axis that ends at 50 %"
    assert all(low >= at >= high for _, at, low, high in chart["curve"])
    assert [label for label, _ in chart["figures"]] == ["Area under the curve", "Coverage"] + [
        f"Precision at coverage {share}" for share in (0.8, 0.9)
    ]
    assert [cell[0] for _, cell in chart["figures"][1:]] == ["80.0\u00a0%", "87.5\u00a0%", "not reached"]
    assert "<polygon" in report_page(folder)[0]


@pytest.mark.parametrize(
    "parts",
    [
        {
            "attack": 5,
            "soundness_under_attack": "x",
            "worst_case": [],
            "calibration": {"bins": 3},
            "message_value": {"heard": 1},
        },
        {
            "attack": {
                "soundness": {"attackers": [1, {"held_out": {}}, {"name": {}, "kind": [], "held_out": record(1)}]}
            }
        },
        {"calibration": {"selective": {"curve": [7, {"coverage": "x", "risk": 0.1}], "area": 3, "precision": []}}},
        {"calibration": {"bins": [{"confidence": "x"}, 7]}, "worst_case": {"verifier/accuracy": {"estimate": None}}},
    ],
)
def test_strange_parts_are_left_out(tmp_path: Path, parts: dict[str, Any]) -> None:
    assert write_report(run_folder(tmp_path / "run", **parts)).stat().st_size > 1000


def test_the_heat_map_has_verifiers_down_and_provers_across() -> None:
    cells = [
        {"verifier": v, "prover": p, "accuracy": record(90 if v == p else 50)}
        for v in ("a", "b")
        for p in ("a", "b", "c")
    ]
    drawn = heat_map({"matrix": cells})
    assert (drawn["columns"], [row["name"] for row in drawn["rows"]]) == (["a", "b", "c"], ["a", "b"])
    assert [[cell["step"] for cell in row["cells"]] for row in drawn["rows"]] == [[9, 5, 5], [5, 9, 5]]
    assert [cell["own"] for cell in drawn["rows"][0]["cells"]] == [True, False, False]
