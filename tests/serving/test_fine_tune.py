"""Fine-tuning: it learns what generalises, the same twice, leaves a whole folder and nothing else."""

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.serving.engine import Engine
from nip_ray.serving.fine_tune import fine_tune, recipe
from nip_ray.serving.fine_tuning_job import FineTuneSpec, Method, Recipe
from nip_ray.serving.generation import GenerationRequest
from nip_ray.serving.model_folder import load_model
from nip_ray.serving.scoring import Scorer
from nip_ray.settings.providers import LocalProvider

from .data import chats, preferences, supervised

FULL = LocalProvider(method="full")
QUICK = Recipe(learning_rate=3e-3, provider=FULL, num_epochs=2)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def scores(model_dir: Path, held_out: list) -> tuple[float, float]:
    """(mean log-likelihood of right answers, mean margin over wrong ones)"""
    scorer = Scorer(model_dir)
    right = [scorer.logprob(messages, answer) for messages, answer, _ in held_out]
    wrong = [scorer.logprob(messages, other) for messages, _, other in held_out]
    return mean(right), mean(a - b for a, b in zip(right, wrong))


def check_learning(
    method: Method, adaptation: str, seed: int, base: Path, out: Path, count: int = 160, epochs: int = 6
) -> None:
    """Trained on chats with a rule: what happens on 40 chats never seen."""
    rate = 3e-3 if adaptation == "full" else 1e-2
    recipe_ = Recipe(method, seed, num_epochs=epochs, learning_rate=rate, provider=LocalProvider(method=adaptation))
    train, held_out = chats(seed, count), chats(1000 + seed, 40)
    data = supervised(train) if method == "supervised" else preferences(train)
    fine_tune(base, data, out, recipe_)
    (likely, margin), (likely_before, margin_before) = scores(out, held_out), scores(base, held_out)
    if method == "supervised":
        assert likely > likely_before + 10, "the kind of answer was learned"
        assert likely > -1.5, "an answer has about one bit"
    assert margin > margin_before + 0.5


@pytest.mark.parametrize("method", ["supervised", pytest.param("dpo", marks=pytest.mark.slow)])
def test_learning_quick(method: Method, default_dir: Path, tmp_path: Path) -> None:
    check_learning(method, "full", 0, default_dir, tmp_path / "out", 80, 3)


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("adaptation", ["full", "lora"])
@pytest.mark.parametrize("method", ["supervised", "dpo"])
def test_learning(method: Method, adaptation: str, seed: int, default_dir: Path, tmp_path: Path) -> None:
    check_learning(method, adaptation, seed, default_dir, tmp_path / "out")


@pytest.mark.parametrize(
    ("method", "adaptation"), [pytest.param("supervised", "full", marks=pytest.mark.slow), ("dpo", "lora")]
)
def test_the_same_seed_gives_the_same_model(method: Method, adaptation: str, default_dir: Path, tmp_path: Path) -> None:
    data = supervised(chats(0, 24)) if method == "supervised" else preferences(chats(0, 24))

    def run(name: str, seed: int) -> tuple[dict[str, bytes], list[tuple[int, float]]]:
        steps: list[tuple[int, float]] = []
        how = Recipe(method, seed, 1, learning_rate=1e-3, provider=LocalProvider(method=adaptation))
        done = fine_tune(default_dir, data, tmp_path / name, how, on_step=lambda step, loss: steps.append((step, loss)))
        assert [step for step, _ in steps] == [1, 2, 3]
        assert (done.steps, done.loss) == (3, steps[-1][1])
        return contents(tmp_path / name), steps

    first, again, other = run("a", 0), run("b", 0), run("c", 1)
    assert first == again
    weights = "model.safetensors" if adaptation == "full" else "adapter/adapter_model.safetensors"
    assert first[0][weights] != other[0][weights]


def test_the_better_reply_counts_beside_the_pair(default_dir: Path, tmp_path: Path) -> None:
    """Where learning starts, DPO's loss is log 2 whatever the pair."""
    losses = []
    for weight in (0.0, 1.0, 2.0):
        how = Recipe("dpo", 0, 1, 8, learning_rate=1e-3, provider=FULL, nll_coefficient=weight)
        fine_tune(
            default_dir,
            preferences(chats(0, 8)),
            tmp_path / f"{weight}",
            how,
            on_step=lambda step, loss: losses.append(loss),
        )
    assert losses[0] == pytest.approx(math.log(2), abs=1e-4)
    assert losses[2] - losses[0] == pytest.approx(2 * (losses[1] - losses[0]), rel=1e-3)
    messages, answer, _ = chats(0, 1)[0]
    assert Scorer(tmp_path / "2.0").logprob(messages, answer) > Scorer(tmp_path / "0.0").logprob(messages, answer)


