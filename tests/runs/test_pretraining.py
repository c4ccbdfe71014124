"""Pretraining: what learns, what is handed over, that the cache is neither stale nor trusted blindly, and what a run
does with it."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.errors import TrainingError, UserError
from nip_ray.runs import pretraining
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.runs.pretraining import Pretrained, pretrain
from nip_ray.scenarios.graph_isomorphism.dataset import save_pairs
from nip_ray.scenarios.graph_isomorphism.generate import GeneratorSettings, generate_pairs
from nip_ray.scenarios.registry import build_agents, played_scenario
from nip_ray.storage.folder import RunFolder
from tests.runs.small import MESSAGES, modules, small

BOTH = "pretraining.agents=[prover,verifier]"
NOTHING = "pretraining.lr=1e-30"  # steps far below what anybody could see


def graphs(*overrides: str) -> ExperimentConfig:
    return small(
        "pretraining.agents=[verifier]", "pretraining.num_epochs=2", "pretraining.minibatch_size=16", *overrides
    )


def messages(*overrides: str) -> ExperimentConfig:
    epochs = ("pretraining.num_epochs=6", "pretraining.lr=0.05", "pretraining.minibatch_size=64")
    return small(BOTH, *epochs, *overrides, base=MESSAGES)


def fresh(config: ExperimentConfig) -> dict[str, nn.Module]:
    """The networks with which the experiment would begin."""
    return build_agents(
        played_scenario(config.protocol, config.scenario, config.algorithm), config.scenario, config.seed
    )


def equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def one(config: ExperimentConfig, cache: Path) -> Pretrained:
    (made,) = pretrain(config, cache).values()
    return made


def test_who_sees_the_label_learns_it_and_who_does_not_decides_all_the_same(tmp_path: Path) -> None:
    epochs: list[tuple[str, int, float]] = []
    config = messages()
    made = pretrain(config, tmp_path, lambda agent, epoch, found: epochs.append((agent, epoch, found["accuracy"])))
    assert [(agent, epoch) for agent, epoch, _ in epochs] == [
        (agent, i + 1) for agent in ("prover", "verifier") for i in range(6)
    ]
    seeing, blind = (made[agent].figures for agent in ("prover", "verifier"))
    assert (seeing["held_out"]["estimate"], seeing["held_out"]["n"]) == (1.0, 1024)
    assert seeing["held_out"]["lower"] > 0.99
    assert blind["held_out"]["estimate"] == 0.5, "it guesses, and never continues"
    assert seeing["accuracy"] == [accuracy for agent, _, accuracy in epochs if agent == "prover"]
    assert seeing["loss"][-1] < 0.1 < seeing["loss"][0]
    assert blind["loss"][-1] == pytest.approx(0.693, abs=0.05), "the entropy of a fair coin"


def test_every_layer_of_the_body_learns(tmp_path: Path) -> None:
    """Even of an agent that is frozen in the experiment: factors do not count here."""
    config = graphs("scenario.agents.verifier={}", "scenario.agents.verifier.agent_lr_factor={actor: 0, critic: 0}")
    first, made = fresh(config)["verifier"], one(config, tmp_path)
    body = {f"policy_body.{name}": value for name, value in first.body().state_dict().items()}  # type: ignore[operator]
    assert made.weights.keys() == body.keys(), "the body, with the statistics of its normalisation, and nothing else"
    learned = {f"policy_body.{name}" for name, _ in first.body().named_parameters()}  # type: ignore[operator]
    same = {name for name in learned if torch.equal(made.weights[name], body[name])}
    assert not same


def test_heads_of_those_who_decide_in_the_experiment(tmp_path: Path) -> None:
    made = pretrain(graphs(BOTH, "pretraining.include_heads=true"), tmp_path)
    names = {agent: {name.partition(".")[0] for name in found.weights} for agent, found in made.items()}
    assert names == {"prover": {"policy_body"}, "verifier": {"policy_body", "decider"}}
    heads = pretrain(messages("pretraining.include_heads=true"), tmp_path)
    assert {agent: sorted(found.weights) for agent, found in heads.items()} == {
        "prover": ["hidden.bias", "hidden.weight"],
        "verifier": ["hidden.bias", "hidden.weight", "policy_head.bias", "policy_head.weight"],
    }
    for agent, found in {**made}.items():
        state = fresh(graphs())[agent].state_dict()
        assert all(state[name].shape == value.shape for name, value in found.weights.items())


@pytest.mark.parametrize("agent", ["prover", "verifier"])
@pytest.mark.parametrize("shared", ["true", "false"])
def test_it_begins_with_the_experiment_s_own_weights_and_statistics(tmp_path: Path, agent: str, shared: str) -> None:
    config = graphs(f"pretraining.agents=[{agent}]", f"scenario.shared_body={shared}", NOTHING)
    network = fresh(config)[agent]
    pupil = pretraining._pupil(config, agent, {agent: network})
    assert torch.equal(pupil.network.normalisation, network.normalisation)  # type: ignore[arg-type]
    assert not torch.equal(network.normalisation, torch.tensor([[0.0, 1.0]] * 3)), "there are such statistics"  # type: ignore[arg-type]
    made, state = one(config, tmp_path).weights, network.state_dict()
    moved = {name for name, value in made.items() if not torch.allclose(value, state[name], rtol=0, atol=1e-20)}
    assert moved <= {name for name in made if "batch_norm" in name}, "running statistics alone"


def test_the_seed_decides_and_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    """Also with noise and dropout, which draw from it."""
    noisy = ("scenario.agents._default.noise_sigma=0.3", "scenario.agents._default.transformer_dropout=0.2")
    torch.manual_seed(1)
    first = one(graphs(*noisy), tmp_path / "1")
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = one(graphs(*noisy), tmp_path / "2")
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(first.weights, second.weights)
    assert first.figures == second.figures
    assert not equal(first.weights, one(graphs(*noisy, "seed=4"), tmp_path / "3").weights)


def test_what_cannot_be_pretrained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"pretraining.agents: 'verifier' has no body"):
        pretrain(graphs("scenario.agents.verifier.kind=manual"), tmp_path)
    with pytest.raises(UserError, match="'judge' does not play"):
        pretrain(graphs("pretraining.agents=[judge]"), tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"pretraining.cache: .*/file cannot be made"):
        pretrain(graphs(), tmp_path / "file")


def test_a_loss_that_is_not_finite_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"'verifier': the loss of epoch 1 is not finite; lower pretraining.lr"):
        pretrain(graphs("pretraining.lr=1e38"), tmp_path)
    assert list(tmp_path.iterdir()) == [], "and not kept"


def test_what_was_trained_once_is_taken_from_the_cache(tmp_path: Path) -> None:
    calls: list[str] = []
    first = pretrain(graphs(), tmp_path, lambda agent, *_: calls.append(agent))["verifier"]
    (kept,) = tmp_path.iterdir()
    assert (kept.name, first.figures["cached"], calls) == (f"{first.figures['key']}.pt", False, ["verifier"] * 2)
    second = pretrain(graphs("pretraining.include_heads=true"), tmp_path, lambda agent, *_: calls.append(agent))[
        "verifier"
    ]
    assert calls == ["verifier"] * 2
    assert equal({name: value for name, value in second.weights.items() if name in first.weights}, first.weights)
    assert second.weights.keys() > first.weights.keys(), "heads are kept too"
    assert {**second.figures, "cached": False} == first.figures
    assert second.notes == ()


def key_of(config: ExperimentConfig) -> str:
    networks = fresh(config)
    return pretraining._key(config, pretraining._pupil(config, config.pretraining.agents[0], networks))


@pytest.mark.parametrize(
    "override",
    [
        "seed=4",
        "protocol.max_rounds=5",
        "scenario.data.num_train=50",
        "scenario.data.num_test=10",
        "scenario.data.seed=1",
        "scenario.normalize_observations=false",
        "scenario.message_size=2",
        "scenario.agents._default.activation=relu",  # the same shapes, the same first weights
        "scenario.agents._default.transformer_dropout=0.1",
        "scenario.agents._default.d_gnn=5",
        "pretraining.lr=0.002",
        "pretraining.num_epochs=3",
        "pretraining.minibatch_size=17",
        "pretraining.max_grad_norm=null",
        "pretraining.anneal_lr=true",
        "pretraining.agents=[prover]",
    ],
)
def test_what_matters_is_in_the_key(override: str) -> None:
    assert key_of(graphs(override)) != key_of(graphs())


def test_observation_statistics_matter() -> None:
    """Which depend on who speaks when in the experiment, though nobody else speaks here."""
    first, second = (
        key_of(graphs("protocol.max_rounds=4", "protocol.min_rounds=2", *more))
        for more in ([], ["protocol.verifier_first=false"])
    )
    assert first != second


def test_data_count_by_content_not_by_name(tmp_path: Path) -> None:
    def pairs(name: str, seed: int) -> str:
        made = generate_pairs(
            24, seed, GeneratorSettings(graph_sizes=(7,), non_iso_prop_score_1=0.5, non_iso_prop_score_2=0.5)
        )
        save_pairs(made, tmp_path / name)
        return f"scenario.data.train={tmp_path / name}"

    first = key_of(graphs(pairs("a.npz", 1)))
    assert key_of(graphs(pairs("b.npz", 1))) == first
    assert key_of(graphs(pairs("a.npz", 2))) != first


def test_a_damaged_file_is_trained_anew_with_a_note(tmp_path: Path) -> None:
    right = one(graphs(), tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    middle = len(good) // 2
    for bad, reason in (
        (good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :], "does not match its checksum"),
        (good[:-10], "does not match its checksum"),
        (b"", "first line"),
        (b"no json\n" + good, "first line"),
        (good.replace(right.figures["key"].encode(), b"0" * 32, 1), "belongs to something else"),
    ):
        path.write_bytes(bad)
        again = one(graphs(), tmp_path)
        assert equal(again.weights, right.weights)
        assert not again.figures["cached"]
        assert len(again.notes) == 1
        assert reason in again.notes[0]
        assert str(path) in again.notes[0]
        assert one(graphs(), tmp_path).figures["cached"], "the file is whole again"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


class Intruder:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("intruded"),)


def test_nothing_in_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key = one(graphs(), tmp_path / "cache").figures["key"]
    pretraining._write(tmp_path / "cache" / f"{key}.pt", key, {"weights": Intruder()})
    assert "something else than tensors" in one(graphs(), tmp_path / "cache").notes[0]
    assert not (tmp_path / "intruded").exists()


def test_a_run_begins_with_what_was_pretrained(tmp_path: Path) -> None:
    config = messages("algorithm.lr=1e-30", "iterations=1", "pretraining.include_heads=true")
    run = run_experiment(config, tmp_path / "run", quiet=True).run_dir
    made = pretrain(config, tmp_path / "pretrained")
    assert all(found.figures["cached"] for found in made.values()), "the cache lies beside the run folder"
    for agent, network in fresh(config).items():
        assert equal(modules(run)[agent], {**network.state_dict(), **made[agent].weights})
        assert not equal(modules(run)[agent], network.state_dict())
    with RunFolder.open(run) as folder:
        written = folder.read_json("pretraining.json")["agents"]
    assert {agent: {**found, "cached": True} for agent, found in written.items()} == {
        agent: found.figures for agent, found in made.items()
    }


def test_a_resumed_run_needs_no_pretraining(tmp_path: Path) -> None:
    config = messages("iterations=2", f"pretraining.cache={tmp_path / 'cache'}")
    run = run_experiment(config, tmp_path / "run", quiet=True).run_dir
    assert len(list((tmp_path / "cache").iterdir())) == 2
    shutil.rmtree(tmp_path / "cache")
    before = (run / "pretraining.json").read_bytes()
    resume_experiment(run, iterations=4, quiet=True)
    assert not (tmp_path / "cache").exists()
    assert (run / "pretraining.json").read_bytes() == before
    whole = run_experiment(messages("iterations=4"), tmp_path / "whole", quiet=True).run_dir
    for agent, state in modules(whole).items():
        assert equal(state, modules(run)[agent])


def test_a_run_that_was_stopped_before_its_first_checkpoint_gets_its_weights_again(tmp_path: Path) -> None:
    config = messages("iterations=2")
    whole = run_experiment(config, tmp_path / "whole", quiet=True).run_dir
    cut = Path(shutil.copytree(whole, tmp_path / "cut"))
    shutil.rmtree(cut / "checkpoints")
    (cut / "metrics.jsonl").unlink()
    resume_experiment(cut, quiet=True)
    for agent, state in modules(whole).items():
        assert equal(state, modules(cut)[agent])
    assert all(found["cached"] for found in json.loads((cut / "pretraining.json").read_bytes())["agents"].values())
