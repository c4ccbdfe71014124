"""A file of one's own registers scenarios and algorithms, and configs name them like those that ship."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import config_from_dict, config_to_yaml
from nip_ray.config.members import add, known
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.plugins import register_algorithm, register_language_scenario, register_scenario, register_text_algorithm
from nip_ray.protocols import Protocol, from_settings
from nip_ray.scenarios.language import LanguageScenarioKind
from nip_ray.scenarios.message_game.scenario import MessageGame, build_message_game
from nip_ray.scenarios.registry import build_scenario
from nip_ray.settings.heads import LrFactors
from nip_ray.settings.message_game import MessageAgentSettings, MessageGameSettings
from nip_ray.settings.options import FORBID_UNKNOWN, option
from nip_ray.settings.policy_gradient import TokenTrainingSettings
from nip_ray.settings.ppo import OnPolicySettings
from nip_ray.settings.text_training import TextTrainingSettings
from nip_ray.text.training.rules import TextRule

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
HAYSTACK: dict[str, Any] = {
    "plugins": [str(EXAMPLES / "own_scenario.py")],
    "protocol": {"name": "nip", "min_rounds": 3, "max_rounds": 4},
    "scenario": {"name": "haystack", "num_places": 8, "agents": {"verifier": {"hidden": 16}}},
    "algorithm": {"minibatch_size": 64},
}


pytestmark = pytest.mark.usefixtures("no_plugins")


@dataclass(frozen=True)
class Mine:
    """A scenario's settings with all that it takes."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["mine"] = option("mine", "The task.")
    size: int = option(3, "How large.", ge=2)
    agents: dict[str, MessageAgentSettings] = option(dict, "Agents.")


def config(scenario: dict[str, Any]) -> ExperimentConfig:
    made = config_from_dict({"protocol": {"name": "nip"}, "scenario": scenario})
    assert isinstance(made, ExperimentConfig)
    return made


def test_an_addition_has_keys_like_any_other() -> None:
    register_scenario(Mine, build_message_game)
    made = config({"name": "mine", "size": 4, "agents": {"prover": {"hidden": 8}}})
    assert isinstance(made.scenario, Mine)
    assert made.scenario.agents["prover"].hidden == 8
    check(made)
    assert config_from_dict(json.loads(made.model_dump_json())) == made
    assert "size: 4" in config_to_yaml(made)
    for scenario, said in (
        ({"name": "mine", "size": 1}, "scenario.size: got 1, expected integer >= 2"),
        ({"name": "mine", "sise": 3}, "scenario.sise: unknown key, did you mean size"),
        (
            {"name": "mine", "agents": {"prover": {"hiden": 3}}},
            "scenario.agents.prover.hiden: unknown key, did you mean hidden",
        ),
        ({"name": "mime"}, "scenario.name: got 'mime', did you mean mine"),
    ):
        with pytest.raises(UserError, match=said):
            config(scenario)


def test_a_name_is_taken_once_but_a_cell_can_be_run_twice() -> None:
    register_scenario(Mine, build_message_game)

    def cell() -> type:
        @dataclass(frozen=True)
        class Mine(MessageGameSettings):
            __pydantic_config__ = FORBID_UNKNOWN
            name: Literal["again"] = option("again", "The task.")  # type: ignore[assignment]

        return Mine

    first, second = cell(), cell()
    register_scenario(first, build_message_game)
    register_scenario(second, build_message_game)
    assert type(config({"name": "again"}).scenario) is second

    with pytest.raises(UserError, match=r"'message_game' is registered already"):
        register_scenario(MessageGameSettings, build_message_game)


