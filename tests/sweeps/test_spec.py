"""Sweep files: what they say, what is refused before anything starts, and that what is written reads back the same."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.keys import keys_of
from nip_ray.config.load import config_from_dict, config_to_yaml
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.errors import UserError
from nip_ray.settings.sweep import AshaScheduler, SweepSettings
from nip_ray.sweeps import spec as spec_module
from nip_ray.sweeps.spaces import Space
from nip_ray.sweeps.spec import config_of, draw_settings, is_sweep, load_sweep, parse_sweep, sweep_to_yaml
from nip_ray.sweeps.tuning import drawn_again
from tests.docs.metrics import documented_metrics

ROOT = Path(__file__).resolve().parents[2]
GAME: dict[str, Any] = {"protocol": {"name": "message_game"}, "scenario": {"name": "message_game"}}
TEXT: dict[str, Any] = {"scenario": {"name": "code_validation"}, "iterations": 5}
LR = {"loguniform": [1e-4, 1e-2]}


def game(sweep: Mapping[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """A sweep of the message game. sweep: what stands under the key of this name (None: no such key)."""
    return {**GAME, **parts, **({} if sweep is None else {"sweep": dict(sweep)})}


def refusal(data: Mapping[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        parse_sweep(data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --------------------------------------------------------------------------------------------------------- what it says


def test_the_spaces_are_taken_out_of_the_config() -> None:
    data = game(
        {"num_samples": 4, "seeds": [0, 1], "scheduler": {"name": "asha", "grace_iterations": 60}},
        algorithm={"lr": LR, "num_epochs": {"grid": [2, 4]}, "gamma": 0.5},
    )
    spec = parse_sweep(data)
    assert spec.spaces == {
        "algorithm.lr": Space("loguniform", (1e-4, 1e-2)),
        "algorithm.num_epochs": Space("grid", (2, 4)),
    }
    assert spec.base == {**GAME, "algorithm": {"gamma": 0.5}}
    assert spec.settings == SweepSettings(num_samples=4, seeds=(0, 1), scheduler=AshaScheduler(grace_iterations=60))
    assert (spec.kind, spec.name, spec.num_settings, spec.num_trials) == (ExperimentConfig, "experiment", 8, 16)
    assert data["algorithm"]["lr"] == LR, "what was given is left as it is"


def test_a_file_without_spaces_and_settings_is_no_sweep() -> None:
    assert not is_sweep(GAME)
    assert "nip-ray train" in refusal(GAME)
    assert is_sweep(game({}))
    assert parse_sweep(game({"seeds": [3, 4]})).num_trials == 2
    assert parse_sweep({**GAME, "sweep": None}).settings == SweepSettings()


def test_a_space_may_stand_for_a_whole_part_for_a_list_and_in_a_list() -> None:
    data = game(
        schedules={"grid": [{}, {"verifier": {"kind": "contiguous", "period": 4, "start": 0, "stop": 1}}]},
        scenario={"choice": [{"name": "message_game"}, {"name": "message_game", "num_symbols": 5}]},
    )
    spec = parse_sweep(data)
    config = config_of(
        spec, {"schedules": spec.spaces["schedules"].arguments[1], "scenario": spec.spaces["scenario"].arguments[1]}
    )
    assert isinstance(config, ExperimentConfig)
    assert config.schedules["verifier"].stop == 1
    graphs = parse_sweep({"scenario": {"data": {"graph_sizes": [{"grid": [8, 9]}, 10]}}})
    assert graphs.spaces == {"scenario.data.graph_sizes.0": Space("grid", (8, 9))}
    made = config_of(graphs, {"scenario.data.graph_sizes.0": 9}).model_dump(mode="json")
    assert made["scenario"]["data"]["graph_sizes"] == [9, 10]


def test_the_command_line_sets_values_spaces_and_settings(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(sweep_to_yaml(parse_sweep(game({"num_samples": 2}, algorithm={"lr": LR}))))
    sets = [
        "sweep.num_samples=3",
        "algorithm.lr={grid: [1e-3, 1e-4]}",
        "algorithm.gamma={uniform: [0.5, 0.9]}",
        "iterations=7",
    ]
    spec = load_sweep(path, sets)
    assert (spec.settings.num_samples, spec.base["iterations"]) == (3, 7)
    assert spec.spaces == {"algorithm.lr": Space("grid", (1e-3, 1e-4)), "algorithm.gamma": Space("uniform", (0.5, 0.9))}
    assert load_sweep(path, ["algorithm.lr=1e-3", "sweep.num_samples=1"]).spaces == {}, (
        "a value takes the place of a space"
    )
    assert load_sweep(path, ["algorithm.lr.loguniform.1=0.1"]).spaces["algorithm.lr"].arguments == (1e-4, 0.1)


def test_a_faulty_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    for text, said in [
        ("", "is empty"),
        ("a: [", "line"),
        ("a: &a\n  b: *a", "contains itself"),
        ("iterations: 3", "no sweep"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=re.escape(said)) as caught:
            load_sweep(path)
        assert str(caught.value).startswith(f"{path}: ")
    with pytest.raises(UserError, match="no such file"):
        load_sweep(tmp_path / "missing.yaml")


# ------------------------------------------------------------------------------------------------------------- settings


def test_settings_are_drawn_by_the_file_alone_and_paired_with_every_grid_point() -> None:
    data = game({"num_samples": 3}, algorithm={"num_epochs": {"grid": [2, 4]}, "lr": LR, "gamma": {"grid": [0.5, 0.9]}})
    drawn = draw_settings(parse_sweep(data))
    assert drawn == draw_settings(parse_sweep(data))
    assert drawn != draw_settings(parse_sweep({**data, "seed": 1}))
    assert len(drawn) == 12
    assert [list(one) for one in drawn] == [["algorithm.gamma", "algorithm.lr", "algorithm.num_epochs"]] * 12
    for i in range(3):
        assert len({one["algorithm.lr"] for one in drawn[4 * i : 4 * i + 4]}) == 1, (
            "one draw for all points of the grid"
        )
    assert len({one["algorithm.lr"] for one in drawn}) == 3
    assert draw_settings(parse_sweep(game({"seeds": [1, 2]}))) == [{}]


def test_the_order_of_keys_in_a_file_changes_no_draw() -> None:
    rule = {"num_epochs": {"grid": [2, 4]}, "lr": LR, "gamma": {"uniform": [0.1, 0.9]}}
    turned = dict(reversed(rule.items()))
    assert draw_settings(parse_sweep(game({}, algorithm=rule))) == draw_settings(
        parse_sweep(game({}, algorithm=turned))
    )


def test_more_samples_leave_the_first_as_they_were() -> None:
    few, many = (draw_settings(parse_sweep(game({"num_samples": n}, algorithm={"lr": LR}))) for n in (2, 5))
    assert many[:2] == few


def test_repeated_draws_are_counted() -> None:
    """They are the same runs, which are not more seeds; a population may begin with equal members."""
    few = game({"num_samples": 4}, algorithm={"lr": {"choice": [1e-3, 3e-3]}, "num_epochs": {"grid": [2, 4]}})
    assert drawn_again(parse_sweep(few)) >= 4
    assert drawn_again(parse_sweep(game({"num_samples": 4}, algorithm={"lr": LR}))) == 0
    optuna = {"num_samples": 4, "search": {"name": "optuna"}}
    assert drawn_again(parse_sweep(game(optuna, algorithm={"lr": {"choice": [1e-3, 3e-3]}}))) == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"algorithm.lr": -1.0}, "algorithm.lr: got -1.0, expected number > 0 (in the setting algorithm.lr = -1.0)"),
        ({"algorithm.rate": 1.0}, "algorithm.rate: unknown key"),
        ({"schedules": {"nobody": {}}}, "schedules.nobody"),
        ({"plugins": ["a.py"], "plugins.3": "b.py"}, "plugins.3: '3' is not an index of a list of 1"),
    ],
)
def test_an_impossible_setting_is_refused_and_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        config_of(parse_sweep(game({})), values)


# --------------------------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({**game(), "swep": {"metric": "x"}}, "swep: unknown key, did you mean sweep?"),
        (game({"num_samples": {"grid": [1, 2]}}), "sweep.num_samples: got {'grid': [1, 2]}, expected integer"),
        (
            game({"scheduler": {"name": "asha", "grace": 3}}),
            "sweep.scheduler.grace: unknown key, did you mean grace_iterations?",
        ),
        (game({"seeds": [1, 2, 1]}), "sweep.seeds: got [1, 2, 1], expected each once"),
        (game({"seeds": [1]}, seed={"grid": [1, 2]}), "sweep.seeds: there is a space on seed too"),
        (game(name={"grid": ["a", "b"]}), "name: the sweep's folder is called after it"),
        ({**GAME, "sweep": 3}, "sweep: got 3, expected mapping"),
        (
            game({"num_samples": 2}, algorithm={"lr": {"grid": [0.1]}}),
            "sweep.num_samples: got 2, but all spaces are grids",
        ),
        (game({"num_samples": 2}), "there is no search space"),
        (game(algorithm={"lr": {"loguniforn": [1, 2]}}), "did you mean loguniform?"),
        (game(algorithm={"lr": {"grid": [1e-3, 0]}}), "algorithm.lr: got 0, expected number > 0"),
        (game(algorithm={"gamma": {"uniform": [0.5, 1.5]}}), "algorithm.gamma: got 1.5, expected number >= 0 and <= 1"),
        (
            game(algorithm={"num_epochs": {"quniform": [1, 3, 1]}}),
            "(of integers there are randint, lograndint, choice and grid)",
        ),
        (
            game(scenario={"grid": [{"name": "message_game"}, {"name": "graph_isomorphism"}]}),
            "scenario.name: got graph_isomorphism",
        ),
        (
            {"protocol": {"name": "nip"}, "scenario": {"name": {"grid": ["graph_isomorphism", "code_validation"]}}},
            "some values are of networks and others of language models",
        ),
    ],
)
def test_faults_are_refused_before_anything_starts(data: dict[str, Any], said: str) -> None:
    assert said in refusal(data)


def test_a_key_with_a_dot_in_it_cannot_be_addressed() -> None:
    prices = {"gpt-4.1": {"input": {"grid": [1.0, 2.0]}}}
    assert "gpt-4.1" in refusal({**TEXT, "providers": {"openai": {"name": "openai", "prices": prices}}})


def test_all_faults_come_at_once() -> None:
    message = refusal(
        game(
            {"metric": "evl/verifier/accuracy", "seeds": [1, 1]},
            algorithm={"lr": {"grid": [0.1, 0]}, "gamma": {"choice": [1, 2]}},
        )
    )
    faults = message.split("; ")
    assert {fault.partition(":")[0] for fault in faults} == {
        "algorithm.lr",
        "algorithm.gamma",
        "sweep.metric",
        "sweep.seeds",
    }


def test_combinations_of_grids_are_checked_and_the_wrong_ones_named() -> None:
    """Each value is fine where the others are at their first; two of them together are not."""
    rule = {"adaptive_lr": {"grid": [False, True]}, "anneal_lr": {"grid": [False, True]}}
    assert "algorithm.adaptive_lr: anneal_lr sets the learning rate too" in refusal(game(algorithm=rule))
    message = refusal(game(algorithm={"adaptive_lr": True, "lr": 1e-3, "adaptive_lr_max": {"grid": [1e-2, 1e-4]}}))
    assert "algorithm.lr: got 0.001, but adaptive_lr keeps it between 1e-06 and 0.0001" in message
    assert message.endswith("(with algorithm.adaptive_lr_max = 0.0001)"), "the value that it comes with is named"


def test_of_too_many_combinations_each_value_alone_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"adaptive_lr": {"grid": [False, True]}, "anneal_lr": {"grid": [False, True]}}
    monkeypatch.setattr(spec_module, "MAX_COMBINATIONS", 3)
    assert parse_sweep(game(algorithm=rule)).num_trials == 4
    assert "expected number > 0" in refusal(game(algorithm={**rule, "lr": {"grid": [1e-3, 0]}}))


# ---------------------------------------------------------------------------------------------------------------
# metrics


def documented_keys() -> list[str]:
    """Every key of the figures in docs/metrics.md that is written out, with names in place of <agent> and <group>."""
    page = documented_metrics()
    found = re.findall(r"`((?:train|eval|eval_sampled|learn|time)/[A-Za-z0-9_/<>=-]+)`", page)
    named = {"<agent>": "verifier", "<group>": "wl_score", "<value>": "3", "<state>": "CC", "<number>": "3"}
    named |= {
        "<host>": "own",
        "<k>": "2",
        "<figure>": "accuracy",
        "<role>": "sneaky",
        "<member>": "judge0",
        "<verdict>": "nine",
    }
    return sorted({re.sub("<[a-z]+>", lambda match: named[match[0]], key) for key in found if not key.endswith("/")})


ROLES: dict[str, Any] = {"protocol": {"name": "helpful_sneaky"}, "scenario": {"name": "graph_isomorphism"}}
CLASSES: dict[str, Any] = {
    "protocol": {"name": "debate", "verdicts": ["three", "eight", "nine"]},
    "scenario": {"name": "image_classification", "data": {"binarisation": "classes", "selected_classes": [3, 8, 9]}},
}
PANEL: dict[str, Any] = {"protocol": {"name": "judge_panel"}, "scenario": {"name": "graph_isomorphism"}}
HIRONAKA: dict[str, Any] = {
    "protocol": {"name": "hironaka"},
    "scenario": {"name": "hironaka"},
    "algorithm": {"name": "dqn"},
    "evaluation": {"sampled": False},
}


@pytest.mark.parametrize("key", documented_keys())
def test_every_documented_figure_may_decide(key: str) -> None:
    of_hironaka = key.startswith(("eval/rho", "eval/finished", "eval/actions", "eval/length_mean", "eval/unfinished"))
    key = key.replace("own-verifier", "own-choose-first")
    chains = {"protocol": {"name": "bisection"}, "scenario": {"name": "state_tracking"}}
    base = (
        HIRONAKA
        if of_hironaka
        else chains
        if key.startswith("eval/worst_case")
        else ROLES
        if "role=" in key or "score_" in key
        else PANEL
        if "judge0" in key
        else CLASSES
        if key.endswith("/nine")
        else GAME
    )
    data = {**base, "sweep": {"metric": key}}
    assert parse_sweep(data).settings.metric == key
    if base is CLASSES:
        assert "ine" in refusal({**base, "sweep": {"metric": key.replace("nine", "nein")}})
        assert "has two verdicts here" in refusal({**ROLES, "sweep": {"metric": key}})


def test_exact_figures_of_language_models_may_decide_where_their_rule_knows_probabilities() -> None:
    poker = {
        "protocol": {"name": "kuhn_poker"},
        "scenario": {"name": "matrix_game"},
        "sweep": {"metric": "eval/exploitability"},
    }
    once = {"agents": {"_default": {"max_invalid_replies": 1}}}
    learning = {**poker, "scenario": {"name": "matrix_game", **once}, "algorithm": {"name": "policy_gradient"}}
    assert parse_sweep(learning).settings.metric == "eval/exploitability"
    assert "are under eval_sampled/exploitability" in refusal({**poker, "algorithm": {"name": "malt"}})
    assert "for example eval_sampled/player0/return" in refusal(
        {**poker, "sweep": {"metric": "eval_sampled/verifier/accuracy"}, "algorithm": {"name": "malt"}}
    )


def test_a_role_decides_where_it_is_drawn() -> None:
    key = "eval/verifier/accuracy/role="
    assert "message_game draws no role by episode, leave role=sneaky out" in refusal(game({"metric": f"{key}sneaky"}))
    assert "did you mean sneaky" in refusal({**ROLES, "sweep": {"metric": f"{key}sneeky"}})


def test_honesty_decides_where_provers_are_after_a_verdict() -> None:
    assert "no prover of message_game is after a verdict" in refusal(game({"metric": "eval/score_difference"}))


def test_a_figure_of_another_scenario_may_not_decide() -> None:
    assert "got 'eval/rho/own-choose-first', expected one of prover" in refusal(
        game({"metric": "eval/rho/own-choose-first"})
    )
    assert "hironaka has no verifier, name another metric, for example eval/rho/own-choose-first" in refusal(
        {**HIRONAKA, "sweep": {}}
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            game({"metric": "evl/verifier/accuracy"}),
            "got 'evl/verifier/accuracy', did you mean eval/verifier/accuracy?",
        ),
        (game({"metric": "eval/verifier/acuracy"}), "did you mean .../accuracy?"),
        (game({"metric": "eval/prover1/return"}), "did you mean prover?"),
        (game({}, evaluation={"greedy": False}), "evaluation.greedy is false, use eval_sampled/verifier/accuracy"),
        (game({"metric": "eval_sampled/prover/return"}, evaluation={"sampled": False}), "evaluation.sampled is false"),
        (TEXT | {"sweep": {}}, "held-out dialogues of language models are under eval_sampled/verifier/accuracy"),
        (TEXT | {"sweep": {"metric": "env_steps"}}, "expected a key of docs/metrics.md: train/..., eval_sampled/..."),
        (
            TEXT | {"sweep": {"metric": "eval_sampled/verifier/accuracy"}, "algorithm": {"test_scheme": "none"}},
            "algorithm.test_scheme is none",
        ),
        (
            {"protocol": {"name": "matrix_game"}, "scenario": {"name": "matrix_game"}, "sweep": {}},
            "matrix_game has no verifier",
        ),
    ],
)
def test_figures_that_cannot_occur_are_refused(data: dict[str, Any], said: str) -> None:
    assert said in refusal(data)


# ------------------------------------------------------------------------------------------------------------
# schedulers


def asha(grace: int = 10, **more: Any) -> dict[str, Any]:
    return {"scheduler": {"name": "asha", "grace_iterations": grace}, **more}


def pbt(interval: int = 10, **more: Any) -> dict[str, Any]:
    return {"num_samples": 4, "scheduler": {"name": "pbt", "interval": interval}, **more}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            game(asha(10), evaluation={"interval": 20}),
            "evaluation.interval: got 20, but asha compares from iteration 10 on",
        ),
        (
            game(asha(10), evaluation={"interval": 0}),
            "evaluation.interval: got 0 (at the end only), but asha compares on the way",
        ),
        (
            game(asha(10), iterations=10, evaluation={"interval": 5}),
            "sweep.scheduler.grace_iterations: got 10 of 10 iterations",
        ),
        (
            game(asha(10, iterations_per_report=4), evaluation={"interval": 5}),
            "expected a divisor of sweep.scheduler.grace_iterations",
        ),
        (
            game(pbt(10), evaluation={"interval": 4}, algorithm={"lr": LR}),
            "sweep.scheduler.interval: got 10, expected a multiple of",
        ),
        (game(pbt(10), evaluation={"interval": 0}, algorithm={"lr": LR}), "evaluation.interval: got 0"),
        (game(pbt(10, seeds=[1]), algorithm={"lr": LR}), "sweep.seeds: under pbt trials take over"),
        (game(pbt(10, num_samples=1), algorithm={"lr": LR}), "a population has two members or more"),
        (game(pbt(10), algorithm={"lr": {"grid": [0.1, 0.2]}}), "it needs a space that is not a grid"),
        (
            game(pbt(10), scenario={"name": "message_game", "num_symbols": {"randint": [4, 9]}}),
            "scenario.num_symbols: pbt cannot change it",
        ),
        (
            game(pbt(10), algorithm={"choice": [{"name": "ppo"}, {"name": "reinforce"}]}),
            "algorithm: pbt cannot change it",
        ),
        (game(pbt(10), seed={"randint": [0, 9]}), "seed: pbt cannot change it"),
        (
            TEXT
            | {"sweep": pbt(2, metric="train/verifier/accuracy"), "algorithm": {"format_warmup": {"randint": [0, 9]}}},
            "use asha or fifo",
        ),
        (
            TEXT | {"sweep": asha(2, metric="eval_sampled/verifier/accuracy"), "algorithm": {"test_scheme": "last"}},
            "algorithm.test_scheme: got last, but asha compares held-out metrics on the way, use all",
        ),
    ],
)
def test_schedulers_need_something_to_compare(data: dict[str, Any], said: str) -> None:
    assert said in refusal(data)


def test_optuna_must_be_there_and_know_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    data = game({"search": {"name": "optuna"}, "num_samples": 6}, algorithm={"lr": LR, "num_epochs": {"grid": [1, 2]}})
    monkeypatch.setattr(spec_module, "find_spec", lambda name: None)
    assert "pip install 'nip_ray[ray,optuna]'" in refusal(data)
    monkeypatch.setattr(spec_module, "find_spec", lambda name: object())
    assert parse_sweep(data).num_trials == 6, "to optuna a grid is a choice"
    assert "optuna knows no randn" in refusal(
        game({"search": {"name": "optuna"}}, algorithm={"lr": {"randn": [1.0, 0.1]}})
    )
    assert "no search space for optuna" in refusal(game({"search": {"name": "optuna"}}))


# ------------------------------------------------------------------------------------------------------------ round
# trips


NUMBERS = st.floats(1e-6, 1e3)
RANGES = st.tuples(NUMBERS, NUMBERS).filter(lambda pair: pair[0] < pair[1]).map(list)
LR_SPACES = (
    st.sampled_from(["uniform", "loguniform"]).flatmap(lambda kind: RANGES.map(lambda ends: {kind: ends}))
    | st.lists(NUMBERS, min_size=1, max_size=4, unique=True).map(lambda values: {"grid": values})
    | st.lists(NUMBERS | st.integers(1, 9), min_size=1, max_size=4, unique=True).map(lambda values: {"choice": values})
)
AGENTS = st.sampled_from(
    [{"verifier": {"hidden": 8}}, {"prover": {"activation": "relu"}}, {"_default": {"hidden": 3}}, {}]
)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=6) | st.sampled_from(
    ["1e-3", "null", "~", "12"]
)
ALGORITHM = {"lr": LR_SPACES, "gamma": st.just({"uniform": [0, 1]}), "num_epochs": st.integers(1, 9)}
SWEEP = {
    "mode": st.sampled_from(["min", "max"]),
    "time_budget_s": NUMBERS,
    "max_concurrent": st.none() | st.integers(1, 9),
}
PARTS = {
    "seed": st.integers(0, 2**40) | st.just({"randint": [0, 9]}),
    "iterations": st.just({"lograndint": [60, 90]}),
    "tracking": st.lists(WORDS, max_size=2).map(lambda words: {"wandb": {"tags": words}}),
    "sweep": st.fixed_dictionaries({}, optional=SWEEP),
}
DATA = st.fixed_dictionaries({"algorithm": st.fixed_dictionaries({}, optional=ALGORITHM)}, optional=PARTS).map(
    lambda parts: {**GAME, "sweep": {}, **parts}
)


@settings(max_examples=50, deadline=None)
@given(DATA, AGENTS)
def test_a_sweep_is_read_back_as_it_was_written(data: dict[str, Any], agents: dict[str, Any]) -> None:
    spec = parse_sweep({**data, "scenario": {"choice": [{"name": "message_game", "agents": agents}]}})
    text = sweep_to_yaml(spec)
    again = parse_sweep(parse_yaml(text, "text"))
    assert again == spec
    assert sweep_to_yaml(again) == text
    assert draw_settings(again) == draw_settings(spec)


@settings(max_examples=50, deadline=None)
@given(DATA)
def test_every_drawn_setting_is_the_config_written_by_hand(data: dict[str, Any]) -> None:
    spec = parse_sweep(data)
    for values in draw_settings(spec):
        config = config_of(spec, values)
        by_hand = {**{key: item for key, item in data.items() if key != "sweep"}, "algorithm": dict(data["algorithm"])}
        for key, value in values.items():
            part, _, name = key.partition(".")
            (by_hand[part] if name else by_hand)[name or part] = value
        assert config == config_from_dict(by_hand)
        assert config_from_dict(parse_yaml(config_to_yaml(config), "text")) == config


CASES = {"few": {"play": {"num_copies": 64}}, "short, hard": {"algorithm": {"gamma": 0.5}, "iterations": 20}}


def test_what_a_case_changes_changes_together_and_combines_with_spaces() -> None:
    spec = parse_sweep(game({"seeds": [1, 2], "cases": CASES}, algorithm={"lr": {"grid": [1e-3, 1e-4]}, "gamma": 0.9}))
    made = [(values["case"], config_of(spec, values)) for values in draw_settings(spec)]
    seen = [
        (case, config.play.num_copies, config.algorithm.gamma, config.iterations, config.algorithm.lr)
        for case, config in made
    ]  # type: ignore[union-attr]
    usual, iterations = ExperimentConfig().play.num_copies, ExperimentConfig().iterations
    assert seen == [
        (*how, lr)
        for lr in (1e-3, 1e-4)
        for how in (("few", 64, 0.9, iterations), ("short, hard", usual, 0.5, 20))
    ]  # fmt: skip
    assert spec.num_trials == 8
    assert parse_sweep(parse_yaml(sweep_to_yaml(spec), "text")) == spec


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"algorithm": {"lr": 1e-3}}, "sweep.cases.a: it changes algorithm.lr, over which there is a search space"),
        ({"algorithm": None}, "sweep.cases.a: it changes algorithm.lr, over which there is a search space"),
        ({"seed": 3}, "sweep.cases.a.seed: a case cannot change it, name sweep.seeds"),
        ({"name": "x"}, "sweep.cases.a.name: a case cannot change it"),
        ({"algorithm": {"gamma": LR}}, "sweep.cases.a: it has a search space"),
        ({"algorithm": {"gama": 0.5}}, "algorithm.gama: unknown key, did you mean gamma? (with case = a)"),
        (3, "sweep.cases.a: got 3, expected mapping"),
    ],
)
def test_cases_that_cannot_be_are_refused(case: Any, said: str) -> None:
    assert said in refusal(game({"cases": {"a": case}}, algorithm={"lr": LR}))


def test_every_setting_of_a_sweep_is_in_its_documentation() -> None:
    page = (ROOT / "docs" / "sweeps.md").read_text()
    for key in keys_of(SweepSettings):
        assert f"`{key}`" in page or f"`sweep.{key}`" in page, key
