"""Policy gradient of language models from end to end, with models of a few thousand weights: resume, groups, what ends
a run."""

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_from_dict, config_to_yaml, load_config
from nip_ray.errors import TrainingError, UserError
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.evaluation.verbs.over_time import cross_play_checkpoints
from nip_ray.evaluation.verbs.rerun import rerun_tests
from nip_ray.learning.token_losses import not_finite, turn_advantages
from nip_ray.learning.token_rows import Turn as TokenTurn
from nip_ray.play.dialogue import Dialogue, dialogue_record
from nip_ray.protocols import build
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.scenarios.state_tracking.language import StateTrackingInWords
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.folder import RunFolder, read_lines
from nip_ray.text.costs.prices import BudgetExhausted
from nip_ray.text.costs.token_bills import Use
from nip_ray.text.parts import load_state, prepare, save_state
from nip_ray.text.training import trainer as training
from nip_ray.text.training import warm_up
from nip_ray.text.training.credit import credit
from nip_ray.text.training.model_play import Reply
from nip_ray.text.training.past import snapshot_weights
from nip_ray.text.training.playing import Playing
from nip_ray.text.training.policy_gradient import PolicyGradientTrainer
from nip_ray.text.training.trainer import begin, new_state
from tests.text.provider import ROOT

Make = Callable[..., TextExperimentConfig]
PAST = {"latest": 0.5, "every": 1, "size": 2, "sampling": "prioritised", "agents": ["verifier", "prover1"]}


@pytest.fixture
def make() -> Make:
    def made(opponents: Any = None, **algorithm: Any) -> TextExperimentConfig:
        rule = {
            "rollouts_per_iteration": 16,
            "group_size": 4,
            "warmup_steps": 2,
            "warmup_batch_size": 8,
            "evaluate_every": 2,
        }
        config = config_from_dict(
            {
                "name": "tiny",
                "iterations": 4,
                "opponents": opponents,
                "protocol": {"name": "bisection", "max_rounds": 5},
                "scenario": {
                    "name": "state_tracking",
                    "length": 4,
                    "num_train": 60,
                    "num_test": 4,
                    "agents": {"_default": {"model": "words", "max_tokens": 2, "max_invalid_replies": 1}},
                },
                "algorithm": {
                    "name": "policy_gradient",
                    **rule,
                    "checkpoint_every": 2,
                    "learning_rate": 1e-3,
                    **algorithm,
                },
                "providers": {
                    "local": {
                        "name": "local",
                        "method": "full",
                        "max_batch_size": 64,
                        "word_model": {"hidden_size": 32, "num_layers": 1},
                    }
                },
            }
        )
        assert isinstance(config, TextExperimentConfig)
        return config

    return made


def rows(path: Path) -> list[dict[str, Any]]:
    """Metrics without what depends on the clock."""
    with RunFolder.open(path) as folder:
        return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in folder.metrics()]


def weights(path: Path) -> dict[str, bytes]:
    with RunFolder.open(path) as folder:
        models = load_state(folder).models()
    return {
        group: (path / "local" / "models" / name / "model.safetensors").read_bytes() for group, name in models.items()
    }