def test_a_tuned_model_can_be_served_and_tuned_again(default_dir: Path, tmp_path: Path) -> None:
    data = supervised(chats(0, 40))
    adapters = Recipe(learning_rate=1e-2, num_epochs=2)
    fine_tune(default_dir, data, tmp_path / "first", adapters, checkpoints=tmp_path / "checkpoints")
    assert (tmp_path / "first" / "adapter" / "adapter_model.safetensors").is_file()
    assert len(list((tmp_path / "checkpoints").glob("checkpoint-*/adapter_model.safetensors"))) == 2
    fine_tune(tmp_path / "first", data, tmp_path / "second", adapters)
    assert not list(tmp_path.glob("*/*.safetensors")), "adapters alone"
    fine_tune(default_dir, data, tmp_path / "merged", replace(adapters, provider=LocalProvider(save_merged=True)))
    first, merged = (load_model(tmp_path / name).state_dict() for name in ("first", "merged"))
    assert all(torch.equal(first[name], merged[name]) for name in merged)
    messages, answer, _ = chats(5, 1)[0]
    odds = [
        Scorer(folder).logprob(messages, answer) for folder in (default_dir, tmp_path / "first", tmp_path / "second")
    ]
    assert odds[0] < odds[1] < odds[2]
    with Engine(tmp_path / "second") as engine:
        assert engine.generate([GenerationRequest(engine.chat.prompt(messages), 20, temperature=0)])[0].text.startswith(
            "Decision: "
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "first", "merged", "second"], (
        "nothing is left half made"
    )
    assert str(tmp_path) not in (tmp_path / "first" / "config.json").read_text(), "no path of this machine is written"


def test_parts_and_checkpoints_change_memory_and_not_what_is_learned(default_dir: Path, tmp_path: Path) -> None:
    data, losses = supervised(chats(0, 16)), []
    base = replace(QUICK, num_epochs=3)
    for name, how in {
        "whole": base,
        "parts": replace(base, provider=replace(FULL, gradient_accumulation_steps=4, gradient_checkpointing=True)),
    }.items():
        losses.append(
            fine_tune(default_dir, data, tmp_path / name, how, checkpoints=tmp_path / f"checkpoints of {name}").loss
        )
        assert len(list((tmp_path / f"checkpoints of {name}").iterdir())) == 2, "of three"
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    fine_tune(
        default_dir, data, tmp_path / "short", replace(QUICK, num_epochs=1, provider=replace(FULL, max_length=16))
    )


def test_what_cannot_work_here_is_refused(default_dir: Path, tmp_path: Path) -> None:
    data = supervised(chats(0, 8))
    for how, said in (
        ({"gradient_accumulation_steps": 3}, "8 examples"),
        ({"optimizer": "adamw_8bit"}, "nip_ray"),
        ({"quantize_base": True}, "quantize"),
    ):
        with pytest.raises(UserError, match=said):
            fine_tune(default_dir, data, tmp_path / "out", replace(QUICK, provider=replace(FULL, **how)))
    fine_tune(default_dir, data, tmp_path / "out", Recipe(num_epochs=1))
    (tmp_path / "out" / "base.json").write_text('{"base": "../gone"}')
    with pytest.raises(UserError, match="which is gone"):
        load_model(tmp_path / "out")


def test_hyper_parameters_of_a_job() -> None:
    spec = FineTuneSpec("k", "dpo", "default", "x", 10, 10, seed=3)
    assert recipe(spec, LocalProvider()) == Recipe("dpo", 3, 3, 8, 1e-4, 0.1)
    changed = FineTuneSpec(
        "k", "dpo", "default", "x", 10, 10, 3, 5, 4, learning_rate_multiplier=2.0, beta=0.3, nll_coefficient=0.1
    )
    assert recipe(changed, FULL) == Recipe("dpo", 3, 5, 4, 2e-3, 0.3, 0.1, FULL)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_two_workers_learn_as_one(default_dir: Path, tmp_path: Path) -> None:
    """Data parallel through Ray Train: the same number of steps, nearly the same losses, and a model that can be
    used."""
    from functools import partial

    from nip_ray.serving.jobs import JobStore

    data, losses = supervised(chats(0, 32)), {}
    for workers in (1, 2):
        store = JobStore(tmp_path / str(workers))
        (store.jobs / "job").mkdir()
        how = Recipe(learning_rate=1e-3, num_epochs=2, provider=replace(FULL, num_training_workers=workers))
        watch = (partial(store.add_event, "job"), partial(store.cancel_wanted, "job"))
        done = fine_tune(default_dir, data, tmp_path / f"model-{workers}", how, None, *watch)
        losses[workers] = [
            json.loads(line)["loss"] for line in (store.jobs / "job" / "events.jsonl").read_text().splitlines()
        ]
        assert done.steps == len(losses[workers]) == 8
    assert losses[2] == pytest.approx(losses[1], abs=0.5)
    assert scores(tmp_path / "model-2", chats(7, 10))[0] > scores(default_dir, chats(7, 10))[0] + 5
