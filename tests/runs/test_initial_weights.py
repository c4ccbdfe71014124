"""Starting from another run's agents: exactly their weights and statistics, or a refusal that says what differs, before
anything starts."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.errors import UserError
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.runs.initial_weights import initial_weights
from tests.runs.small import MESSAGES, modules, small

STILL = ("algorithm.lr=1e-30", "iterations=1", "evaluation.interval=0")  # steps far below what anybody could see
State = Mapping[str, Tensor]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A debate with checkpoints of both its iterations."""
    config = small(
        "protocol.name=debate",
        "seed=11",
        "iterations=2",
        "algorithm.lr=0.05",
        "checkpoint.interval=1",
        "checkpoint.keep=null",
    )
    return run_experiment(config, tmp_path_factory.mktemp("source") / "run", quiet=True).run_dir


def debate(*overrides: str) -> ExperimentConfig:
    return small("protocol.name=debate", *STILL, *overrides)


def close(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(
        torch.allclose(first[name], second[name], rtol=0, atol=1e-20) for name in first
    )


def took(run: Path, agent: str, state: State) -> bool:
    """Whether an agent of a run that hardly moved is the given one, but for what moves without a learning rate."""
    ours = {name: value for name, value in modules(run)[agent].items() if "batch_norm" not in name}
    return close(ours, {name: value for name, value in state.items() if "batch_norm" not in name})


def refusal(config: ExperimentConfig) -> str:
    with pytest.raises(UserError) as caught:
        initial_weights(config)
    return str(caught.value)


def test_weights_and_statistics_of_another_run(source: Path, tmp_path: Path) -> None:
    """prover0 from the newest checkpoint, prover1 as the other run's prover0 at its first, the verifier again."""
    first = ("initial_weights.prover1.agent=prover0", "initial_weights.prover1.checkpoint=1")
    raw = "scenario.normalize_observations=false"
    config = debate(*(f"initial_weights.{agent}.run_dir={source}" for agent in ("prover0", "prover1")), *first, raw)
    run = run_experiment(config, tmp_path / "run", quiet=True).run_dir
    plain = run_experiment(debate(raw), tmp_path / "plain", quiet=True).run_dir
    assert took(run, "prover0", modules(source)["prover0"])
    assert took(run, "prover1", modules(source, 1)["prover0"])
    assert not took(run, "prover1", modules(source)["prover0"])
    assert took(run, "verifier", modules(plain)["verifier"])
    own, theirs = (modules(where)["prover0"]["normalisation"] for where in (plain, source))
    assert not torch.equal(own, theirs)
    assert torch.equal(modules(run)["prover0"]["normalisation"], theirs), "as the weights were trained with"


def test_what_says_how_an_agent_began_or_is_trained_may_differ(source: Path) -> None:
    free = (
        "agent_lr_factor={actor: 0, critic: 0}",
        "noise_sigma=0.1",
        "transformer_dropout=0.1",
        "use_orthogonal_initialisation=false",
    )
    free += ("history_initialisation=shared", "attention_initialisation=tied")
    other = (
        "scenario.data.num_train=40",
        "seed=4",
        "algorithm.lr=0.1",
        "protocol.prover_reward=2",
        "scenario.num_normalization_steps=9",
    )
    config = debate(
        f"initial_weights.prover0.run_dir={source}", *(f"scenario.agents._default.{item}" for item in free), *other
    )
    weights, notes = initial_weights(config)
    assert close(weights["prover0"], modules(source)["prover0"])
    assert notes == []


def test_they_replace_nothing_after_the_start(source: Path, tmp_path: Path) -> None:
    """A resumed run continues with its own weights, and needs the other run no more."""
    moved = Path(shutil.copytree(source, tmp_path / "source"))
    config = debate(
        f"initial_weights.prover0.run_dir={moved}", "algorithm.lr=0.05", "iterations=2", "checkpoint.interval=1"
    )
    whole = run_experiment(config, tmp_path / "whole", quiet=True).run_dir
    cut = Path(shutil.copytree(whole, tmp_path / "cut"))
    shutil.rmtree(cut / "checkpoints" / "000002")
    shutil.rmtree(moved)
    resume_experiment(cut, settings=["checkpoint.keep=3"], quiet=True)
    assert all(close(state, modules(cut)[agent]) for agent, state in modules(whole).items())


def test_beside_pretraining(source: Path, tmp_path: Path) -> None:
    asked = ("pretraining.agents=[prover0]", "pretraining.num_epochs=1", f"initial_weights.prover1.run_dir={source}")
    run = run_experiment(debate(*asked), tmp_path / "run", quiet=True).run_dir
    plain = run_experiment(debate(), tmp_path / "plain", quiet=True).run_dir
    assert took(run, "prover1", modules(source)["prover1"])
    assert not took(run, "prover0", modules(plain)["prover0"])


MISFITS: dict[str, tuple[list[str], list[str]]] = {
    "width": (
        ["scenario.agents._default.d_gnn=5"],
        ["d_gnn is 4 there and 5 here", "policy_body.gnn.encode.weight is 4 x 6 there and 5 x 6 here"],
    ),
    "rounds": (
        ["protocol.max_rounds=5"],
        ["max_rounds is 3 there and 5 here", "policy_body.gnn.encode.weight is 4 x 6 there and 4 x 10 here"],
    ),
    "surroundings": (["scenario.message_size=2"], ["message_size is 1 there and 2 here"]),
    "body": (
        ["scenario.shared_body=false"],
        ["shared_body is True there and False here", "value_body", "missing there", "more"],
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_an_agent_that_does_not_fit(source: Path, tmp_path: Path, name: str) -> None:
    overrides, said = MISFITS[name]
    config = debate(f"initial_weights.prover0.run_dir={source}", *overrides)
    with pytest.raises(UserError) as caught:
        run_experiment(config, tmp_path / "run", quiet=True)
    message = str(caught.value)
    assert message.startswith(f"initial_weights.prover0: 'prover0' of {source} does not fit (")
    assert all(part in message for part in said), message
    assert not (tmp_path / "run").exists(), "before there is a run"


def test_what_cannot_be_taken_says_why(source: Path, tmp_path: Path) -> None:
    asked = f"initial_weights.prover0.run_dir={source}"
    message = refusal(debate(asked, "scenario.agents._default.activation=relu"))
    assert message.partition("(")[2] == "activation is tanh there and relu here), use the same settings", (
        "the same shapes"
    )
    other = small(
        f"initial_weights.prover.run_dir={source}", "initial_weights.prover.agent=prover0", *STILL, base=MESSAGES
    )
    assert "(scenario.name is graph_isomorphism there and message_game here)" in refusal(other)
    message = refusal(debate(asked, "initial_weights.prover0.agent=prover"))
    assert (
        f"initial_weights.prover0.agent: {source} has no agent 'prover', it has prover0, prover1, verifier" in message
    )
    assert "initial_weights.judge: not an agent of this experiment" in refusal(
        debate(f"initial_weights.judge.run_dir={source}")
    )
    assert "decider.0.weight is 4 x 12 there and missing here" in refusal(
        debate(asked, "initial_weights.prover0.agent=verifier")
    )
    assert f"initial_weights.prover0: {tmp_path}: no run here" in refusal(
        debate(f"initial_weights.prover0.run_dir={tmp_path}")
    )


def test_checkpoints_are_verified(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = Path(shutil.copytree(source, tmp_path / "damaged"))
    config = debate(f"initial_weights.prover0.run_dir={damaged}")
    file = damaged / "checkpoints" / "000002" / "training.pt"
    file.write_bytes(file.read_bytes()[:-1])
    weights, notes = initial_weights(config)
    assert close(weights["prover0"], modules(source, 1)["prover0"])
    assert len(notes) == 1
    assert "000002 is damaged" in notes[0]
    assert notes[0].endswith("taking iteration 1")
    run_experiment(config, tmp_path / "run", quiet=True)
    assert "warning: initial_weights.prover0: " in capsys.readouterr().err
    asked = debate(f"initial_weights.prover0.run_dir={damaged}", "initial_weights.prover0.checkpoint=2")
    assert "000002 is damaged" in refusal(asked)
    (damaged / "checkpoints" / "000001" / "training.pt").unlink()
    message = refusal(config)
    assert message.startswith("initial_weights.prover0: ")
    assert "no undamaged checkpoint is left" in message


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_remote_learners_and_runners_get_them(source: Path, tmp_path: Path) -> None:
    asked = ("play.num_env_runners=1", "learners.num_learners=1")
    weights = [f"initial_weights.{agent}.run_dir={source}" for agent in ("prover0", "prover1", "verifier")]
    remote, local = (
        run_experiment(debate(*weights, *more, "algorithm.lr=0.05"), tmp_path / name, quiet=True).metrics
        for name, more in (("remote", asked), ("local", ()))
    )
    for name in ("learn/verifier/objective", "train/verifier/accuracy", "eval_sampled/verifier/accuracy"):
        assert remote[name] == local[name], name