@pytest.mark.parametrize(
    "rule",
    [
        {
            "advantage": "role",
            "anneal_learning_rate": True,
            "final_kl_coefficient": 0.0,
            "num_epochs": 2,
            "minibatch_size": 20,
            "kl_coefficient": 0.1,
            "kl_refresh": 2,
            "average_weights": 0.5,
        },
        {
            "curriculum": [
                {
                    "until_iteration": 2,
                    "changes": ["scenario.length=2", "scenario.num_train=30", "protocol.max_rounds=3"],
                }
            ]
        },
        pytest.param(
            {
                "advantage": "leave_one_out",
                "agents": {"verifier": {"from_iteration": 3}},
                "warmup_steps": 0,
                "format_warmup": 5,
            },
            marks=pytest.mark.slow,
        ),
        {"opponents": PAST, "keep_checkpoints": 2, "checkpoint_every": 1},
    ],
    ids=["role", "curriculum", "leave_one_out", "past"],
)
def test_killed_and_resumed_is_undisturbed(make: Make, tmp_path: Path, rule: dict[str, Any]) -> None:
    """With the last checkpoint an iteration back, and a row of metrics that is played again."""
    config = make(**rule)
    run_experiment(config, tmp_path / "whole", quiet=True)
    state = new_state(config)
    with RunFolder.create(tmp_path / "killed", config_to_yaml(config)) as folder:
        save_state(folder, state)
        trainer = begin(config, folder, prepare(config), state)
        for _ in range(4):  # the warm-up and three iterations
            trainer.run_stage()
    assert len(rows(tmp_path / "killed")) == 4
    resume_experiment(tmp_path / "killed", quiet=True)
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    if "opponents" in rule:  # of the pool's snapshots 1 and 4 are left, and checkpoint 3 names 3
        assert sorted(path.name for path in (tmp_path / "killed" / "past").iterdir()) == ["000001", "000003", "000004"]
    learned = [row for row in rows(tmp_path / "whole") if "learn/verifier/loss" in row]
    assert [row["iteration"] for row in learned] == ([3, 4] if "agents" in rule else [1, 2, 3, 4])
    assert all(row["learn/prover0/logprob_difference"] < 1e-5 for row in rows(tmp_path / "whole")[1:])
    tested = {"eval_sampled/verifier/accuracy", "eval/worst_case/soundness"}
    assert {*tested, "learn/verifier/warmup_loss"} <= rows(tmp_path / "whole")[0].keys()
    assert {*tested, "train/prover0/invalid_share"} <= rows(tmp_path / "whole")[4].keys()


