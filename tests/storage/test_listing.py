"""The runs of a folder: which are found, and what is said of each."""

import hashlib
import json
from pathlib import Path

import pytest

from nip_ray.storage.folder import lock
from nip_ray.storage.listing import find_runs, list_runs, look_at

CONFIG = (
    "name: n\nseed: 1\niterations: 4\nscenario: {name: message_game}\nprotocol: {name: nip}\nalgorithm: {name: ppo}\n"
)
RUNNER = (
    "environment: {name: gymnasium, id: CartPole-v1}\nlearners: [{algorithm: {name: ppo}}]\ndriver: {timesteps: 4}\n"
)
TOO_LARGE = "config.yaml is not a config: more than 100 levels or 50,000 values"
BILLIONS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))

MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40))


def row(iteration: int, **figures: float) -> str:
    return json.dumps({"iteration": iteration, "version": 1, **figures}) + "\n"


def run(path: Path, config: str = CONFIG, rows: str = "", finished: bool = False) -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(config)
    (path / "metrics.jsonl").write_text(rows)
    if finished:
        digest = hashlib.sha256(config.encode()).hexdigest()
        (path / "run.json").write_text(
            json.dumps({"format": "nip_ray.run", "version": 1, "run_id": "n", "finished": digest})
        )
    return path


@pytest.mark.parametrize(
    "config, rows, finished, state, note",
    [
        (CONFIG, row(4), True, "ended", ""),
        (CONFIG, row(4), False, "interrupted", ""),
        (CONFIG, row(2) + '{"iteration": 3, "tr', False, "interrupted", ""),
        (CONFIG, row(2) + "{half}\n", False, "damaged", "the last line of metrics.jsonl is damaged"),
        (CONFIG, '{"iteration": 1, "tr', True, "damaged", "metrics.jsonl has no complete row"),
        ("a: [", row(4), False, "damaged", "config.yaml is not YAML"),
        ("- a", "", False, "damaged", "config.yaml holds no keys"),
        (BILLIONS, "", False, "damaged", TOO_LARGE),
        (MERGED, "", False, "damaged", TOO_LARGE),
        ("a: &a [*a]\n", "", False, "damaged", TOO_LARGE),
        ("[" * 900, "", False, "damaged", TOO_LARGE),
        (RUNNER, row(4), False, "ended", ""),
        (RUNNER, row(3), False, "interrupted", ""),
    ],
)
def test_the_state_of_a_run(tmp_path: Path, config: str, rows: str, finished: bool, state: str, note: str) -> None:
    path = run(tmp_path / "a", config, rows, finished)
    found = look_at(path, tmp_path)
    assert (found.state, found.note) == (state, note)
    with lock(path):
        assert look_at(path, tmp_path).state == "running"


def test_nesting_that_parsers_give_up_on_is_damage(tmp_path: Path) -> None:
    """Some versions of libyaml refuse it themselves, from 1,000 levels on."""
    assert look_at(run(tmp_path / "a", "[" * 100_000), tmp_path).state == "damaged"


def test_what_is_said_of_a_run(tmp_path: Path) -> None:
    """The headline is the last evaluation's, however many rows were written since; a torn last line is as good as
    none."""
    rows = row(1, **{"eval/verifier/accuracy": 0.6}) + row(2, **{"eval/verifier/accuracy": 0.7})
    rows += (
        "".join(row(i, **{f"train/{'x' * 200}": 1.0, "train/verifier/accuracy": 0.5}) for i in range(3, 900)) + '{"iter'
    )
    found = look_at(run(tmp_path / "a", rows=rows), tmp_path)
    assert (found.place, found.about, found.progress, found.metric, found.value) == (
        "a",
        "message_game, nip, ppo",
        "899/4",
        "eval/verifier/accuracy",
        0.7,
    )


def test_which_folders_are_runs(tmp_path: Path) -> None:
    """Those below others, a sweep's trials once; not what lies in a run, behind a link, hidden, or has a config of
    something else."""
    for place in ("a", "b/c", "sweep/trials/1", "sweep/best", "a/inner", ".hidden"):
        run(tmp_path / place)
    (tmp_path / "sweep/sweep.yaml").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.yaml").touch()
    assert [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)] == ["a", "b/c", "sweep/trials/1"]
    assert find_runs(tmp_path, depth=1) == [tmp_path / "a"]
    assert [listed.place for listed in list_runs(tmp_path / "a")] == ["a"]
    with lock(tmp_path / "sweep/trials/1"):
        assert list_runs(tmp_path)[0].place == "sweep/trials/1"
