"""Keys that were removed: an error that says what replaces them where they said something, nothing where they did not,
nor in old runs."""

import pytest

from nip_ray.config.load import config_from_dict
from nip_ray.errors import UserError


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"runtime": {"static_shapes": True}}, r"runtime\.static_shapes: was removed; .*eager"),
        ({"learners": {"shard": True}}, r"learners\.shard: was removed; learners\.num_learners"),
        ({"learners": {"partition": "agents"}}, r"learners\.partition: was removed; agents learn in the main process"),
        (
            {"algorithm": {"name": "policy_gradient", "learner_sharding": "full"}},
            r"algorithm\.learner_sharding: was removed; .*lora",
        ),
        (
            {"algorithm": {"name": "policy_gradient", "learner_placement": "spread"}},
            r"learner_placement: was removed; .*as few nodes",
        ),
        ({"strict": True}, "strict: was removed; .*--dry-run"),
        (
            {"runtime": {"spot_notices": "aws", "spot_interval_s": 2.0}},
            r"runtime\.spot_notices: was removed; .*SIGTERM",
        ),
    ],
)
def test_a_removed_key_that_said_something_is_refused_and_dropped_in_what_a_run_stored(data: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        config_from_dict(data)
    kept = {key: {"name": part["name"]} for key, part in data.items() if key == "algorithm"}
    assert config_from_dict(data, stored=True) == config_from_dict(kept)


def test_a_full_config_of_an_earlier_version_says_the_same() -> None:
    runtime = {"spot_notices": None, "spot_interval_s": 5.0, "spot_address": None, "num_threads": 2}
    assert config_from_dict({"strict": False, "runtime": runtime}) == config_from_dict({"runtime": {"num_threads": 2}})
    agents = {"_default": {"num_decider_layers": 2, "include_round_in_value": True, "d_gnn": 8}}
    assert config_from_dict({"scenario": {"agents": agents}}) == config_from_dict(
        {"scenario": {"agents": {"_default": {"d_gnn": 8}}}}
    )
    agents["_default"]["num_decider_layers"] = 3
    with pytest.raises(UserError, match=r"scenario\.agents\._default\.num_decider_layers: was removed; .*two layers"):
        config_from_dict({"scenario": {"agents": agents}})
    solo = {"algorithm": {"name": "solo", "clip_gradients": "joint"}}
    assert config_from_dict(solo) == config_from_dict({"algorithm": {"name": "solo"}})


def test_keys_of_a_local_provider_that_are_gone_are_looked_for_in_each_provider_of_that_name() -> None:
    text = {
        "scenario": {"name": "code_validation"},
        "providers": {"ours": {"name": "local", "engine": "vllm", "vllm_memory": 0.3}},
    }
    with pytest.raises(UserError) as caught:
        config_from_dict(text)
    assert [str(fault).partition(":")[0] for fault in caught.value.args] == [
        "providers.ours.engine",
        "providers.ours.vllm_memory",
    ]
    text["providers"] = {"ours": {"name": "local", "engine": "auto", "vllm_memory": 0.5}}
    assert config_from_dict(text) == config_from_dict({**text, "providers": {"ours": {"name": "local"}}})
    with pytest.raises(UserError, match=r"providers\.ours\.engine: unknown key"):
        config_from_dict({**text, "providers": {"ours": {"name": "dummy", "engine": "auto"}}})