def test_who_meets_the_past_learns_alone(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past selves say what the models say that are given their weights; no turn of theirs is learned from; a group has
    one opponent."""
    learned: list[int] = []
    steps = PolicyGradientTrainer._steps
    monkeypatch.setattr(
        PolicyGradientTrainer,
        "_steps",
        lambda self, group, turns, *rest: learned.append(len(turns)) or steps(self, group, turns, *rest),
    )
    config, run = make(PAST, keep_checkpoints=None, checkpoint_every=1), tmp_path / "run"
    run_experiment(config, run, quiet=True)
    lines = read_lines(run / "rollouts" / "000004.jsonl")
    (one, other), row = ([lines[place]["past"]["prover0"] for place in (8, 12)], rows(run)[-1])
    past = [{}] * 8 + [{"prover0": one, "verifier": one}] * 4 + [{"prover0": other, "prover1": other}] * 4
    assert [line.get("past", {}) for line in lines] == past
    assert (row["opponents/prover1/met"], row["opponents/verifier/met"], row["opponents/snapshots"]) == (
        f"{one}:4",
        f"{other}:4",
        2,
    )
    speakers = [
        turn["agent"]
        for line, own in zip(lines, past, strict=True)
        for said in line["dialogue"]["rounds"]
        for turn in said
        if turn["agent"] not in own
    ]
    assert learned[-3:] == [speakers.count(agent) for agent in ("prover0", "prover1", "verifier")]
    with RunFolder.open(run, write=True) as folder:
        trainer = begin(config, folder, prepare(config), load_state(folder))
        assert isinstance(trainer, PolicyGradientTrainer)
        for group, model in trainer.models.items():
            kept = load_checkpoint(run / "checkpoints", 3).tensors[group]["weights"]
            model.take(kept if group == "prover1" else snapshot_weights(run, one, group))
        tasks = [replace(task, past={}) for task in trainer._train_tasks(3)[1][8:12]]
        again = trainer._playing.now(trainer.scenario, tasks, "train", 3).dialogues
        assert [dialogue_record(trainer.scenario, dialogue) for dialogue in again] == [
            line["dialogue"] for line in lines[8:12]
        ]
    (run / "past" / f"{one:06d}" / "prover0.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"prover0\.safetensors cannot be read"):
        snapshot_weights(run, one, "prover0")


def test_turns_are_compared_with_those_that_met_the_same_opponents() -> None:
    """Of one item in one iteration twice: among the current agents, and against a snapshot that beats everyone."""
    paid, item = (1.0, 0.0, -4.0, -5.0), SimpleNamespace(id=7, y=0)
    dialogues = [Dialogue(item, 0, ((),), ({"verifier": own},), ended=True) for own in paid]
    replies = [Reply(place, "verifier", 0, TokenTurn([1], [2]), 20 if place > 1 else None) for place in range(4)]
    found = credit(turn_advantages, PolicyGradientSettings(), build("nip"), dialogues, replies, {})
    assert [turn.advantage for _, turn in found.replies] == [0.5, -0.5, 0.5, -0.5]


def test_prompts_that_lose_their_middle_are_told_of_and_end_a_run_where_they_are_most(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, chat = make(), [{"role": "user", "content": "?"}]
    with RunFolder.create(tmp_path / "run", config_to_yaml(config)) as folder:
        trainer = begin(config, folder, prepare(config), new_state(config))
        assert isinstance(trainer, PolicyGradientTrainer)
        model = trainer.models["verifier"]
        assert isinstance(model, PolicyModel)
        whole = len(model.chat.prompt_before(chat, 2))
        assert model.chat.prompts_cut == 0
        assert len(model.chat.prompt_before(chat, model.chat.context - whole + 1)) == whole - 1
        assert model.chat.prompts_cut == 1
        replies = [Reply(place, "verifier", 0, TokenTurn([1], [2]), cut=place < 1) for place in range(4)]
        assert trainer._cut_prompts("eval_sampled", 0, replies) == {"eval_sampled/verifier/prompt_cut_share": 0.25}
        assert trainer._cut_prompts("train", 1, [replace(reply, cut=False) for reply in replies]) == {}
        assert "1 of 4 prompts of verifier lost their middle in iteration 1" in capsys.readouterr().err
        with pytest.raises(
            TrainingError, match=r"4 of 4 prompts of verifier lost their middle in iteration 3.*max_length"
        ):
            trainer._cut_prompts("train", 2, [replace(reply, cut=True) for reply in replies])
        trainer.close()


def test_an_agent_that_does_not_know_the_form_of_replies_is_named_at_the_start(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    knows = make(format_warmup=200, warmup_learning_rate=0.01).model_copy(update={"iterations": 1})
    run_experiment(knows, tmp_path / "knows")
    assert "cannot be used" not in capsys.readouterr().err
    run_experiment(make(warmup_steps=1).model_copy(update={"iterations": 1}), tmp_path / "guesses")
    assert re.search(r"warning: \d+% of the replies of prover0 cannot be used; raise", capsys.readouterr().err)


def test_a_run_meets_itself_over_time(make: Make, tmp_path: Path) -> None:
    """By checkpoints and snapshots alike. Who is given the weights of another time plays as then, in rows and in
    columns."""
    run, config = (
        tmp_path / "run",
        make(PAST, keep_checkpoints=None, warmup_steps=0, format_warmup=40, learning_rate=3e-2),
    )
    run_experiment(config.model_copy(update={"iterations": 2, "seed": 2}), run, quiet=True)

    def table() -> dict[tuple[str, str], Any]:
        found = cross_play_checkpoints(run, greedy=False)
        assert (found["roles"], found["num_instances"], len(found["elo"]["prover"])) == (["verifier", "prover"], 4, 3)
        return {(cell["verifier"], cell["prover"]): (cell["accuracy"], cell["undecided"]) for cell in found["matrix"]}

    first, last, names = "000001", "000002", ("000000", "000001", "000002")
    found = table()
    assert {*found} == {(row, column) for row in names for column in names}
    assert len({str(cell) for cell in found.values()}) > 2
    kept, same = (
        load_checkpoint(run / "checkpoints", 2).tensors["verifier"]["weights"],
        snapshot_weights(run, 2, "verifier"),
    )
    assert kept.keys() == same.keys()
    assert all(bool((kept[name] == same[name]).all()) for name in kept)
    shutil.rmtree(run / "checkpoints" / last)
    shutil.copytree(run / "past" / first, run / "past" / last, dirs_exist_ok=True)
    again = {**dict(zip(names, names, strict=True)), last: first}
    assert table() == {(row, column): found[again[row], again[column]] for row, column in found}
    shutil.rmtree(run / "past")
    with pytest.raises(UserError, match=r"has 1, and needs two; set algorithm\.keep_checkpoints=null"):
        cross_play_checkpoints(run)


def test_an_attack_is_by_policy_gradient_too(make: Make, tmp_path: Path) -> None:
    """On the models that the run ended with; the run's own prover is measured before it learns anything more."""
    verifier = {"verifier": {"kl_coefficient": 0.1}}
    raw = make(
        entropy_coefficient=0.1,
        kl_estimator="k2",
        kl_refresh=2,
        agents=verifier,
        average_weights=0.9,
        anneal_warmup=True,
    ).model_dump(mode="json")
    raw["scenario"]["agents"]["prover1"] = {
        **raw["scenario"]["agents"]["_default"],
        "frozen": True,
        "max_invalid_replies": 20,
    }
    config: Any = config_from_dict({**raw, "iterations": 2, "opponents": {"every": 1, "latest": 0.5}})
    run_experiment(config, tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match=r"nip-ray cross-play .*/run --checkpoints"):
        rerun_tests(tmp_path / "run")
    chosen = [
        f"evaluation.attack.{setting}" for setting in ("goals=[soundness]", "text_iterations=3", "text_best_of=4")
    ]
    with pytest.raises(UserError, match="text_prompts: state_tracking is played in a closed list of words"):
        evaluate_run(tmp_path / "run", attacked=True, settings=[*chosen, "evaluation.attack.text_prompts=[lie]"])
    changes = [word for setting in chosen for word in ("--set", setting)]
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--attack", *changes])
    assert "best_of (chosen)" in result.stdout, result.output
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())["attack"]["soundness"]
    assert [(row["name"], row["iterations"]) for row in found["attackers"][:2]] == [("own", 0), ("continued", 3)]
    attack, best = tmp_path / "run" / found["run_dir"], found["attackers"][2]
    assert (best["name"], best["chosen"], best["start"] in ("own", "continued")) == ("best_of", True, True)
    lines = read_lines(attack / "rollouts" / "test-000005.jsonl")
    assert len([*lines]) == best["dialogues"] > best["held_out"]["n"]
    assert [{key.split("/")[1] for key in row if key.endswith("/grad_norm")} for row in rows(attack)] == [
        {"prover1"}
    ] * 3
    with RunFolder.open(attack) as folder:
        models = load_state(folder).models()
    learned_by: Any = load_config(attack / "config.yaml").algorithm
    assert learned_by.average_weights is None, "an attacker is as strong as its newest weights"
    kept = tmp_path / "run" / "local" / "models"
    assert models == {
        "prover0": str(kept / "prover0-000002"),
        "prover1": "prover1-000003",
        "verifier": str(kept / "verifier-000002"),
    }
    assert weights(attack)["prover1"] != (kept / "words" / "model.safetensors").read_bytes()


