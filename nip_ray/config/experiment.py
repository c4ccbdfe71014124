"""`ExperimentConfig` and `TextExperimentConfig`: the complete definition of an experiment, mirrored 1:1 by YAML.

There are two because networks and language models share little but the protocol, so that no config has unused keys. The
algorithm, or a scenario of only one kind, determines which it is. Every field, default, bound and description comes
from the settings dataclasses that the core reads; unknown keys are refused. Results are the same for the same config,
seed and machine kind on a CPU.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nip_ray.config.fault_texts import fault_text
from nip_ray.config.keys import branches, keys_of, tag_of
from nip_ray.config.plugins import import_needed
from nip_ray.errors import UserError
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.dqn import DQNSettings
from nip_ray.settings.experiment import (
    CheckpointSettings,
    EvaluationSettings,
    FaultToleranceSettings,
    LearnerSettings,
    PlaySettings,
    ProfilingSettings,
    RuntimeSettings,
    StopSettings,
)
from nip_ray.settings.graph_isomorphism import GraphIsomorphismSettings
from nip_ray.settings.hironaka import HironakaSettings
from nip_ray.settings.image_classification import ImageClassificationSettings
from nip_ray.settings.matrix_games import LanguageMatrixGameSettings, MatrixGameSettings
from nip_ray.settings.message_game import MessageGameSettings
from nip_ray.settings.opponents import OpponentSettings
from nip_ray.settings.options import FREE, FREE_AND_RESUMABLE, RESUMABLE
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.settings.ppo import PPOSettings, ReinforceSettings
from nip_ray.settings.protocol import ProtocolSettings
from nip_ray.settings.providers import (
    BudgetSettings,
    DummyProvider,
    LocalProvider,
    OpenAIProvider,
    TrainingServiceProvider,
)
from nip_ray.settings.schedule import UpdateSchedule, WeightSource
from nip_ray.settings.search import SearchSettings
from nip_ray.settings.solo import PretrainingSettings, SoloSettings
from nip_ray.settings.stackelberg import StackelbergSettings
from nip_ray.settings.state_tracking import LanguageStateTrackingSettings, StateTrackingSettings
from nip_ray.settings.text_training import (
    BaseRunSettings,
    ExpertIterationSettings,
    MaltSettings,
    TalkSettings,
    TextFaultToleranceSettings,
)
from nip_ray.settings.tracking import TrackingSettings

ScenarioSettings = Annotated[
    GraphIsomorphismSettings
    | ImageClassificationSettings
    | MessageGameSettings
    | MatrixGameSettings
    | HironakaSettings
    | StateTrackingSettings,
    Field(discriminator="name"),
]
AlgorithmSettings = Annotated[
    PPOSettings | ReinforceSettings | StackelbergSettings | SoloSettings | DQNSettings, Field(discriminator="name")
]

LanguageScenarioSettings = Annotated[
    CodeValidationSettings | LanguageMatrixGameSettings | LanguageStateTrackingSettings, Field(discriminator="name")
]
TextAlgorithmSettings = Annotated[
    ExpertIterationSettings | MaltSettings | PolicyGradientSettings, Field(discriminator="name")
]
AnyProvider = Annotated[
    OpenAIProvider | LocalProvider | TrainingServiceProvider | DummyProvider, Field(discriminator="name")
]


FORMAT_VERSION = 1
"""The format of configs. When raising it, convert earlier versions in `config_from_dict`, and this key with them: it is
then a default, which the fingerprint of a run leaves out."""


def _part(default: Any, description: str, meaning: Mapping[str, Any]) -> Any:
    """A field for a part of a config. meaning: see `nip_ray.settings.options`."""
    return Field(default, description=description, json_schema_extra=dict(meaning))


class Experiment(BaseModel):
    """The common part of all experiments."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        "experiment",
        pattern=r"^[A-Za-z0-9._-]+$",
        description="Name of the run; its folder is called after it.",
        json_schema_extra=dict(FREE),
    )
    seed: int = Field(0, ge=0, description="Every random draw comes from this.")
    iterations: int = Field(
        1000, ge=1, description="Iterations of play and learning.", json_schema_extra=dict(RESUMABLE)
    )
    plugins: tuple[str, ...] = Field(
        (),
        description=(
            "Python files or modules to import first; they register your protocols, scenarios, algorithms, providers."
        ),
        json_schema_extra={"path": "plugin"},
    )
    protocol: ProtocolSettings = Field(ProtocolSettings(), description="Who speaks when, who sees what, who is paid.")
    opponents: OpponentSettings | None = Field(
        None, description="Earlier checkpoints of agents as opponents (none: current ones alone)."
    )
    tracking: TrackingSettings = _part(
        TrackingSettings(), "Where figures go besides the run folder.", FREE_AND_RESUMABLE
    )
    format_version: int = Field(
        FORMAT_VERSION, ge=1, le=FORMAT_VERSION, description="Format of this config; a newer one is refused."
    )

    def __new__(cls, **data: Any) -> Self:
        """Raise one UserError for all faults, as for a YAML file, before pydantic raises its own."""
        if data:
            cls.model_validate(data)
        return super().__new__(cls)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Like pydantic's, after importing the plugins that define members of the config, so a process only needs the
        dumped config.

        Raises one UserError for all faults.
        """
        import_needed(obj, cls)
        if isinstance(obj, Mapping):
            refuse_other_players(obj, cls)
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise UserError(
                *dict.fromkeys(fault_text(detail, cls) for detail in error.errors(include_url=False))
            ) from None

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """As `model_validate`, from JSON."""
        import_needed(pydantic_core.from_json(json_data), cls)
        return super().model_validate_json(json_data, **options)


def names_of(kind: type[Experiment], key: str) -> list[str]:
    """The possible values of `KEY.name` in a config of this class."""
    return [tag_of(member) for member in branches(keys_of(kind)[key].annotation)]


def refuse_other_players(data: Mapping[str, Any], kind: type[Experiment]) -> None:
    """Raise UserError if a scenario or an algorithm belongs to the other class of experiments: one line instead of a
    list of its keys."""
    words = {ExperimentConfig: "agents with networks", TextExperimentConfig: "language models"}
    other = next(one for one in words if one is not kind)
    parts = {
        key: part["name"]
        for key in ("scenario", "algorithm")
        if isinstance(part := data.get(key), Mapping) and "name" in part
    }
    foreign = {
        key: name for key, name in parts.items() if name not in names_of(kind, key) and name in names_of(other, key)
    }
    for key, name in foreign.items():
        rest = next((f"{one}.name: {own} is for {words[kind]}" for one, own in parts.items() if one not in foreign), "")
        hint = (
            f"and {rest}, choose one of {', '.join(names_of(kind, key))}, or change both"
            if rest
            else f"use nip_ray.{other.__name__}"
        )
        raise UserError(f"{key}.name: {name} is for {words[other]}, {hint}")


class ExperimentConfig(Experiment):
    """One experiment with networks: who plays what, how they learn, for how long, and what is kept."""

    scenario: ScenarioSettings = Field(
        GraphIsomorphismSettings(), description="The task, its data and the agents' networks."
    )
    algorithm: AlgorithmSettings = Field(PPOSettings(), description="The learning rule.")
    schedules: dict[str, UpdateSchedule] = Field(
        {}, description="Agent -> the iterations in which it learns (not named: all)."
    )
    initial_weights: dict[str, WeightSource] = Field(
        {}, description="Agent -> agent of another run to take weights from."
    )
    search: SearchSettings | None = Field(
        None, description="Provers that try their messages before they speak (none: without)."
    )
    pretraining: PretrainingSettings = Field(
        PretrainingSettings(), description="Supervised training of bodies before the experiment."
    )
    stop: StopSettings | None = _part(
        None, "When the run ends before its last iteration (none: it does not).", FREE_AND_RESUMABLE
    )
    play: PlaySettings = Field(PlaySettings(), description="How much is played in an iteration, and where.")
    learners: LearnerSettings = _part(LearnerSettings(), "Where gradients are computed.", FREE_AND_RESUMABLE)
    evaluation: EvaluationSettings = _part(
        EvaluationSettings(), "When the verifier is examined on held-out instances.", FREE_AND_RESUMABLE
    )
    checkpoint: CheckpointSettings = _part(CheckpointSettings(), "What is kept for resuming.", FREE_AND_RESUMABLE)
    fault_tolerance: FaultToleranceSettings = _part(
        FaultToleranceSettings(), "How a run continues after losing a process.", FREE_AND_RESUMABLE
    )
    profiling: ProfilingSettings = _part(ProfilingSettings(), "Where its time goes.", FREE_AND_RESUMABLE)
    runtime: RuntimeSettings = _part(RuntimeSettings(), "What must not change a result.", FREE_AND_RESUMABLE)


class TextExperimentConfig(Experiment):
    """One experiment with language models: who plays what, how they are fine-tuned, by whom, and what it may cost."""

    scenario: LanguageScenarioSettings = Field(
        CodeValidationSettings(), description="The task, its data, and who speaks for each agent."
    )
    algorithm: TextAlgorithmSettings = Field(ExpertIterationSettings(), description="The learning rule.")
    providers: dict[str, AnyProvider] = Field(
        {"local": LocalProvider()},
        description="Name -> a service that answers for models and fine-tunes them.",
        json_schema_extra=dict(RESUMABLE),
    )
    budget: BudgetSettings = _part(BudgetSettings(), "What the run may cost.", RESUMABLE)
    base_run: BaseRunSettings | None = Field(
        None, description="Another run that this one starts from (none: no other)."
    )
    talk: TalkSettings = _part(TalkSettings(), "How many dialogues are held at once, and where.", RESUMABLE)
    fault_tolerance: TextFaultToleranceSettings = _part(
        TextFaultToleranceSettings(), "How a run continues after a process hangs.", FREE_AND_RESUMABLE
    )
    runtime: RuntimeSettings = _part(RuntimeSettings(), "What must not change a result.", FREE_AND_RESUMABLE)
