"""Store the results of an attack with a run's other metrics: in its `evaluation.json` and on its report.

Decisions that matter here:
- an attack takes minutes: whether it can be kept is checked first, and failures to keep it are reported without losing
  results;
- only the attack's own entries are written, and only beside metrics of the same checkpoint, split and number of
  instances. A run whose file is missing or damaged gets a new one, with the metrics that the attack came with;
- goals are kept one by one: an attack on soundness leaves an earlier one on completeness as it was.
"""

from collections.abc import Mapping
from typing import Any

from nip_ray.errors import UserError
from nip_ray.evaluation.attack_table import ENTRIES
from nip_ray.progress import say
from nip_ray.storage.folder import EXPORTED, RunFolder

EVALUATION = "evaluation.json"

_ABOUT = ("iteration", "split", "num_instances")
_HOW = ("verifier", "seed", "settings")


def can_be_kept(folder: RunFolder, about: Mapping[str, Any], *, same_instances: bool = True) -> bool:
    """True if an attack's results fit the run's `evaluation.json`; prints why not, or that it replaces a damaged file.

    about: iteration, split and num_instances of what is attacked. same_instances: True if they are the run's own.
    Raises UserError for a file that is not damaged but cannot be read, such as one of a newer version.
    """
    path = folder.path / EVALUATION
    if (folder.path / EXPORTED).is_file():
        say(f"{folder.path} is an export; what the attack finds is not written there")
        return False
    stored, damage = _stored(folder)
    if damage:
        say(f"warning: {damage.partition('; ')[0]}; it will be replaced")
    if stored is None:
        return True
    differing = [
        f"{name} {stored.get(name)} instead of {about[name]}" for name in _ABOUT if stored.get(name) != about[name]
    ]
    if not differing and not same_instances:
        differing = ["a sample of other instances"]
    if differing:
        say(f"{path} is about {', '.join(differing)}; what the attack finds is not written there")
    return not differing


def carried(folder: RunFolder, document: Mapping[str, Any]) -> dict[str, Any]:
    """`document`, new metrics of a finished run, with the attack that its `evaluation.json` has on the same checkpoint,
    split and number of instances."""
    stored, _ = _stored(folder)
    if stored is None or "attack" not in stored or any(stored.get(name) != document.get(name) for name in _ABOUT):
        return dict(document)
    names = ("attack", "deciders_under_attack", *(name for own in ENTRIES.values() for name in own))
    return {**document, **{name: stored[name] for name in names if name in stored}}


def keep(folder: RunFolder, document: Mapping[str, Any], entries: Mapping[str, Any]) -> None:
    """Put an attack's results in `evaluation.json` and rewrite the report. document: the rest of a new file."""
    from nip_ray.evaluation.report import write_report

    try:
        stored, _ = _stored(folder)
        folder.write_json(EVALUATION, merged(document if stored is None else stored, entries))
        write_report(folder.path)
    except UserError as error:
        say(f"warning: {error}; what the attack found was not kept")


def merged(document: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """`document` with the entries of an attack. Sections that were not attacked now keep theirs, if complete."""
    old = document.get("attack")
    old = old if isinstance(old, dict) else {}
    how = {name: old[name] for name in _HOW if name in old}
    complete = [
        part
        for part, names in ENTRIES.items()
        if isinstance(old.get(part), dict) and all(name in document for name in names)
    ]
    gone = {"attack", *(name for part, names in ENTRIES.items() if part not in complete for name in names)}
    rest = {name: value for name, value in document.items() if name not in gone}
    of_members, kept = "deciders_under_attack", {name for part in complete for name in ENTRIES[part]}
    if of_members in entries:
        before = rest.get(of_members)
        before = before if isinstance(before, dict) else {}
        still = {who: {k: v for k, v in (before.get(who) or {}).items() if k in kept} for who in entries[of_members]}
        entries = {**entries, of_members: {who: {**still[who], **found} for who, found in entries[of_members].items()}}
    return {**rest, **entries, "attack": {**{part: {**how, **old[part]} for part in complete}, **entries["attack"]}}


def _stored(folder: RunFolder) -> tuple[dict[str, Any] | None, str]:
    """(the stored document, None if unusable; how the file is damaged, "" if it is not)."""
    path = folder.path / EVALUATION
    if not path.exists():
        return None, ""
    try:
        return folder.read_json(EVALUATION), ""
    except UserError as error:
        if not str(error).startswith(f"{path} is damaged"):
            raise
        return None, str(error)