def test_more_iterations_continue_a_run_that_is_over(make: Make, tmp_path: Path) -> None:
    """Also where the model that the KL term refers to is due to be replaced at its end."""
    config = make(kl_coefficient=0.1, kl_refresh=2)
    run_experiment(config.model_copy(update={"iterations": 2}), tmp_path / "run", quiet=True)
    resume_experiment(tmp_path / "run", iterations=4, quiet=True)
    run_experiment(config, tmp_path / "whole", quiet=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_what_ends_a_run_leaves_the_last_checkpoint(make: Make, tmp_path: Path) -> None:
    """A bound on what sampler and learner may differ by, and a budget of tokens; both are told by key."""
    config = make(max_logprob_difference=1e-12)
    with pytest.raises(TrainingError, match="max_logprob_difference"):
        run_experiment(config, tmp_path / "bound", quiet=True)
    assert (tmp_path / "bound" / "checkpoints" / "000000").is_dir()
    spent = make().model_copy(update={"budget": replace(make().budget, tokens=7_000)})
    with pytest.raises(BudgetExhausted, match=r"budget\.tokens"):
        run_experiment(spent, tmp_path / "spent", quiet=True)
    assert 1 < len(rows(tmp_path / "spent")) < 5
    resume_experiment(tmp_path / "spent", settings=["budget.tokens=1000000"], quiet=True)
    assert len(rows(tmp_path / "spent")) == 5


def test_kl_that_only_comes_in_is_to_the_model_after_the_warm_up(make: Make, tmp_path: Path) -> None:
    own = {"prover0": {"kl_coefficient": 0}, "prover1": {"final_kl_coefficient": 0.1}}
    config = make(kl_coefficient=0.1, final_kl_coefficient=0.2, agents=own)
    last = [config.algorithm.seen_by(agent).final_kl_coefficient for agent in ("prover0", "prover1", "verifier")]
    assert last == [0.2, 0.1, 0.2]
    run_experiment(config, tmp_path / "run", quiet=True)
    assert ["learn/prover0/kl" in row for row in rows(tmp_path / "run")[1:]] == [False, True, True, True]
    assert (tmp_path / "run" / "local" / "models" / "prover0-start").is_dir()


def test_kl_to_a_model_that_is_refreshed_before_every_step_is_0(make: Make, tmp_path: Path) -> None:
    """And folders stay that a kept checkpoint would load."""
    run_experiment(make(kl_coefficient=0.1, kl_refresh=1), tmp_path / "run", quiet=True)
    assert all(abs(row["learn/prover0/kl"]) < 1e-6 for row in rows(tmp_path / "run")[1:])
    names = (path.name for path in (tmp_path / "run" / "local" / "models").glob("prover0*"))
    assert sorted(names) == [
        "prover0-000004", "prover0-start", *(f"prover0-start-{number:06d}" for number in (2, 4))
    ]  # fmt: skip


def test_the_optimizer_starts_anew_after_the_warm_up(make: Make, tmp_path: Path) -> None:
    """Second moments of supervised gradients, several times larger, would shorten the first steps of the rule."""
    run_experiment(make().model_copy(update={"iterations": 2}), tmp_path / "run", quiet=True)
    for iteration, learned in ((0, False), (2, True)):
        tensors = load_checkpoint(tmp_path / "run" / "checkpoints", iteration).tensors
        assert [bool(state["moments"]) for state in tensors.values()] == [learned] * 3


def test_averages_are_tested_and_saved_and_learning_is_the_same(make: Make, tmp_path: Path) -> None:
    """The average begins with the weights after the first iteration, and is short at first."""
    plain, averaged = (
        make(average_weights=decay, checkpoint_every=1, keep_checkpoints=None, learning_rate=1e-2, evaluate_every=0)
        for decay in (None, 0.2)
    )
    run_experiment(plain, tmp_path / "plain")
    run_experiment(averaged, tmp_path / "averaged")
    own, ours = rows(tmp_path / "plain"), rows(tmp_path / "averaged")
    differing = {key for before, after in zip(own, ours, strict=True) for key in before if before[key] != after[key]}
    assert differing
    assert all(key.startswith("eval") for key in differing)
    checkpoints = tmp_path / "plain" / "checkpoints"
    first, *later = (load_checkpoint(checkpoints, number).tensors["verifier"]["weights"] for number in range(1, 5))
    for newest, decay in zip(later, (2 / 11, 0.2, 0.2), strict=True):
        first = {name: decay * first[name] + (1 - decay) * newest[name] for name in first}
    saved = load_file(tmp_path / "averaged" / "local" / "models" / "verifier-000004" / "model.safetensors")
    for name, tensor in saved.items():
        torch.testing.assert_close(tensor, first[name])


def test_an_interrupted_warm_up_continues(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its last save, without a difference to one in a piece, at rates that fall, and its time is that of both
    parts; the save is gone when it is over, and one that cannot be read is none."""
    rule = {"warmup_learning_rate": 0.006, "anneal_warmup": True}
    config = make(warmup_steps=6, format_warmup=8, **rule).model_copy(update={"iterations": 1})
    learn, steps, last = PolicyModel.supervised_step, list[float](), 1_000_000

    def counted(self: PolicyModel, turns: Sequence[Any], settings: Any) -> dict[str, float]:
        if len(steps) == last:
            raise KeyboardInterrupt
        steps.append(settings.warmup_rate)
        return learn(self, turns, settings)

    monkeypatch.setattr(PolicyModel, "supervised_step", counted)
    monkeypatch.setattr(warm_up, "SAVED_EVERY_S", 0)
    run_experiment(config, tmp_path / "whole")
    assert steps[0] == 0.006  # of the format
    assert steps[-18:] == pytest.approx([rate for rate in (0.006, 0.005, 0.004, 0.003, 0.002, 0.001) for _ in range(3)])
    last = len(steps) - 4  # in the fifth of six steps of three models
    steps.clear()
    with pytest.raises(KeyboardInterrupt):
        run_experiment(config, tmp_path / "halves")
    spent = load_checkpoint(tmp_path / "halves" / "warm_up", 6).state["seconds"]
    steps.clear()
    resume_experiment(tmp_path / "halves")
    assert len(steps) == 6
    with RunFolder.open(tmp_path / "halves") as folder:
        assert folder.metrics()[0]["time/warmup_s"] > spent
    steps.clear()
    last = 4  # in the second of the steps on the form
    with pytest.raises(KeyboardInterrupt):
        run_experiment(config, tmp_path / "form")
    assert (tmp_path / "form" / "warm_up" / "000001").is_dir()
    last = 1_000_000
    resume_experiment(tmp_path / "form")
    steps.clear()
    last = 5
    with pytest.raises(KeyboardInterrupt):
        run_experiment(config, tmp_path / "damaged")
    for file in (tmp_path / "damaged" / "warm_up").glob("*/*.pt"):
        file.write_bytes(b"")
    last = -1
    resume_experiment(tmp_path / "damaged")
    assert "the warm-up begins again" in capsys.readouterr().err
    steps.clear()
    last = 1_000_000
    with monkeypatch.context() as broken:
        broken.setattr(PolicyGradientTrainer, "test", lambda self, iteration: [][0])
        with pytest.raises(IndexError):
            run_experiment(config, tmp_path / "tested")
    steps.clear()
    resume_experiment(tmp_path / "tested")
    assert not steps, "they are saved before the first test"
    for one in ("halves", "form", "damaged", "tested"):
        assert not (tmp_path / one / "warm_up").exists()
        assert rows(tmp_path / one) == rows(tmp_path / "whole")
        assert weights(tmp_path / one) == weights(tmp_path / "whole")


def test_a_curriculum_teaches_nothing_that_is_held_out(make: Make, tmp_path: Path) -> None:
    """Of the same length, so that chains of a stage are, but for numbers, held-out ones of the run."""
    config = make(curriculum=[{"until_iteration": 2, "changes": ["scenario.num_train=1200", "scenario.num_test=40"]}])
    with RunFolder.create(tmp_path / "run", config_to_yaml(config)) as folder:
        trainer = begin(config, folder, prepare(config), new_state(config))
        assert isinstance(trainer, PolicyGradientTrainer)
        (_, taught), held_out = trainer._task_of(0), trainer.items["test"]
    assert not {replace(item, id=0) for item in taught} & {replace(item, id=0) for item in held_out}
    assert 1190 < len(taught) < 1200


def test_trackers_get_the_row_before_the_first_iteration(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    continued, opened = list[int](), training.open_trackers

    def noted(settings: Any, about: Any) -> Any:
        continued.append(about.resumed_from)
        return opened(settings, about)

    monkeypatch.setattr(training, "open_trackers", noted)
    run_experiment(make().model_copy(update={"iterations": 1}), tmp_path / "run", quiet=True)
    resume_experiment(tmp_path / "run", iterations=2, quiet=True)
    assert continued == [-1, 1]


def test_what_a_play_ahead_booked_before_it_failed_is_played_again() -> None:
    class Fails:
        apart, booked = False, {"verifier": Use(1, 2, 3)}

        def take(self, weights: Any) -> None:
            """Nothing."""

        def play(self, *given: Any) -> Any:
            raise BudgetExhausted("budget.tokens")

    playing = Playing(Fails(), {}, {}, lambda iteration: (None, []))  # type: ignore[arg-type, return-value]
    assert playing.uncounted() == {}
    playing.begin(1)
    assert playing.uncounted() == Fails.booked


def test_exact_metrics_are_of_what_is_played(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the end token where play leaves no room for it, and left out where replies are drawn otherwise."""
    raw = make().model_dump(mode="json")
    own = raw["scenario"]["agents"]["_default"]

    def trainer_of(**change: Any) -> PolicyGradientTrainer:
        raw["scenario"]["agents"]["verifier"] = {**own, **change}
        config: Any = config_from_dict(raw)
        with RunFolder.create(tmp_path / "_".join(change), config_to_yaml(config)) as folder:
            made = begin(config, folder, prepare(config), new_state(config))
        assert isinstance(made, PolicyGradientTrainer)
        return made

    made, ask = trainer_of(max_tokens=1), [{"role": "user", "content": "move m0 a b"}]
    model = made.models["verifier"]
    prompt, reply = model.chat.prompt(ask), model.chat.reply(ask, "accept")
    assert len(reply) == 2
    [[drawn]] = model.logprobs([TokenTurn(prompt, reply[:1])])
    assert made._exact.probabilities("verifier", [ask], ["accept"]) == [[pytest.approx(math.exp(drawn))]]
    assert "left out" not in capsys.readouterr().err
    for change in ({"temperature": 0.0}, {"top_p": 0.5}):
        made = trainer_of(frozen=True, **change)
        (key,) = change
        assert f"exact metrics are left out: scenario.agents.verifier.{key} is" in capsys.readouterr().err
        assert made._exact.of(made.scenario, made.items["test"]) == {}


def test_agents_of_a_group_share_weights_and_frozen_ones_stay(make: Make, tmp_path: Path) -> None:
    agents = {"prover0": {"group": "provers"}, "prover1": {"group": "provers"}, "verifier": {"frozen": True}}
    raw = make().model_dump(mode="json")
    own = raw["scenario"]["agents"]["_default"]
    raw["scenario"]["agents"] = {agent: {**own, **changes} for agent, changes in agents.items()}
    config = config_from_dict(raw)
    assert isinstance(config, TextExperimentConfig)
    run_experiment(config, tmp_path / "run", quiet=True)
    with RunFolder.open(tmp_path / "run") as folder:
        assert load_state(folder).models() == {"provers": "provers-000004", "verifier": "words"}
    found = {key.split("/")[1] for row in rows(tmp_path / "run") for key in row if key.endswith("/grad_norm")}
    assert found == {"provers"}
    raw |= {"algorithm": {"name": "expert_iteration"}, "base_run": {"run_dir": str(tmp_path / "run"), "kind": "models"}}
    models = (tmp_path / "run" / "local" / "models").resolve()
    assert new_state(config_from_dict(raw)).models() == {
        "provers": str(models / "provers-000004"),
        "verifier": str(models / "words"),
    }  # type: ignore[arg-type]
    raw["base_run"]["kind"] = "rerun_tests"
    with pytest.raises(UserError, match=r"base_run\.kind: rerun_tests, but .*run names no models of its iterations"):
        new_state(config_from_dict(raw))  # type: ignore[arg-type]


def test_where_learning_broke_off_is_said(make: Make, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"prover[01], iteration 2: learning broke off: loss"):
        run_experiment(make(warmup_learning_rate=1e-3, learning_rate=1e30, num_epochs=2), tmp_path / "run", quiet=True)


def test_a_run_that_broke_off_can_end_with_its_last_checkpoint(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, run, steps = PolicyModel.step, tmp_path / "run", []

    def breaks_off(model: PolicyModel, *args: Any) -> dict[str, float]:
        steps.append(model)
        if len(steps) > 6:  # in the third iteration of three models
            raise not_finite("loss nan")
        return step(model, *args)

    monkeypatch.setattr(PolicyModel, "step", breaks_off)
    with pytest.raises(
        TrainingError,
        match=r"loss nan; .*algorithm\.learning_rate.*`nip-ray resume .*run --iterations 2` ends this one",
    ):
        run_experiment(make(evaluate_every=0), run, quiet=True)
    ended = resume_experiment(run, iterations=2, settings=["algorithm.checkpoint_every=1"], quiet=True)
    assert (ended.iterations, len(steps)) == (2, 7), "nothing is learned again"
    with RunFolder.open(run) as folder:
        assert load_state(folder).models()["verifier"] == "verifier-000002"
        assert folder.read_json("evaluation.json")["iteration"] == 2
    assert [row["iteration"] for row in rows(run)] == [0, 1, 2], "the last has the test too"
    assert {"eval/worst_case/soundness", "eval_sampled/verifier/accuracy", "train/verifier/accuracy"} <= {*rows(run)[2]}
    assert weights(run)
    monkeypatch.undo()
    assert resume_experiment(run, iterations=4, quiet=True).iterations == 4
    run_experiment(make(evaluate_every=0, checkpoint_every=1), tmp_path / "undisturbed", quiet=True)
    assert weights(run) == weights(tmp_path / "undisturbed")
    with pytest.raises(
        UserError, match=r"algorithm\.learning_rate=1: a resumed run can change .*algorithm\.micro_batch_tokens"
    ):
        resume_experiment(run, settings=["algorithm.learning_rate=1"], quiet=True)
    for change in ("method=lora", "word_model.hidden_size=64", "default_model_seed=1"):
        with pytest.raises(UserError, match=rf"providers\.local\.{change.split('=')[0].split('.')[0]}: .*another one"):
            resume_experiment(run, settings=[f"providers.local.{change}"], quiet=True)


def test_without_the_model_after_the_warm_up_there_is_no_kl_term(make: Make, tmp_path: Path) -> None:
    """And an annealed run, which cannot end earlier, is not advised to."""
    run = tmp_path / "run"
    run_experiment(make(kl_coefficient=0.1).model_copy(update={"iterations": 2}), run, quiet=True)
    shutil.rmtree(run / "local" / "models" / "prover0-start")
    with pytest.raises(TrainingError, match=r"prover0-start: the model that the KL term refers to is missing"):
        resume_experiment(run, iterations=4, quiet=True)
    annealed = make(final_kl_coefficient=0.1, learning_rate=1e30, num_epochs=2, checkpoint_every=1)
    with pytest.raises(TrainingError, match=r"learning broke off: .*warmup_learning_rate\)$"):
        run_experiment(annealed, tmp_path / "annealed", quiet=True)


def test_who_learns_is_not_held_to_a_schema_and_no_more_is_tested_than_there_is(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UserError, match=r"algorithm\.num_test_items: got 5, but there are 4 held-out items, use at most that"
    ):
        prepare(make(num_test_items=5))
    monkeypatch.setattr(
        StateTrackingInWords, "reply_schema", lambda _, agent: {"type": "string"} if agent == "verifier" else None
    )
    with pytest.raises(
        UserError, match=r"scenario\.agents\.verifier\.frozen: state_tracking holds its replies to a schema"
    ):
        prepare(make())


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("pg_kuhn_poker", {"eval/exploitability": (0, 0.05)}),
        ("pg_state_tracking", {"eval/worst_case/soundness": (0.9, 1), "eval/worst_case/completeness": (0.9, 1)}),
    ],
)
def test_language_models_learn_what_is_right(
    name: str, bounds: dict[str, tuple[float, float]], seed: int, tmp_path: Path
) -> None:
    config = load_config(ROOT / "tune_configs" / f"{name}.yaml", [f"seed={seed}", "providers.local.num_threads=1"])
    assert isinstance(config, TextExperimentConfig)
    metrics = run_experiment(config, tmp_path / "run", quiet=True).metrics
    assert {key: metrics[key] for key, (low, high) in bounds.items() if not low <= metrics[key] <= high} == {}
