"""What the newest stored test of a run says, as `evaluation.json` has it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nip_ray.protocols import Protocol
from nip_ray.scenarios.language import LanguageScenarioKind
from nip_ray.text.dialogues.rollouts import read_dialogues, rollout_file
from nip_ray.text.training.metrics import dialogue_record


def last_test(
    run_dir: Path, iterations: int, items: Mapping[int, Any], protocol: Protocol, kind: LanguageScenarioKind
) -> dict[str, Any] | None:
    """Figures with intervals of the last of `iterations` that was tested; None where none was.

    items: the test items by id. kind: of the scenario. Raises UserError for a damaged file.
    """
    tested = [i for i in range(iterations) if rollout_file(run_dir, "test", i).is_file()]
    if not tested:
        return None
    dialogues = read_dialogues(rollout_file(run_dir, "test", tested[-1]), items)
    record = dialogue_record(dialogues, protocol, groups=kind.groups)
    count = len({dialogue.item.id for dialogue in dialogues})
    return {"iteration": tested[-1] + 1, "split": "test", "num_instances": count, "held_out": kind.held_out, "sampled": record}
