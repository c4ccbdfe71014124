"""What was said, kept in full: `rollouts/NNNNNN.jsonl`, those of held-out items in `rollouts/test-NNNNNN.jsonl`.

A line is one dialogue; of a tree, one for each leaf, with the tree's number and the leaf's path. Dialogues are rebuilt from it exactly,
with the items of the data set by their ids. Iterations count from 1 in file names, as everywhere in a run folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Dialogue, TextScenario, beginning
from nip_ray.play.dialogue_records import dialogue_from_record, dialogue_record
from nip_ray.storage.folder import read_lines, write_lines
from nip_ray.text.dialogues.tasks import Task
from nip_ray.text.training.malt import Node


def rollout_file(run_dir: Path, split: str, iteration: int) -> Path:
    """Where the rollouts of an iteration (from 0) are."""
    return run_dir / "rollouts" / f"{'test-' if split == 'test' else ''}{iteration + 1:06d}.jsonl"


def write_dialogues(path: Path, scenario: TextScenario, tasks: Sequence[Task], dialogues: Sequence[Dialogue]) -> None:
    """One line a dialogue, all in one step."""
    made = zip(tasks, dialogues, strict=True)
    write_lines(path, ({"task": task.number, **by_the_past(task), "dialogue": dialogue_record(scenario, one)} for task, one in made))


def by_the_past(task: Task) -> dict[str, dict[str, int]]:
    """What the record of a dialogue says of those who spoke by earlier weights: nothing where there were none."""
    return {"past": dict(task.past)} if task.past else {}


def write_trees(path: Path, scenario: TextScenario, tasks: Sequence[Task], roots: Sequence[Node]) -> None:
    """One line a leaf, all in one step."""
    write_lines(
        path,
        (
            {"task": task.number, "path": list(leaf.path), "dialogue": dialogue_record(scenario, leaf.dialogue)}
            for task, root in zip(tasks, roots, strict=True)
            for leaf in leaves(root)
        ),
    )


def read_dialogues(path: Path, items: Mapping[int, Any]) -> list[Dialogue]:
    """What `write_dialogues` wrote (of trees: all leaves). items: by id. Raises UserError for a damaged file or a missing item."""
    return [dialogue for _, _, dialogue in _read(path, items)]


def read_trees(path: Path, items: Mapping[int, Any]) -> list[Node]:
    """What `write_trees` wrote. Raises UserError as `read_dialogues` does."""
    trees: dict[int, list[tuple[tuple[int, ...], Dialogue]]] = {}
    for task, place, dialogue in _read(path, items):
        trees.setdefault(task, []).append((place, dialogue))
    return [tree_of(found) for found in trees.values()]


def leaves(root: Node) -> Iterator[Node]:
    """The leaves of a tree, in the order of their paths."""
    if not root.children:
        yield root
    for child in root.children:
        yield from leaves(child)


def tree_of(found: Sequence[tuple[tuple[int, ...], Dialogue]], depth: int = 0) -> Node:
    """The tree with these leaves, each with its path; the same beginnings become one node."""
    path, dialogue = found[0]
    if len(path) == depth:
        return Node(dialogue, path)
    below: dict[int, list[tuple[tuple[int, ...], Dialogue]]] = {}
    for leaf in found:
        below.setdefault(leaf[0][depth], []).append(leaf)
    children = tuple(tree_of(below[number], depth + 1) for number in sorted(below))
    return Node(beginning(dialogue, depth), path[:depth], children)


def _read(path: Path, items: Mapping[int, Any]) -> Iterator[tuple[int, tuple[int, ...], Dialogue]]:
    if not path.is_file():
        raise UserError(f"{path} is missing; go back to a copy of the run folder, or start a new run")
    for number, record in enumerate(read_lines(path), 1):
        try:
            item = items[record["dialogue"]["item"]]
        except (KeyError, TypeError) as error:
            raise UserError(f"{path}: line {number} is about item {error}, which the data of this run does not have") from None
        yield record["task"], tuple(record.get("path", ())), dialogue_from_record(record["dialogue"], item)
