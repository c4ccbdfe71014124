"""One seat beside a run's frozen agents: Gymnasium's own checker, and the same dialogues as in the batched core."""

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import nip_ray.gymnasium as seats
from nip_ray.errors import UserError
from nip_ray.play.core import BatchedPlay, play_rollout
from nip_ray.protocols import VERDICTS
from nip_ray.storage.folder import RunFolder
from tests.runs.small import write_small


def seat(run: Path, agent: str = "prover0", **options: Any) -> seats.Seat:
    env = gymnasium.make("nip_ray/Seat-v0", run_dir=run, agent=agent, **options).unwrapped
    assert isinstance(env, seats.Seat)
    return env


@pytest.mark.parametrize("agent", ["prover1", "verifier"])
def test_gymnasiums_checker_passes(run: Path, agent: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would like boxes with bounds
        check_env(seat(run, agent))


@pytest.mark.parametrize("agent", ["prover0", "prover1", "verifier"])
@torch.no_grad()
def test_a_seat_taken_by_the_runs_own_network_plays_the_dialogues_of_the_core(run: Path, agent: str) -> None:
    env = seat(run, agent, greedy=True, split="test")
    copies, made = env.copies, seats.bench(run, seats.load_stored_config(run / "config.yaml"), None, None)
    networks = seats.trained(made, seats.newest_or(RunFolder.open(run), None, made.config))
    play, index, compared = BatchedPlay(copies.play.scenario), copies.agents.index(agent), 0
    for number, instance in enumerate(copies.instances[:12]):
        seed = 3 * number + 1
        rollout = play_rollout(
            play, {name: net.eval() for name, net in networks.items()}, instance[None], torch.tensor([seed]), None
        )
        if not rollout.turn_BRA[0, :, index].any():
            continue
        env.reset(options={"id": int(instance), "seed": seed})
        total, over, info = 0.0, False, {}
        while not over:
            chosen = networks[agent](copies.tensors(agent), True, False)[0].sample(None)
            _, paid, over, _, info = env.step(copies.layouts[agent].join(chosen)[0].numpy())
            assert not info["illegal"]
            total += paid
        assert total == pytest.approx(rollout.reward_BRA[0, :, index].sum().item())
        assert torch.equal(copies.play.main_BRACM, rollout.main_BRACM)
        assert info["verdict"] == VERDICTS[int(rollout.verdict_B[0])]
        compared += 1
    assert compared >= 4


def test_a_label_and_a_seed_choose_the_instances(run: Path) -> None:
    def drawn(seed: int) -> list[int]:
        env = seat(run, "prover1", label=0)
        return [env.reset(seed=seed if number == 0 else None)[1]["instance"] for number in range(6)]

    labels = seat(run).copies.play.scenario.label_I
    assert drawn(3) == drawn(3) != drawn(4)
    assert not labels[drawn(3)].any()


def test_unseeded_copies_play_different_episodes_and_seeded_ones_the_same(run: Path) -> None:
    """As Gymnasium's own environments; SB3 and `make_vec` seed none by themselves."""

    def played(seed: int | None) -> list[Any]:
        env = seat(run, "prover1")
        shown = [env.reset(seed=seed)[1]["instance"], *(env.reset()[1]["instance"] for _ in range(5))]
        return [*shown, torch.rand(2, generator=env.seats.noise).tolist()]

    first, second = played(None), played(None)
    assert first[:-1] != second[:-1]
    assert first[-1] != second[-1], "the other agents' actions"
    for seed in (3, True, 2**70):
        assert played(seed) == played(seed)


def test_masks_are_told_flat(run: Path) -> None:
    env = seat(run, "verifier", render_mode="ansi")
    seen, _ = env.reset(seed=0)
    assert seen["action_mask"].tolist() == env.action_masks().tolist()
    assert seen["action_mask"][-3:].tolist() == [0, 0, 1], "no verdict counts in the first of three rounds"
    _, _, _, _, info = env.step(np.zeros_like(env.action_space.nvec))  # type: ignore[attr-defined]
    assert not info["illegal"], "a decision that cannot count is not in play"
    assert env.render().startswith(f"{env.copies.protocol.name}, instance {info['instance']}, label ")  # type: ignore[union-attr]


def no_checkpoint(folder: Path) -> Path:
    folder.mkdir()
    return write_small(folder / "config.yaml").parent


def of_language_models(folder: Path) -> Path:
    folder.mkdir()
    text = "algorithm: {name: expert_iteration}\nscenario: {name: code_validation, agents: {_default: {model: m}}}\n"
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda run, new: seat(run, "prover7"), "agent: got 'prover7', expected one of prover0, prover1, verifier"),
        (lambda run, new: seat(run, split="dev"), "split: got 'dev', expected train or test"),
        (lambda run, new: seat(run, label=2), "label: got 2, expected 0, 1 or none"),
        (lambda run, new: seat(run, checkpoint=9), ".*there is no checkpoint of iteration 9"),
        (lambda run, new: seat(new), ".*no run here"),
        (lambda run, new: seat(no_checkpoint(new)), ".*this run has no checkpoint"),
        (
            lambda run, new: seat(of_language_models(new)),
            ".*the agents of this run are language models, which have no networks",
        ),
        (
            lambda run, new: begun(run).step([0, 0, 0, 0, 0]),
            "prover0: got the action .*, expected a whole number below",
        ),
        (lambda run, new: ended(run).step(0), "step: the episode is over, reset"),
        (lambda run, new: seat(run).step(0), "step: no episode has begun, expected a call of reset"),
    ],
)
def test_bad_input_is_one_clear_line(run: Path, tmp_path: Path, call: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}") as caught:
        call(run, tmp_path / "new")
    assert "\n" not in str(caught.value)


def begun(run: Path) -> seats.Seat:
    env = seat(run)
    env.reset(seed=0)
    return env


def ended(run: Path) -> seats.Seat:
    env = begun(run)
    while not env.copies.play.finished:
        env.step(0)
    return env


def test_a_seat_that_never_has_a_turn_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "_DRAWS", 3)
    env = seat(run, "prover1", greedy=True)
    if env.copies.protocol.name == "debate":
        return
    with pytest.raises(UserError, match=r"^agent: prover1 had no turn in 3 episodes"):
        env.reset(options={"id": 0, "seed": 0})  # an even seed draws prover0