@pytest.mark.parametrize(("labels", "said"), [((0, 2), "2"), ((0, -1), "-1"), ((3, 2), "2, 3")])
def test_labels_beyond_the_two_verdicts_are_refused(labels: tuple[int, int], said: str) -> None:
    def build(protocol: Protocol, settings: MessageGameSettings) -> MessageGame:
        made = build_message_game(protocol, settings)
        made.label_I = torch.tensor(labels)[made.label_I]
        return made

    @dataclass(frozen=True)
    class Labelled(MessageGameSettings):
        __pydantic_config__ = FORBID_UNKNOWN
        name: Literal["labelled"] = option("labelled", "The task.")  # type: ignore[assignment]

    register_scenario(Labelled, build)
    made = config_from_dict({"protocol": {"name": "message_game"}, "scenario": {"name": "labelled"}})
    assert isinstance(made, ExperimentConfig)
    with pytest.raises(
        UserError, match=rf"scenario.name: 'labelled' has the labels {said}, but 'message_game' has two verdicts"
    ):
        build_scenario(from_settings(made.protocol), made.scenario)


def settings_class(**fields: Any) -> type:
    """A frozen settings class with these (type, default) fields."""
    body = {name: option(default, "What it is.") for name, (_, default) in fields.items()}
    annotations = {name: kind for name, (kind, _) in fields.items()}
    made = type(
        "Odd",
        (),
        {"__annotations__": annotations, "__pydantic_config__": FORBID_UNKNOWN, "__module__": __name__, **body},
    )
    return dataclass(frozen=True)(made)


@dataclass(frozen=True)
class Loose:
    name: Literal["loose"] = option("loose", "The task.")
    agents: dict[str, MessageAgentSettings] = option(dict, "Agents.")


@dataclass
class Thawed:
    name: Literal["thawed"] = "thawed"


def rule_settings(name: str, *bases: type, **kinds: Any) -> type:
    """Those of a learning rule of language models. kinds: of further fields."""
    body = {
        "__annotations__": {"name": Literal[name], **kinds},
        "name": option(name, "A rule."),
        "__module__": __name__,
    }  # type: ignore[valid-type]
    body |= {key: option(kind, "More.") for key, kind in kinds.items()}
    return dataclass(frozen=True)(type("Odd", bases or (TextTrainingSettings,), body))


NAME = (Literal["odd"], "odd")
AGENTS = (dict[str, MessageAgentSettings], dict)


@pytest.mark.parametrize(
    ("part", "settings", "said"),
    [
        ("scenario", 3, "must be a frozen dataclass"),
        ("scenario", Thawed, "must be a frozen dataclass"),
        ("scenario", Loose, "needs `__pydantic_config__ = FORBID_UNKNOWN`"),
        ("scenario", settings_class(agents=AGENTS), "needs a field `name: Literal"),
        ("scenario", settings_class(name=(str, "odd"), agents=AGENTS), "needs a field `name: Literal"),
        ("scenario", settings_class(name=NAME), "needs a field `agents"),
        ("scenario", settings_class(name=NAME, agents=AGENTS, place=(Path, Path())), "place: a config cannot hold"),
        ("scenario", settings_class(name=NAME, agents=(dict[str, LrFactors], dict)), "LrFactors needs a field `kind"),
        (
            "language_scenario",
            settings_class(name=NAME, agents=AGENTS),
            r"needs a field `agents: dict\[str, LanguageAgentSettings\]",
        ),
        ("text_algorithm", settings_class(name=(Literal[3], 3)), "needs a field `name: Literal"),
        (
            "scenario",
            settings_class(name=NAME, agents=AGENTS, size=(int, "3")),
            "size: its default is '3', expected integer",
        ),
        ("text_algorithm", settings_class(name=NAME), "must derive from .*TextTrainingSettings"),
        (
            "text_algorithm",
            rule_settings("odd", type("Base", (TextTrainingSettings,), {"faults": lambda self: "no"})),
            r"faults\(\) gives 'no'",
        ),
        ("text_algorithm", rule_settings("ppo"), "'ppo' is a learning rule of networks already"),
        (
            "algorithm",
            settings_class(name=NAME, lr=(float, 0.1)),
            "lacks minibatch_size, num_epochs, max_grad_norm, which",
        ),
    ],
)
def test_what_settings_lack_is_said_at_once(part: Any, settings: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"{part.replace('_', ' ')} settings .*{said}"):
        add(part, settings)
    assert "odd" not in known(part)


