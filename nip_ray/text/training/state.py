"""Where a run of language agents stands: `state.json`, written in one step after every stage.

iteration, stage      the stage to be done next (iterations count from 0); `over` once there is none
groups                for each group: its model, and the job that is under way
history               for each iteration begun: group -> the model that it sampled with
run_id                random, made once: part of the keys of all calls and jobs, so that two runs of one config never share any
"""

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from nip_ray.errors import UserError
from nip_ray.storage.folder import RunFolder

STATE = "state.json"
Stage = Literal["format_warmup", "sample", "log", "test", "create_jobs", "await_jobs"]
STAGES: tuple[Stage, ...] = ("format_warmup", "sample", "log", "test", "create_jobs", "await_jobs")


@dataclass(frozen=True)
class GroupState:
    """A group of agents with one model. base: what a fine-tuning from scratch starts from: the config's model, or what it was after
    the format warm-up. model: what speaks for it now.

    job_key: of the fine-tuning under way (None: none); the journal of jobs has the rest.
    """

    base: str
    model: str
    job_key: str | None = None


@dataclass(frozen=True)
class TextState:
    """See the top of this file."""

    run_id: str
    groups: Mapping[str, GroupState]
    iteration: int = 0
    stage: Stage = "sample"
    over: bool = False
    history: tuple[Mapping[str, str], ...] = ()

    def group(self, name: str, **changes: Any) -> "TextState":
        """This state with changes in one group."""
        return replace(self, groups={**self.groups, name: replace(self.groups[name], **changes)})

    def models(self) -> dict[str, str]:
        """Group -> the model that speaks for it now."""
        return {name: group.model for name, group in self.groups.items()}


def first_state(bases: Mapping[str, str], models: Mapping[str, str] | None = None) -> TextState:
    """Before anything was done. bases: group -> the config's model. models: what to start with instead, of groups that have such."""
    chosen = {**bases, **(models or {})}
    return TextState(uuid.uuid4().hex, {name: GroupState(base, chosen[name]) for name, base in bases.items()})


def save_state(folder: RunFolder, state: TextState) -> None:
    """Put `state` into the run folder, in one step."""
    folder.write_json(STATE, {"state": asdict(state)})


def load_state(folder: RunFolder) -> TextState:
    """The state in a run folder. Raises UserError when it is missing or damaged."""
    found: Any = folder.read_json(STATE).get("state")
    try:
        groups = {name: GroupState(**group) for name, group in found["groups"].items()}
        stage = {"rehearse": "format_warmup"}.get(found["stage"], found["stage"])  # as runs of the version before call it
        state = TextState(**{**found, "stage": stage, "groups": groups, "history": tuple(found["history"])})
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder.path / STATE} is damaged ({error}); go back to a copy of the folder") from None
    if state.stage not in STAGES:
        raise UserError(f"{folder.path / STATE} is damaged: it has no stage {state.stage!r}; go back to a copy of the folder")
    return state
