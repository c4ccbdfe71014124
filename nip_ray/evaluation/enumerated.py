"""Exact metrics of games whose situations are all played: nothing is sampled, so there is no uncertainty.

Decisions that matter here:
- a scenario defines which of its instances are one situation (`Scenario.situation_I`). Greedy play treats copies alike,
  so the number of trials is the number of situations, and metrics over all situations are exact;
- such a record has both ends at its estimate, and `exact`, so code that compares intervals needs no special case;
- sampled play is unchanged: every episode draws its own actions.
"""

from typing import Any

import torch
from torch import Tensor

from nip_ray.play.scenario import Scenario


def distinct_part(scenario: Scenario, id_B: Tensor) -> float | None:
    """Situations among these instances per instance; None where the instances are a sample, or situations are not all
    among them equally often."""
    situation_I = scenario.situation_I()
    if situation_I is None or len(id_B) == 0:
        return None
    found, count = situation_I[id_B.to(situation_I.device)].unique(return_counts=True)
    every = len(found) == len(situation_I.unique()) and bool((count == count[0]).all())
    return len(found) / len(id_B) if every else None


def one_of_each(scenario: Scenario, id_B: Tensor) -> Tensor | None:
    """The place of the first instance of each situation; None where `distinct_part` has none."""
    situation_I = scenario.situation_I()
    if situation_I is None or distinct_part(scenario, id_B) is None:
        return None
    found = situation_I[id_B.to(situation_I.device)].tolist()
    return torch.tensor(sorted(found.index(situation) for situation in set(found)))


def as_exact(tree: Any, part: float | None) -> Any:
    """`tree` with each {"estimate", "lower", "upper", "n"} made exact. part: of `distinct_part` (None: unchanged)."""
    if part is None or not isinstance(tree, dict | list):
        return tree
    if isinstance(tree, list):
        return [as_exact(item, part) for item in tree]
    if {"estimate", "lower", "upper", "n"} <= tree.keys():
        ends = {"lower": tree["estimate"], "upper": tree["estimate"], "n": round(tree["n"] * part)}
        return {**tree, **ends, "exact": True} if tree["estimate"] is not None else tree
    return {key: as_exact(item, part) for key, item in tree.items()}


def attack_as_exact(entries: dict[str, Any], part: float | None) -> dict[str, Any]:
    """The entries of an attack, those of the search over all messages and of greedy attackers made exact; the latter
    if the verifier was greedy, too."""
    if part is None:
        return entries
    drawn = entries["attack"].get("verifier") == "sampled"
    made = {**entries, "attack": dict(entries["attack"])}
    for goal, table in entries["attack"].items():
        if not (isinstance(table, dict) and "attackers" in table):
            continue
        known = ("held_out", "fooled")  # the instances kept back for selection are a sample
        rows = [
            {**row, **{key: as_exact(row[key], part) for key in known if key in row}}
            if row["mode"] == "greedy" and not drawn
            else row
            for row in table["attackers"]
        ]
        every = {key: as_exact(table[key], part) for key in ("every_message", "every_message_fooled") if key in table}
        made["attack"][goal] = {**table, "attackers": rows, **every}
        greedy = not drawn and any(row["chosen"] and row["mode"] == "greedy" for row in rows)
        exact = {
            f"{goal}_under_attack": greedy,
            goal: greedy,
            "soundness_error": goal == "soundness" and (greedy or any(every.values())),
        }
        made |= {name: as_exact(made[name], part) for name, known in exact.items() if known and name in made}
    return made
