"""Games without a verifier through the whole of a run: metrics, progress, transcripts, evaluation, report, resume."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from nip_ray.config.load import config_from_dict, load_config
from nip_ray.evaluation.report.findings import find
from nip_ray.evaluation.report.source import read_run
from nip_ray.progress import headline
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.matrix_games.scenario import PLAYERS
from nip_ray.settings.matrix_games import protocol_of
from nip_ray.storage.folder import RunFolder
from nip_ray.storage.identity import ExperimentResult
from tests.docs.metrics import documented_metrics
from tests.rllib.experiments import built

ROOT = Path(__file__).resolve().parents[3]


def small(game: str, **changes: Any) -> Any:
    """Four iterations of a game."""
    protocol: dict[str, Any] = {"name": protocol_of(game)}
    if game == "prisoners_dilemma":
        protocol["max_rounds"] = 4
    data = {
        "opponents": {"every": 1} if game == "kuhn_poker" else None,
        "iterations": 4,
        "protocol": protocol,
        "scenario": {"name": "matrix_game", "game": game, "agents": {"_default": {"initial_scale": 1.0}}},
        "algorithm": {"name": "ppo", "minibatch_size": 30, "num_epochs": 2, "lr": 0.02},
        "play": {"num_copies": 30},
        "evaluation": {"interval": 2, "num_transcripts": 4},
        "checkpoint": {"interval": 2},
        "runtime": {"num_threads": 1},
    }
    return config_from_dict({**data, **changes})


@pytest.fixture(scope="module", params=["kuhn_poker", "leduc_poker", "prisoners_dilemma"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ExperimentResult]:
    game = request.param
    return game, run_experiment(small(game), tmp_path_factory.mktemp("runs") / "run", quiet=True)


def rows_of(result: ExperimentResult) -> list[dict[str, Any]]:
    with RunFolder.open(result.run_dir) as folder:
        return folder.metrics()


def test_metrics_have_exact_figures_and_no_verdicts(finished: tuple[str, ExperimentResult]) -> None:
    _, result = finished
    rows = rows_of(result)
    for row in rows:
        assert {"train/player0/return", "train/episode_length", "learn/player1/entropy"} <= row.keys()
        assert not [key for key in row if "verifier" in key]
        assert ("eval/exploitability" in row) == (row["iteration"] % 2 == 0)
    assert {"eval/player0/value", "eval/player0/return", "eval_sampled/player1/return"} <= rows[-1].keys()
    assert rows[1]["eval/exploitability"] != rows[3]["eval/exploitability"]
    assert "exploitability " in headline(rows[-1])


def test_every_key_is_documented(finished: tuple[str, ExperimentResult]) -> None:
    text = documented_metrics(files=True)
    known = re.findall(r"^- `([^`]+)`[: ]", text, re.MULTILINE)
    known += [key.replace("eval/", "eval_sampled/") for key in known if key.endswith(("/return", "episode_length"))]
    shapes = [
        re.escape(key).replace("<agent>", r"player[01]").replace("<state>", "(start|CC|CD|DC|DD)") for key in known
    ]
    assert not {
        key for row in rows_of(finished[1]) for key in row if not any(re.fullmatch(shape, key) for shape in shapes)
    }


def test_the_report_speaks_of_the_game(finished: tuple[str, ExperimentResult]) -> None:
    _, result = finished
    figure = f"exploitability {rows_of(result)[-1]['eval/exploitability']:.3g}"
    sentence = find(read_run(result.run_dir)).sentence
    assert sentence.startswith("Computed exactly from the policies: player0/value")
    assert figure in sentence
    page = (
        (result.run_dir / "report.html")
        .read_text(encoding="utf-8")
        .replace("verdicts: [", "")
        .replace("verdict_gradient: ", "")
    )
    assert figure in page
    for word in ("verdict", "held-out evaluation was", "Soundness", "wrong</span>"):
        assert word not in page
    assert {"equilibrium", "values", "returns"} <= {path.stem for path in (result.run_dir / "curves").iterdir()}


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "metric", "most"),
    [
        ("kuhn_poker", "eval/exploitability", 0.015),
        ("leduc_poker", "eval/exploitability", 0.25),
        ("matching_pennies", "eval/distance_to_nash", 0.05),
    ],
)
def test_self_play_comes_to_rest_near_an_equilibrium(
    name: str, metric: str, most: float, seed: int, tmp_path: Path
) -> None:
    config = load_config(ROOT / "tune_configs" / f"{name}.yaml", [f"seed={seed}", "runtime.num_threads=1"])
    assert run_experiment(config, tmp_path / "run", quiet=True).metrics[metric] <= most


def exploitabilities(name: str, *settings: str) -> tuple[list[float], float]:
    """Of the current policies after each iteration, and of their mean over all iterations but the first tenth."""
    config: Any = load_config(ROOT / "tune_configs" / f"{name}.yaml", [*settings])
    algorithm = built(config)
    game: Any = algorithm.scenario
    last, mean = [], [torch.zeros(()), torch.zeros(())]
    for iteration in range(config.iterations):
        algorithm.train()
        networks = algorithm.networks()
        tables = [game.policy_table(agent, networks[agent]) for agent in PLAYERS]
        last.append(game.game.figures((tables[0], tables[1]))["exploitability"])
        if iteration >= config.iterations // 10:
            mean = [total + table for total, table in zip(mean, tables, strict=True)]
    algorithm.stop()
    count = config.iterations - config.iterations // 10
    return last, game.game.figures((mean[0] / count, mean[1] / count))["exploitability"]


@pytest.mark.learning
@pytest.mark.parametrize("game", ["matching_pennies", "rock_paper_scissors"])
def test_with_the_past_and_entropy_players_stay_near_the_equilibrium(game: str) -> None:
    """For ten times as long as it took to come there; without both they run in circles."""
    last, mean = exploitabilities("rock_paper_scissors", f"scenario.game={game}")
    assert max(last[len(last) // 10 :]) <= 0.05
    assert mean <= 0.05
    last, _ = exploitabilities(
        "rock_paper_scissors", f"scenario.game={game}", "algorithm.entropy_coefficient=0", "opponents=null"
    )
    assert max(last[len(last) // 2 :]) > 0.3


@pytest.mark.learning
def test_independent_learners_end_in_the_dominant_row(tmp_path: Path) -> None:
    config = load_config(ROOT / "tune_configs" / "bimatrix.yaml", ["runtime.num_threads=1"])
    metrics = run_experiment(config, tmp_path / "run", quiet=True).metrics
    assert (metrics["eval/player0/value"], metrics["eval/player1/value"]) == pytest.approx((2.0, 1.0), abs=0.05)
