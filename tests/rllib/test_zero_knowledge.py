"""Zero knowledge behind RLlib: PPO learns, checkpoints, continues and is examined; the one-copy environment says that
it cannot pay."""

import json
from pathlib import Path

import pytest
import torch

from nip_ray.config.rules import check
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.rllib.protocol_env import ProtocolEnv
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.folder import RunFolder
from tests.rllib.experiments import built, distance, experiment, train, weights

AGENTS = ("prover", "verifier", "adversarial_verifier", "simulator")
GAME = dict(name="nip", min_rounds=3, max_rounds=4, zero_knowledge=True)


def test_a_run_trains_checkpoints_resumes_and_is_examined(tmp_path: Path) -> None:
    config = experiment(GAME, iterations=2, checkpoint=dict(interval=1), evaluation=dict(interval=1))
    check(config)
    whole = run_experiment(config, tmp_path / "whole", quiet=True)
    short = run_experiment(config.model_copy(update={"iterations": 1}), tmp_path / "short", quiet=True)
    resumed = resume_experiment(short.run_dir, iterations=2, quiet=True)
    timeless = [{k: v for k, v in r.metrics.items() if "time/" not in k and "per_s" not in k} for r in (whole, resumed)]
    assert timeless[0] == timeless[1]
    for prefix in ("train", "eval", "eval_sampled"):
        assert 0 < whole.metrics[f"{prefix}/simulator/message_distance"] < 1
        assert 0 < whole.metrics[f"{prefix}/simulator/decision_distance"] < 1
        assert whole.metrics[f"{prefix}/simulator/return"] == pytest.approx(
            -whole.metrics[f"{prefix}/adversarial_verifier/return"]
        )
    assert {key.split("/")[1] for key in whole.metrics if key.startswith("learn/") and key.count("/") == 2} == set(
        AGENTS
    )
    written = json.loads((whole.run_dir / "evaluation.json").read_text())["greedy"]["simulator/message_distance"]
    assert written["estimate"] == pytest.approx(whole.metrics["eval/simulator/message_distance"])
    again = evaluate_run(whole.run_dir)
    for key in (
        "eval/simulator/message_distance",
        "eval/simulator/symbol_distance",
        "eval/verifier/accuracy",
        "eval/simulator/return",
    ):
        assert again[key] == pytest.approx(whole.metrics[key])
    kept = load_checkpoint(RunFolder.open(whole.run_dir).checkpoints).tensors["training"]["modules"]
    assert set(kept) == set(AGENTS)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", ["debate", "merlin_arthur", "solo_verifier"])
def test_all_agents_learn(name: str, legacy: bool) -> None:
    game = dict(name=name, zero_knowledge=True, zero_knowledge_legacy=legacy)
    algorithm = built(experiment(game, algorithm=dict(minibatch_size=16)))
    try:
        before = weights(algorithm)
        after = train(algorithm, 1)
        assert set(after) == set(algorithm.scenario.protocol.agents)
        for agent in after:
            assert distance({agent: before[agent]}, {agent: after[agent]}) > 0, agent
    finally:
        algorithm.stop()


def test_the_one_copy_environment_cannot_pay_for_logits() -> None:
    env = ProtocolEnv({"experiment": experiment(GAME).model_dump(mode="json")})
    assert set(env.possible_agents) == set(AGENTS)
    obs, _ = env.reset(options={"id": 0, "seed": 0})
    assert set(obs) == {"verifier", "adversarial_verifier", "simulator"}
    moves = {agent: torch.zeros(len(env.layouts[agent].sizes), dtype=torch.long).numpy() for agent in obs}
    with pytest.raises(ValueError, match="pays for similarity"):
        env.step(moves)
