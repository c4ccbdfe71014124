"""Settings of trackers, which receive metrics in addition to the run folder."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class WandbSettings:
    """Weights & Biases. The key comes from $WANDB_API_KEY or `wandb login`, never from a config."""

    __pydantic_config__ = FORBID_UNKNOWN

    enabled: bool = option(False, "Send metrics (needs the extra `tracking`).")
    project: str | None = option(None, "Project (none: $WANDB_PROJECT, else nip_ray).")
    entity: str | None = option(None, "Team or user (none: $WANDB_ENTITY, else your own).")
    group: str | None = option(None, "Group of runs (none: the sweep's name, or none).")
    tags: tuple[str, ...] = option((), "Tags of the run.")
    mode: Literal["online", "offline"] = option("online", "Send at once, or keep files for `wandb sync`.")
    checkpoints: bool = option(True, "Keep checkpoints as artifacts.")
    transcripts: bool = option(True, "Keep transcripts as artifacts.")


@dataclass(frozen=True)
class TensorboardSettings:
    """TensorBoard event files in the run folder, under `events/`."""

    __pydantic_config__ = FORBID_UNKNOWN

    enabled: bool = option(False, "Write event files.")


@dataclass(frozen=True)
class MlflowSettings:
    """An MLflow server, or a folder."""

    __pydantic_config__ = FORBID_UNKNOWN

    enabled: bool = option(False, "Send metrics (needs the extra `mlflow`).")
    tracking_uri: str | None = option(
        None, "Server, database or folder (none: $MLFLOW_TRACKING_URI, else MLflow's own default)."
    )
    experiment: str = option("nip_ray", "Name of the experiment there.")
    checkpoints: bool = option(True, "Keep checkpoints as artifacts.")
    transcripts: bool = option(True, "Keep transcripts as artifacts.")


@dataclass(frozen=True)
class TracesSettings:
    """OpenTelemetry spans, sent as OTLP over HTTP. Headers with keys come from $OTEL_EXPORTER_OTLP_HEADERS, never from
    a config."""

    __pydantic_config__ = FORBID_UNKNOWN

    enabled: bool = option(False, "Send spans of stages, dialogues, calls and jobs (extra `traces`).")
    endpoint: str | None = option(
        None,
        "Address of the collector (none: $OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or $OTEL_EXPORTER_OTLP_ENDPOINT, else"
        " localhost:4318).",
    )
    content: bool = option(False, "Send prompts and replies with the spans of calls.")
    weave: bool = option(False, "Send the spans to the Weave page of `wandb`'s project, too.")


@dataclass(frozen=True)
class MirrorSettings:
    """A copy of the run folder in an object store. Credentials come from the environment, never from a config."""

    __pydantic_config__ = FORBID_UNKNOWN

    url: str | None = option(
        None,
        "s3://BUCKET/PATH, gs://BUCKET/PATH or file:///PATH; the folder's name is appended (none: no copy).",
    )
    interval_s: float = option(60.0, "Longest delay in seconds of new rows; checkpoints are copied at once.", gt=0)


@dataclass(frozen=True)
class TrackingSettings:
    """Trackers that receive metrics in addition to the run folder. A failing tracker costs a warning, never a run."""

    __pydantic_config__ = FORBID_UNKNOWN

    wandb: WandbSettings = option(WandbSettings, "Weights & Biases.")
    tensorboard: TensorboardSettings = option(TensorboardSettings, "TensorBoard.")
    mlflow: MlflowSettings = option(MlflowSettings, "MLflow.")
    traces: TracesSettings = option(TracesSettings, "OpenTelemetry spans.")
    mirror: MirrorSettings = option(MirrorSettings, "A copy of the run folder in an object store.")
    ray_metrics: bool = option(True, "Headline metrics for Ray's dashboard, if a run uses Ray.")
