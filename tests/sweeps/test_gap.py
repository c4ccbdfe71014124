"""The heat map of a sweep over two settings: who stands where, what a cell is the mean of, and what it says of
attacks."""

import json
from pathlib import Path
from typing import Any

from nip_ray.evaluation.intervals import proportion
from nip_ray.sweeps.gap import gap_map
from nip_ray.sweeps.page import write_sweep_page
from nip_ray.sweeps.spec import SweepSpec, draw_settings, parse_sweep
from nip_ray.sweeps.summary import TrialRecord, summarise

DEEPER = {"prover": {"num_gnn_layers": {"grid": [5, 1]}}, "verifier": {"num_gnn_layers": {"grid": [2, 10, 3]}}}


def spec_of(agents: dict[str, Any] = DEEPER) -> SweepSpec:
    scenario = {"name": "graph_isomorphism", "agents": agents}
    return parse_sweep({"name": "gap", "protocol": {"name": "nip"}, "scenario": scenario, "sweep": {"seeds": [0, 1]}})


def trials_of(folder: Path, spec: SweepSpec, attacked: bool = True) -> list[TrialRecord]:
    """The accuracy is 50 + 3 verifier layers + the seed of 100, and false claims are accepted as often as the prover
    has layers."""
    made = []
    for number, values in enumerate(draw_settings(spec)):
        for seed in (0, 1):
            verifier, prover = (values[f"scenario.agents.{agent}.num_gnn_layers"] for agent in ("verifier", "prover"))
            table = {
                "verifier/accuracy": proportion(50 + 3 * verifier + seed, 100).record(),
                "verifier/soundness": proportion(9, 10).record(),
            }
            document: dict[str, Any] = {
                "greedy": table,
                **({"soundness_error": proportion(prover, 100).record()} if attacked else {}),
            }
            run_dir = folder / "trials" / f"{number}_{seed}"
            run_dir.mkdir(parents=True)
            (run_dir / "evaluation.json").write_text(json.dumps(document))
            made.append(
                TrialRecord(
                    run_dir.name, values, seed, "done", None if number else run_dir, 10, {"eval/verifier/accuracy": 0.5}
                )
            )
    return made


def test_verifiers_stand_down_and_cells_are_means_over_seeds(tmp_path: Path) -> None:
    spec = spec_of()
    trials = trials_of(tmp_path, spec)
    summary = summarise(spec.settings, trials)
    found = gap_map(tmp_path, spec, summary)
    assert found is not None
    assert (found["roles"], found["columns"]) == (("verifier.num_gnn_layers", "prover.num_gnn_layers"), ["1", "5"])
    assert [row["name"] for row in found["rows"]] == ["2", "3", "10"], "numbers by size"
    first, last = found["rows"][0]["cells"]
    assert (first["text"], first["step"], first["interval"]) == ("56.5\u00a0%", 6, "56, 57"), "each seed below the mean"
    assert first["also"] == "soundness under attack 99.0\u00a0% 99, 99"
    assert last["also"].startswith("soundness under attack 95.0\u00a0%")
    text = write_sweep_page(tmp_path, spec, summary, trials).read_text(encoding="utf-8")
    assert "soundness under attack 95.0" in text
    assert "No attack was made" not in text


def test_without_an_attack_it_says_so_and_whose_soundness_it_is(tmp_path: Path) -> None:
    spec = spec_of()
    trials = trials_of(tmp_path, spec, attacked=False)
    # damaged: the other seed counts alone
    (tmp_path / "trials" / trials[0].trial_id / "evaluation.json").write_text("{")
    found = gap_map(tmp_path, spec, summarise(spec.settings, trials))
    assert found is not None
    assert "No attack was made" in found["caption"]
    cell = next(row for row in found["rows"] if row["name"] == "2")["cells"][1]
    assert cell["text"] == "57.0\u00a0%"
    assert cell["interval"] == "46.7 to 66.9", "its own, exact"
    assert cell["also"].startswith("soundness against its own provers 90.0")


def test_a_cell_is_attacked_where_all_its_runs_are(tmp_path: Path) -> None:
    spec = spec_of()
    trials = trials_of(tmp_path, spec)
    path = tmp_path / "trials" / trials[0].trial_id / "evaluation.json"
    path.write_text(
        json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "soundness_error"})
    )
    found = gap_map(tmp_path, spec, summarise(spec.settings, trials))
    assert found is not None
    told = [cell["also"].partition(" 9")[0] for cell in found["rows"][0]["cells"]]
    assert sorted(told) == ["soundness against its own provers", "soundness under attack"]


def test_of_other_sweeps_there_is_none(tmp_path: Path) -> None:
    for agents in (
        {"verifier": {"num_gnn_layers": {"grid": [1, 2]}}},
        {**DEEPER, "verifier": {"d_gnn": {"randint": [1, 9]}}},
    ):
        spec = spec_of(agents)
        assert gap_map(tmp_path, spec, summarise(spec.settings, [])) is None
    assert gap_map(tmp_path, spec_of(), summarise(spec_of().settings, [])) is None, "nothing was evaluated"
