"""YAML, dictionaries and --set in; a config, or one error that says what would be right, out."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_ray.config.aliases import ALIASES
from nip_ray.config.changes import changes_of
from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.keys import keys_of
from nip_ray.config.load import apply_overrides, config_from_dict, config_to_yaml, differences, load_config
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.drivers.spec import parse_runner
from nip_ray.errors import UserError
from nip_ray.settings.graph_isomorphism import GraphAgentSettings
from nip_ray.settings.ppo import PPOSettings
from nip_ray.settings.text_training import MaltSettings

TUNE_CONFIGS = sorted(
    path
    for path in (Path(__file__).resolve().parents[2] / "tune_configs").glob("*.yaml")
    if not path.stem.startswith("runner_") and "\nsweep:" not in path.read_text(encoding="utf-8")
)


def refusal(data: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        config_from_dict(data)
    return str(caught.value)


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", TUNE_CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_load_and_round_trip(path: Path) -> None:
    config = load_config(path)
    text = config_to_yaml(config)
    again = config_from_dict(parse_yaml(text, "text"))
    assert again == config
    assert config_to_yaml(again) == text
    assert config_from_dict(yaml.safe_load(text)) == config, "any YAML reader reads what is written"


@pytest.mark.parametrize(
    ("scenario", "algorithm", "text"),
    [
        ("matrix_game", None, False),
        ("matrix_game", "reinforce", False),
        ("matrix_game", "malt", True),
        ("code_validation", None, True),
        (None, "malt", True),
        (None, None, False),
    ],
)
def test_the_algorithm_says_whether_agents_are_language_models_or_a_scenario_of_theirs_alone(
    scenario: str | None, algorithm: str | None, text: bool
) -> None:
    named = {
        key: {"name": name} for key, name in (("scenario", scenario), ("algorithm", algorithm)) if name is not None
    }
    assert isinstance(config_from_dict(named), TextExperimentConfig) is text


def bomb(key: str) -> str:
    """A kilobyte that stands for billions of values."""
    names = (", ".join([f"*a{i - 1}"] * 9) for i in range(1, 10))
    return "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{{key}: [{nine}]}}\n" for i, nine in enumerate(names, 1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("[1, 2]", "has [1, 2] at its top level"),
        ("name: a\nplay:\n  num_copies: [1\n", "line 4"),
        ("name: a\n\tseed: 1\n", "line 2"),
        ("name: a\nname: b\n", "line 2, column 1: the key 'name' is here twice"),
        ("seed: !!python/object:os.system x", "line 1"),
        ("? [a]\n: 1", "unhashable key"),
        ("a: &a\n  b: *a\n", "contains itself"),
        (bomb("k"), "its aliases stand for more than 50,000 values"),
        (bomb("<<"), "its aliases stand for more than 50,000 values"),
        ("[" * 20_000, "nested too deeply"),
        ("name: !!binary gICA", "numbers, text, lists and mappings only"),
        ("protocol: {name: npi}", "protocol.name: unknown protocol 'npi', did you mean nip?"),
    ],
)
def test_a_bad_file_is_named_with_the_fault(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert said in message
    assert "\n" not in message


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing.yaml: no such file"):
        load_config(tmp_path / "missing.yaml")
    with pytest.raises(UserError, match="directory"):
        load_config(tmp_path)
    (tmp_path / "noise.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        load_config(tmp_path / "noise.yaml")


def test_checking_can_be_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, f"scenario: {{data: {{train: {tmp_path}/gone.npz}}}}")
    assert load_config(path, checked=False).scenario.name == "graph_isomorphism"
    with pytest.raises(UserError, match=r"scenario\.data\.train"):
        load_config(path)


def test_merges_and_aliases(tmp_path: Path) -> None:
    both = "prover: &net {d_gnn: 8, agent_lr_factor: {actor: 2, critic: 2}}, verifier: {<<: *net, num_gnn_layers: 2}"
    text = f"scenario: {{agents: {{{both}}}}}"
    path = written(tmp_path, text)
    agents = load_config(path).scenario.agents
    assert agents["verifier"] == GraphAgentSettings(
        d_gnn=8, num_gnn_layers=2, agent_lr_factor=agents["prover"].agent_lr_factor
    )
    factors = [f"scenario.agents.verifier.agent_lr_factor.{part}=0.5" for part in ("actor", "critic")]
    agents = load_config(path, factors).scenario.agents
    assert agents["verifier"].agent_lr_factor.actor == 0.5
    assert agents["prover"].agent_lr_factor.actor == 2, "an alias is a copy: setting one place leaves the other"


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.e-3", ".1e-2", "+1e-03", "0.001"])
def test_numbers_with_an_exponent(text: str) -> None:
    assert config_from_dict(parse_yaml(f"algorithm: {{lr: {text}}}", "text")).algorithm.lr == 1e-3


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"seed": "3"}, "seed: got '3', expected integer >= 0"),
        ({"algorithm": {"lr": "fast"}}, "algorithm.lr: got 'fast', expected number > 0"),
        ({"algorithm": {"gamma": float("nan")}}, "algorithm.gamma: got nan, expected finite number >= 0 and <= 1"),
        ({"algorithm": {"clip_value": "x"}}, "algorithm.clip_value: got 'x', expected number, true or false"),
        (
            {"algorithm": {"loss": "clipp"}},
            "algorithm.loss: got 'clipp', expected one of clip, kl_penalty (did you mean clip?)",
        ),
        ({"algorithm": 3}, "algorithm: got 3, expected mapping"),
        ({"algorithm": "solo"}, "algorithm: got 'solo', expected mapping (did you mean algorithm.name=solo?)"),
        ({"protocol": {"force_guess": "two"}}, "protocol.force_guess: got 'two', expected one of zero, one, y or null"),
        ({"protocol": {"max_rounds": "8"}}, "protocol.max_rounds: got '8', expected integer >= 1 or null"),
        ({"scenario": {"data": {"graph_sizes": [7, "8"]}}}, "scenario.data.graph_sizes.1: got '8', expected integer"),
        (
            {"scenario": {"name": "graph_isomorfism"}},
            "scenario.name: got 'graph_isomorfism', did you mean graph_isomorphism?",
        ),
        (
            {"algorithm": {"name": "policy_gradiend"}},
            "algorithm.name: got 'policy_gradiend', did you mean policy_gradient?",
        ),
        (
            {"algorithm": {"name": "mine"}, "providers": {}},
            "algorithm.name: got 'mine', expected one of expert_iteration, malt",
        ),
        ({"name": "two words"}, "name: got 'two words', expected text matching"),
        ({"plugins": "mine.py"}, "plugins: got 'mine.py', expected list of text"),
    ],
)
def test_values_of_another_kind_are_refused(data: dict[str, Any], said: str) -> None:
    assert said in refusal(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"iteration": 3}, "iteration: unknown key, did you mean iterations?"),
        ({"lr": 3}, "lr: unknown key, did you mean algorithm.lr?"),
        ({"algorithm": {"epochs": 3}}, "algorithm.epochs: unknown key, did you mean num_epochs?"),
        ({"algorithm": {"num_copies": 3}}, "did you mean minibatch_copies or play.num_copies?"),
        ({"zzz": 3}, "zzz: unknown key, expected one of name, seed, iterations"),
        (
            {"scenario": {"agents": {"prover": {"d_gn": 1}}}},
            "scenario.agents.prover.d_gn: unknown key, did you mean d_gnn?",
        ),
        (
            {"scenario": {"agents": {"prover": {"gnn_lr_factor": {"acter": 1}}}}},
            "scenario.agents.prover.gnn_lr_factor.acter: unknown",
        ),
        (
            {"scenario": {"name": "message_game", "agents": {"prover": {"hiden": 1}}}},
            "scenario.agents.prover.hiden: unknown key, did you",
        ),
    ],
)
def test_unknown_keys_are_answered_with_the_nearest(data: dict[str, Any], said: str) -> None:
    assert said in refusal(data)


NAMES = st.from_regex(r"\A[A-Za-z0-9._-]{1,12}\Z")
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
POSITIVE = st.floats(min_value=1e-300, max_value=1e300)


@settings(max_examples=40, deadline=None)
@given(
    NAMES,
    TEXTS | st.sampled_from(["1e-3", "1e5", "null", "yes", "2020-01-01", "0x1", "~", "12", "=", " a", "a: b"]),
    POSITIVE,
    st.data(),
)
def test_round_trips_are_exact(name: str, text: str, number: float, data: st.DataObject) -> None:
    config = config_from_dict(
        {
            "name": name,
            "plugins": [text],
            "algorithm": {
                "lr": number,
                "clip_value": data.draw(st.booleans() | POSITIVE),
                "max_grad_norm": data.draw(st.none() | POSITIVE),
            },
            "scenario": {
                "data": {"train": text, "graph_sizes": data.draw(st.lists(st.integers(-(10**20), 10**20), min_size=1))},
                "agents": {text: {"noise_sigma": number}, "verifier": {"kind": "random"}},
            },
            "runtime": {"ray_num_cpus": data.draw(st.none() | st.integers(1, 99))},
        }
    )
    written_out = config_to_yaml(config)
    again = config_from_dict(parse_yaml(written_out, "text"))
    assert again == config
    assert config_to_yaml(again) == written_out


@pytest.mark.parametrize(
    ("override", "made"),
    [
        ("a=1", {"a": 1, "b": {"c": [1, 2]}, "e": None}),
        ("a=1e-3", {"a": 1e-3, "b": {"c": [1, 2]}, "e": None}),
        ("a=", {"a": None, "b": {"c": [1, 2]}, "e": None}),
        ("a=x=y", {"a": "x=y", "b": {"c": [1, 2]}, "e": None}),
        ("a=[1, b]", {"a": [1, "b"], "b": {"c": [1, 2]}, "e": None}),
        ("b.c.1=9", {"a": 0, "b": {"c": [1, 9]}, "e": None}),
        ("b.d.x.y=9", {"a": 0, "b": {"c": [1, 2], "d": {"x": {"y": 9}}}, "e": None}),
        ("e.x=9", {"a": 0, "b": {"c": [1, 2]}, "e": {"x": 9}}),
    ],
)
def test_overrides(override: str, made: dict[str, Any]) -> None:
    data: dict[str, Any] = {"a": 0, "b": {"c": [1, 2]}, "e": None}
    assert apply_overrides(data, [override]) == made
    assert data == {"a": 0, "b": {"c": [1, 2]}, "e": None}, "what was given stays as it was"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("a", "must look like key.subkey=value"),
        ("a=[1", "no valid YAML"),
        ("a={x: 1, x: 2}", "the key 'x' is here twice"),
        ("a.b=1", "a is 0, which has no keys below it"),
        ("c.2=1", "c is a list of 2; '2' is not an index from 0 to 1"),
        ("c.-1=1", "'-1' is not an index"),
    ],
)
def test_bad_overrides(override: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        apply_overrides({"a": 0, "c": [1, 2]}, [override])
    assert said in str(caught.value)
    assert override in str(caught.value)


def test_other_words_for_settings_of_a_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They mean the same, which is said once; both at a time are refused, and a word that means something else is left
    alone."""
    data: dict[str, Any] = {"algorithm": {"gae_lambda": 0.5, "clip_param": 0.3}}
    assert (
        config_from_dict(data)
        == config_from_dict(data)
        == config_from_dict({"algorithm": {"lam": 0.5, "clip_epsilon": 0.3}})
    )
    assert capsys.readouterr().err.count("warning: algorithm.gae_lambda is another word for lam; write lam") == 1
    with pytest.raises(UserError, match=r"algorithm\.gae_lambda: is another word for lam, which is given too"):
        config_from_dict({"algorithm": {"gae_lambda": 0.5, "lam": 0.5}})
    path = written(tmp_path, "algorithm: {lr: 1, minibatch_size: 128}\n")
    by_hand = load_config(path, ["algorithm.learning_rate=0.5", "algorithm.minibatch_copies=4"])
    assert by_hand == config_from_dict({"algorithm": {"lr": 0.5, "minibatch_copies": 4}})
    runner = parse_runner({"learners": [{"algorithm": {"learning_rate": 0.5, "ratio_clip": 0.3}}]})
    assert runner == parse_runner({"learners": [{"algorithm": {"lr": 0.5, "clip_epsilon": 0.3}}]})
    malt: dict[str, Any] = {"scenario": {"name": "code_validation"}, "algorithm": {"name": "malt"}}
    old, new = ({**malt, "algorithm": {**malt["algorithm"], key: 8}} for key in ("rehearsal", "format_warmup"))
    assert config_from_dict(old) == config_from_dict(new) != config_from_dict(malt)
    with pytest.raises(UserError, match=r"algorithm\.clip_param: unknown key"):
        config_from_dict({"algorithm": {"name": "dqn", "clip_param": 0.3}})


