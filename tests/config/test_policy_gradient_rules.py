"""Configs of policy gradient with language models: which are refused, and by which key."""

import re
from typing import Any

import pytest

from nip_ray.config.load import config_from_dict, config_to_yaml
from nip_ray.config.rules import check
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.errors import UserError

OPENAI = {"providers": {"local": {"name": "local"}, "remote": {"name": "openai"}}}
REMOTE = {"provider": "remote", "model": "gpt-x"}
SERVICE = {"providers": {"remote": {"name": "training_service"}}}
SHARED = {"agents": {"_default": {"group": "all"}}}


def config(change: dict[str, Any]) -> Any:
    """`change`, whose part `algorithm` is of policy gradient."""
    parts = {"scenario": {}, **change}
    agents = {
        agent: {"max_invalid_replies": 1, **own}
        for agent, own in {"_default": {}, **parts["scenario"].get("agents", {})}.items()
    }
    return config_from_dict(
        {
            **parts,
            "scenario": {"name": "code_validation", **parts["scenario"], "agents": agents},
            "algorithm": {"name": "policy_gradient", **parts.get("algorithm", {})},
        }
    )


@pytest.mark.parametrize(
    "change",
    [
        {},
        {
            "algorithm": {
                "advantage": "role",
                "role_baseline_decay": 0.9,
                "group_size": 1,
                "clip_low": None,
                "clip_high": None,
            }
        },
        {
            "algorithm": {
                "normalise_advantage": True,
                "kl_estimator": "k2",
                "agents": {"prover": {"kl_coefficient": 0.1}},
            }
        },
        {"algorithm": {"final_kl_coefficient": 0.05, "agents": {"prover": {"kl_coefficient": 0.1}}}},
        {"algorithm": {"final_kl_coefficient": 0.05, "kl_estimator": "k2"}},
        {"algorithm": {"warmup_steps": 5, "warmup_agents": ["verifier"], "warmup_learning_rate": 1e-3}},
        {"algorithm": {"warmup_steps": 5, "anneal_warmup": True}},
        {"scenario": SHARED, "algorithm": {"agents": {"_default": {"learning_rate": 1e-3}}}},
        {"scenario": {"agents": {"verifier": {"frozen": True, "max_invalid_replies": 3}}}},
        {"algorithm": {"num_rollout_workers": 16, "max_staleness": 1, "num_learners": 2}},
        {"scenario": SHARED, "opponents": {"agents": ["prover"]}},
        {
            **SERVICE,
            "scenario": {"agents": {"_default": REMOTE, "verifier": {**REMOTE, "frozen": True, "temperature": 0.3}}},
        },
    ],
)
def test_what_can_work_is_accepted_and_written_out(change: dict[str, Any]) -> None:
    made = config(change)
    check(made)
    assert config_from_dict(parse_yaml(config_to_yaml(made), "")) == made


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        ({"opponents": {"latest": 0.95}}, ["opponents.latest: got 0.95, which leaves 1 of 16 items for 2 opponents"]),
        (
            {"opponents": {}, "algorithm": {"name": "malt"}},
            ["opponents: not available with malt, whose models learn elsewhere"],
        ),
        (
            {"opponents": {"agents": ["prover"]}, "scenario": {"agents": {"prover": {"frozen": True}}}},
            [
                "opponents.agents: prover does not learn (scenario.agents.prover.frozen)",
                "opponents: only verifier learns",
            ],
        ),
        (
            {"algorithm": {"group_size": 7}},
            ["algorithm.group_size: got 7, but rollouts_per_iteration is 128, use a divisor"],
        ),
        ({"algorithm": {"group_size": 1}}, ["algorithm.group_size: got 1, but advantage group compares"]),
        ({"algorithm": {"group_size": 1, "advantage": "leave_one_out"}}, ["algorithm.group_size: got 1"]),
        (
            {"algorithm": {"advantage": "role", "normalise_advantage": True}},
            ["algorithm.normalise_advantage: is for advantage group"],
        ),
        ({"algorithm": {"role_baseline_decay": 0.5}}, ["algorithm.role_baseline_decay: is for advantage role"]),
        (
            {
                "algorithm": {
                    "curriculum": [{"changes": ["protocol.max_rounds=["]}, {"changes": ["protocol.max_rounds=x"]}]
                }
            },
            [
                "[0].changes: protocol.max_rounds=[: no valid YAML",
                "[1].changes: protocol.max_rounds: got 'x', expected int",
            ],
        ),
        ({"algorithm": {"kl_estimator": "k2"}}, ["algorithm.kl_estimator: kl_coefficient is 0"]),
        ({"algorithm": {"warmup_learning_rate": 0.1}}, ["algorithm.warmup_learning_rate: there is no warm-up"]),
        ({"algorithm": {"warmup_agents": ["prover"]}}, ["algorithm.warmup_agents: warmup_steps is 0"]),
        (
            {"algorithm": {"anneal_warmup": True, "format_warmup": 5}},
            ["algorithm.anneal_warmup: warmup_steps is 0"],
        ),
        (
            {"algorithm": {"warmup_agents": [], "warmup_steps": 1}},
            ["algorithm.warmup_agents: got [], expected list of text or null, not empty"],
        ),
        (
            {"algorithm": {"kl_coefficient": 0.1, "agents": {"_default": {"kl_coefficient": 0}}}},
            ["algorithm.kl_coefficient: no agent that learns has it (algorithm.agents), leave it out"],
        ),
        (
            {"scenario": {"agents": {"prover": {"group": "../my team"}}}},
            ["scenario.agents.prover.group: got '../my team', use letters, digits, _ . -"],
        ),
        (
            {"algorithm": {"warmup_agents": ["provr"], "warmup_steps": 1}},
            ["algorithm.warmup_agents: no agent 'provr' of nip, did"],
        ),
        (
            {
                "algorithm": {"warmup_agents": ["prover"], "warmup_steps": 1},
                "scenario": {"agents": {"prover": {"frozen": True}}},
            },
            ["algorithm.warmup_agents: prover is frozen (scenario.agents.prover.frozen)"],
        ),
        ({"algorithm": {"learning_rate": float("inf")}}, ["algorithm.learning_rate: got inf"]),
        (
            {"algorithm": {"agents": {"prover": {"kl_coefficient": float("inf")}}}},
            ["algorithm.agents.prover.kl_coefficient: got inf"],
        ),
        (
            {"algorithm": {"agents": {"provr": {}}}},
            ["algorithm.agents.provr: not an agent of nip, did you mean prover"],
        ),
        (
            {
                "algorithm": {"agents": {"prover": {"learning_rate": 0.1}}},
                "scenario": {"agents": {"prover": {"frozen": True}}},
            },
            ["algorithm.agents.prover: prover is frozen (scenario.agents.prover.frozen)"],
        ),
        (
            {"algorithm": {"agents": {"prover": {"from_iteration": 4, "until_iteration": 3}}}},
            ["algorithm.agents.prover.until_iteration: got 3, but from_iteration is 4"],
        ),
        (
            {"algorithm": {"agents": {"prover": {"until_iteration": 4}}}, "iterations": 3},
            ["algorithm.agents.prover.until_iteration: got 4, but there are 3 iterations"],
        ),
        (
            {
                "algorithm": {
                    "curriculum": [
                        {"until_iteration": 1, "changes": ["protocol.max_rounds=5"]},
                        {"until_iteration": 2, "changes": ["protocol.max_rounds=5"]},
                        {"until_iteration": 3, "changes": ["protocol.max_rounds=7"]},
                    ]
                },
                "protocol": {"max_rounds": 7},
                "iterations": 9,
            },
            [
                "curriculum[0].changes: make the very task of the stage behind it",
                "curriculum[2].changes: make the very task of the run itself",
            ],
        ),
        (
            {"algorithm": {"agents": {"prover": {"from_iteration": 4}}}, "iterations": 3},
            ["algorithm.agents.prover.from_iteration: got 4, but there are 3 iterations"],
        ),
        (
            {"algorithm": {"agents": {"prover": {"learning_rate": 0.1}}}, "scenario": SHARED},
            [
                "algorithm.agents.prover.learning_rate: verifier has nothing of its own, but prover, whose weights it "
                "shares (group 'all')"
            ],
        ),
        (
            {**OPENAI, "scenario": {"agents": {"prover": REMOTE}}, "algorithm": {"max_staleness": 1}},
            [
                "scenario.agents.prover.provider: remote gives no gradients",
                "name local",
                "algorithm.max_staleness: got 1",
                "algorithm.max_staleness: remote (scenario.agents.prover.provider) gives no log-probabilities",
            ],
        ),
        (
            {**OPENAI, "scenario": {"agents": {"prover": {**REMOTE, "frozen": True}}}},
            ["scenario.agents.prover.provider: remote is asked by chats"],
        ),
        (
            {"providers": {"none": {"name": "dummy"}}, "scenario": {"agents": {"_default": {"provider": "none"}}}},
            [
                "scenario.agents._default.provider: none gives no gradients",
                "add a provider named local or training_service",
            ],
        ),
        (
            {
                "providers": {"one": {"name": "local"}, "other": {"name": "local", "lora_rank": 4}},
                "scenario": {
                    "agents": {
                        "_default": {"group": "all", "provider": "one"},
                        "prover": {"group": "all", "provider": "other"},
                    }
                },
            },
            ["scenario.agents._default.provider: got one, but prover of group 'all' has other"],
        ),
        (
            {"algorithm": {"num_rollout_workers": 17}},
            ["algorithm.num_rollout_workers: got 17, but an iteration has 16 items"],
        ),
        (
            {
                **SERVICE,
                "scenario": {"agents": {"prover": REMOTE}},
                "algorithm": {"num_rollout_workers": 2, "num_learners": 2},
            },
            [
                "algorithm.num_rollout_workers: for models of this cluster, and remote",
                "algorithm.num_learners: for models of this cluster",
            ],
        ),
        (
            {**SERVICE, "scenario": {"agents": {"_default": REMOTE}}, "algorithm": {"num_learners": 2}},
            ["algorithm.num_learners: for models of this cluster, and remote"],
        ),
        (
            {"algorithm": {"num_learners": 2}, "providers": {"local": {"name": "local", "num_gpus": 0.5}}},
            ["providers.local.num_gpus: got 0.5, but learners of one model"],
        ),
        ({"scenario": {"agents": {"prover": {"temperature": 0}}}}, ["scenario.agents.prover.temperature: got 0"]),
        (
            {"scenario": {"agents": {"prover": {"max_invalid_replies": 20}}}},
            ["agents.prover.max_invalid_replies: got 20", "set it to 1"],
        ),
        (
            {"scenario": {"agents": {"prover": {"chat_shape": "openai"}}}},
            ["scenario.agents.prover.chat_shape: policy_gradient keeps"],
        ),
        ({"scenario": {"agents": {"prover": {"top_p": 0.5}}}}, ["scenario.agents.prover.top_p: got 0.5"]),
        (
            {"scenario": {"agents": {"prover": {"fine_tune_from_scratch": False}}}},
            ["scenario.agents.prover.fine_tune_from_scratch: is"],
        ),
        ({"scenario": {"decision_format": "json"}}, ["scenario.decision_format: json, but under a schema"]),
        (
            {"talk": {"num_talkers": 2, "max_in_flight": 3}},
            ["talk.num_talkers: policy_gradient plays where", "talk.max_in_flight"],
        ),
        (
            {
                **SERVICE,
                "scenario": {"agents": {"_default": REMOTE, "verifier": {**REMOTE, "temperature": 0.3}}},
                "algorithm": {
                    "average_weights": 0.99,
                    "entropy_coefficient": 0.1,
                    "agents": {"prover": {"entropy_coefficient": 0.2}},
                },
            },
            [
                "scenario.agents.verifier.temperature: got 0.3, but remote gives the log-probabilities that verifier "
                "learns from at 1",
                "algorithm.entropy_coefficient: needs the probabilities of all",
                "algorithm.agents.prover.entropy_coefficient: needs the probabilities of all",
                "algorithm.average_weights: remote does not give the weights of prover",
                "algorithm.average_weights: remote does not give the weights of verifier",
            ],
        ),
        (
            {"providers": {"local": {"name": "local", "num_training_workers": 2}}},
            ["providers.local.num_training_workers: is for"],
        ),
        (
            {
                "providers": {"local": {"name": "local", "method": "full", "lora_rank": 4}},
                "runtime": {"num_threads": 2},
            },
            ["providers.local.lora_rank: for method lora only", "runtime.num_threads: got 2, but local models have"],
        ),
        ({"base_run": {"run_dir": "."}}, ["base_run: policy_gradient starts from the models of scenario.agents"]),
    ],
)
def test_what_cannot_work_is_refused_by_its_key(change: dict[str, Any], faults: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        check(config(change))
    for fault in faults:
        assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"clip_low": 1}, "algorithm.clip_low: got 1, expected number > 0 and < 1 or null"),
        ({"fine_tuning": {}}, "algorithm.fine_tuning: unknown key"),
        ({"max_staleness": 2}, "algorithm.max_staleness: got 2"),
        (
            {"agents": {"prover": {"clip_low": 0.1}}},
            "algorithm.agents.prover.clip_low: unknown key, did you mean algorithm.clip_low?",
        ),
    ],
)
def test_keys_of_other_rules_and_out_of_bounds(given: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=re.escape(fault)):
        config({"algorithm": given})