def test_only_configs_of_the_rllib_room_are_algorithms() -> None:
    with pytest.raises(UserError, match="is not a subclass of ProtocolAlgorithmConfig"):
        register_algorithm(OnPolicySettings)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is not a LanguageScenarioKind"):
        register_language_scenario(Mine)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="items: 3 is not a function"):
        register_language_scenario(LanguageScenarioKind(Mine, len, 3, len))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is not a TextRule"):
        register_text_algorithm(Mine)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is not a function of"):
        register_scenario(Mine, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bases", "given", "said"),
    [
        ((), {}, "give exactly one of"),
        ((), {"examples": len, "pairs": len}, "give exactly one of"),
        ((), {"advantages": len}, "derive settings from TokenTrainingSettings where"),
        ((TokenTrainingSettings,), {"examples": len}, "derive settings from TokenTrainingSettings where"),
        ((TokenTrainingSettings,), {"advantages": len}, "derive settings from RatioClipSettings too"),
        ((TokenTrainingSettings,), {"advantages": len, "loss": len, "figures": len}, "figures is for"),
        ((), {"examples": len, "loss": len}, "loss is for"),
        ((), {"pairs": len}, "set `replaces_guesses = False`"),
        ((), {"examples": 3}, "examples: 3 is not a function"),
        ((TokenTrainingSettings,), {"advantages": len, "loss": None}, "loss: None is not a function"),
    ],
)
def test_a_rule_of_language_models_is_of_one_piece(bases: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        register_text_algorithm(TextRule(rule_settings("odd", *bases), **given))
    assert "odd" not in known("text_algorithm")


def test_how_many_are_played_is_a_whole_number() -> None:
    with pytest.raises(UserError, match="group_size: how many are played, expected int"):
        register_text_algorithm(TextRule(rule_settings("odd", TextTrainingSettings, group_size=str), examples=len))  # type: ignore[arg-type]


def test_a_configs_plugin_is_imported_when_it_names_what_is_not_known() -> None:
    assert "haystack" not in known("scenario")
    dumped = config_from_dict(HAYSTACK).model_dump(mode="json")
    assert "haystack" in known("scenario")
    made = ExperimentConfig.model_validate(dumped)
    check(made)
    assert made.scenario.agents["verifier"].hidden == 16  # type: ignore[union-attr]
    assert ExperimentConfig.model_validate_json(json.dumps(dumped)) == made


def test_a_plugin_that_is_missing_or_broken_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"plugins: .*nowhere.py does not exist"):
        config_from_dict({**HAYSTACK, "scenario": {"name": "hay"}, "plugins": ["nowhere.py"]})
    (tmp_path / "broken.py").write_text("\nimport no_such_module")
    with pytest.raises(UserError, match=r"plugins: .*cannot be imported \(line 2\): ModuleNotFoundError"):
        config_from_dict({**HAYSTACK, "scenario": {"name": "hay"}, "plugins": [str(tmp_path / "broken.py")]})
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UserError, match=r"scenario.name: got 'hay', .* \(one of your own needs `plugins`\)"):
        config_from_dict({**HAYSTACK, "scenario": {"name": "hay"}, "plugins": [str(tmp_path / "empty.py")]})


def test_a_config_that_names_nothing_new_imports_no_plugin(tmp_path: Path) -> None:
    """So that `--dry-run` of a config with a protocol of one's own stays instant."""
    (tmp_path / "loud.py").write_text("raise RuntimeError('imported')")
    config_from_dict({"plugins": [str(tmp_path / "loud.py")], "scenario": {"name": "message_game"}})


def test_the_schema_has_a_plugins_keys(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    done = CliRunner().invoke(app, ["schema", "--plugin", str(EXAMPLES / "own_scenario.py"), "--out", str(file)])
    assert done.exit_code == 0, done.output
    assert "num_places" in json.loads(file.read_text())["$defs"]["HaystackSettings"]["properties"]
    assert CliRunner().invoke(app, ["schema", "--plugin", "nowhere.py"]).exit_code == 2