@pytest.mark.parametrize(("alias", "word"), ALIASES.items())
def test_every_alias_stands_for_a_setting(alias: str, word: str) -> None:
    known = keys_of(PPOSettings) | keys_of(MaltSettings)
    assert word in known
    assert alias not in known


def test_a_reward_that_is_shared_whatever_is_asked_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text("{protocol: {name: message_game, shared_reward: false}, scenario: {name: message_game}}")
    assert load_config(path).protocol.shared_reward
    assert "protocol.shared_reward: got false, but message_game always shares it" in capsys.readouterr().err
    path.write_text("{protocol: {name: message_game}, scenario: {name: message_game}}")
    assert load_config(path).protocol.shared_reward
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("part", ["search", "opponents"])
def test_a_part_that_is_there_with_its_defaults_alone_is_a_difference(part: str) -> None:
    config = config_from_dict({part: {}})
    assert differences(config)[part] == {}
    assert config_from_dict(differences(config)) == config != config_from_dict({})


def test_a_mapping_is_merged_and_what_it_replaces_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    there = {
        "scenario": {"agents": {"prover": {"num_layers": 2, "bias": False}}},
        "protocol": {"name": "nip", "max_rounds": 3},
    }
    made = apply_overrides(there, ["scenario.agents.prover={num_layers: 3}"])
    assert made["scenario"]["agents"]["prover"] == {"num_layers": 3, "bias": False}
    assert "--set scenario.agents.prover: is merged, and these stay: bias" in capsys.readouterr().err
    assert apply_overrides(there, ["protocol={name: debate}"])["protocol"] == {"name": "debate"}
    assert "--set protocol: replaces all of it, without: max_rounds" in capsys.readouterr().err
    assert apply_overrides(there, ["scenario.agents={}"])["scenario"]["agents"] == {}
    assert apply_overrides({"a": {"grid": [1]}}, ["a={uniform: [0, 1]}"])["a"] == {"uniform": [0, 1]}


def test_changes_make_the_new_of_the_old_also_where_a_key_is_gone() -> None:
    old, new = {"schedules": {"a": {"stop": 1}, "b": {"stop": 2}}}, {"schedules": {"b": {"stop": 3}}}
    assert apply_overrides(old, list(changes_of(old, new))) == new
