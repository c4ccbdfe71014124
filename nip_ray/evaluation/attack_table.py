"""The goals of an attack and its document: rows of attackers in, entries of `evaluation.json` out, for networks and for
language models.

Decisions that matter here:
- the attacker that counts is chosen by its row's "selection", the share of rightly judged instances that no measurement
  uses;
- with more than two verdicts each is attacked on its own (``soundness/<verdict>``). Over all, an instance counts as
  right only if it was judged rightly under every wrong verdict;
- attackers of a panel are paid for its verdict. For each member, the attacker that did best against its own vote
  counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nip_ray.errors import UserError
from nip_ray.evaluation.intervals import ratio
from nip_ray.protocols import ACCEPT, REJECT, Protocol
from nip_ray.settings.attack import AttackSettings

LABELS = {"soundness": REJECT, "completeness": ACCEPT}
"""Goal -> the label of its instances, which is the right verdict, where there are two."""
ENTRIES = {
    "soundness": ("soundness_error", "soundness_under_attack", "questions"),
    "completeness": ("completeness_under_attack",),
    "refusal": ("refusal",),
}
"""Section of an attack -> its entries in `evaluation.json`, in addition to its table in "attack"."""


Row = dict[str, Any]
"""An attacker: name, kind, size, seed, iterations, mode, selection, held_out, fooled, undecided, curve; see
docs/evaluation.md."""
ByInstance = Mapping[str, Mapping[Any, float]]
"""Result of a goal: name -> instance -> share of plays. wrong, fooled: against the attacker that counts; where known
also ever_wrong: against any attacker, and every_wrong, every_fooled: over all messages."""


@dataclass
class AttackTable:
    """The document of an attack, goal by goal. how: entries shared by the tables of all goals (verifier, seed,
    settings). latest: see `strongest`."""

    protocol: Protocol
    how: Mapping[str, Any]
    latest: bool = False
    document: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    parts: list[ByInstance] = field(default_factory=list)

    def add(
        self,
        goal: str,
        agents: Sequence[str],
        rows: Sequence[Row],
        by_member: Mapping[str, tuple[Sequence[Row], Mapping[str, Any]]],
        *,
        winner: int | None = None,
        **more: Any,
    ) -> None:
        """Add a goal that was attacked by `agents`. by_member: member of a panel -> rows for its own vote, and their
        "every_message…" entries.

        winner: the row that counts (None: `strongest`). more: further entries of the goal's table.
        """
        wanted = wanted_for(self.protocol, goal)
        roles = attacking_roles(self.protocol, wanted)
        about = {
            "agents": list(agents),
            **({"label": 1 - wanted} if self.protocol.two_verdicts else {}),
            "wanted": self.protocol.verdicts[wanted],
            **({"roles": list(roles)} if roles else {}),
        }
        table = {**about, "attackers": list(rows), "any_attacker": None, "every_message": None, **more}
        self._enter(goal, strongest(rows, self.latest) if winner is None else winner, table)
        for who, (own, every) in by_member.items():
            member = self.document.setdefault("deciders_under_attack", {}).setdefault(who, {})
            record = choose(own, strongest(own, self.latest))
            member |= entries_of(self.protocol, goal, record, {"attackers": own, **every})

    def _enter(self, goal: str, winner: int, table: dict[str, Any]) -> None:
        record = choose(table["attackers"], winner)
        self.document |= entries_of(self.protocol, goal, record, table)
        self.details[section_of(self.protocol, goal)] = {**table, **self.how}

    def entries(self) -> dict[str, Any]:
        """All entries; with more than two verdicts also those over all of `parts`, which are in the order of `add`."""
        if not self.protocol.two_verdicts and self.parts:
            self._enter("soundness", 0, self._over_all())
        return {**self.document, "attack": {**self.how, **self.details}}

    def _over_all(self) -> dict[str, Any]:
        """The table of all wrong verdicts together: an instance counts as right only if judged rightly under each."""
        goals = list(self.details.values())
        instances = sorted({one for part in self.parts for one in part["wrong"]})

        def worst(name: str) -> npt.NDArray[np.float64] | None:
            if any(name not in part for part in self.parts):
                return None
            return np.array(
                [max(part[name].get(one, 0.0) for part in self.parts) for one in instances], dtype=np.float64
            )

        def share(worst_I: npt.NDArray[np.float64] | None, wrong: bool = True) -> dict[str, Any] | None:
            return None if worst_I is None else expected(1 - worst_I if wrong else worst_I)

        mode = "sampled" if self.how["verifier"] == "sampled" else ""
        row = {
            "name": "the chosen one for each verdict",
            "kind": "chosen",
            "size": None,
            "seed": None,
            "iterations": 0,
            "mode": mode,
        }
        row |= {"selection": dict.fromkeys(("estimate", "lower", "upper")) | {"n": 0}, "undecided": None, "curve": []}
        return {
            "agents": sorted({agent for one in goals for agent in one["agents"]}),
            "wanted": [one["wanted"] for one in goals],
            "attackers": [{**row, "held_out": share(worst("wrong")), "fooled": share(worst("fooled"), wrong=False)}],
            "any_attacker": share(worst("ever_wrong")),
            "every_message": share(worst("every_wrong")),
            "every_message_fooled": share(worst("every_fooled"), wrong=False),
        }


def strongest(rows: Sequence[Row], latest: bool = False) -> int:
    """The index of the row that counts: the fewest rightly judged instances in "selection". latest: the last among
    equals, not the first."""
    return min(range(len(rows)), key=lambda row: (rows[row]["selection"]["estimate"], -row if latest else row))


def choose(rows: Sequence[Row], winner: int) -> dict[str, Any]:
    """Mark the row that counts by "chosen", all others as not chosen, and return its record."""
    for number, row in enumerate(rows):
        row["chosen"] = number == winner
    return {**rows[winner]["held_out"], "attacker": rows[winner]["name"], "undecided": rows[winner]["undecided"]}


def expected(share_I: npt.ArrayLike) -> dict[str, Any]:
    """The record of shares (I,) that are each known exactly: counts, or the mean of probabilities."""
    share = np.asarray(share_I, dtype=np.float64).clip(0, 1).round(6)
    return ratio(share, np.ones_like(share)).record()


def refuse_unfit(protocol: Protocol) -> None:
    """Raise UserError for a protocol without a verifier to fool or a prover to fool it."""
    if protocol.verifier is None:
        raise UserError(f"--attack: {protocol.name} has no verifier, so --attack does not apply; leave it out")
    if not protocol.provers:
        raise UserError(f"--attack: {protocol.name} has no prover who could fool the verifier; leave it out")


def attacked_goals(protocol: Protocol, settings: AttackSettings) -> tuple[str, ...]:
    """The requested goals, or else those that some prover is paid for; soundness where no prover is paid for either.

    With more than two verdicts: the soundness of each verdict that some prover is paid for, or of all where none is.
    Raises UserError for an unknown goal.
    """
    if not protocol.two_verdicts:
        if settings.goals is not None and set(settings.goals) - {"soundness"}:
            raise UserError(
                "evaluation.attack.goals: got completeness, but of more than two verdicts the soundness of each is"
                " attacked"
            )
        codes = [code for code in range(len(protocol.verdicts)) if _paid(protocol, code)] or range(
            len(protocol.verdicts)
        )
        return tuple(f"soundness/{protocol.verdicts[code]}" for code in codes)
    paid = tuple(goal for goal, right in LABELS.items() if _paid(protocol, 1 - right))
    return settings.goals or paid or ("soundness",)


def wanted_for(protocol: Protocol, goal: str) -> int:
    """The verdict that attackers of a goal want."""
    return 1 - LABELS[goal] if protocol.two_verdicts else protocol.verdicts.index(goal.removeprefix("soundness/"))


def section_of(protocol: Protocol, goal: str) -> str:
    """Where an attack on `goal` is reported: completeness is "refusal" where no prover is paid for a rejection."""
    return "refusal" if goal == "completeness" and not _paid(protocol, REJECT) else goal


def entries_of(protocol: Protocol, goal: str, record: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of an attack apart from its table. record: of the attacker that counts. The soundness error is the
    share of false claims accepted: over all messages where they were enumerated, else against that attacker."""
    section = section_of(protocol, goal)
    if section == "refusal":
        reason = f"no prover of {protocol.name} is paid for a rejection; one who wants it can always fail to prove"
        return {"refusal": {**record, "reason": reason}}
    name, _, verdict = goal.partition("/")
    if name != "soundness":
        return {f"{goal}_under_attack": record}
    chosen = next(row for row in table["attackers"] if row["chosen"])
    every = table.get("every_message_fooled")
    error = {**chosen["fooled"], "by": chosen["name"]} if every is None else {**every, "by": "every_message"}
    found = {"soundness_error": error, "soundness_under_attack": record, "questions": table.get("questions")}
    return {f"{key}/{verdict}": value for key, value in found.items()} if verdict else found


def attacking_agents(protocol: Protocol, wanted: int) -> tuple[str, ...]:
    """The attackers for the verdict `wanted`: `paid_agents`, or all provers where none is paid for it."""
    return paid_agents(protocol, wanted) or protocol.provers


def paid_agents(protocol: Protocol, wanted: int) -> tuple[str, ...]:
    """The provers paid for `wanted` where it is wrong, at least in a role. One that chooses its side attacks alone."""
    if protocol.chooser is not None:
        return (protocol.chooser,)
    return _paid(protocol, wanted)


def _paid(protocol: Protocol, wanted: int) -> tuple[str, ...]:
    """The same, including provers that do not choose."""
    return tuple(agent for agent in protocol.provers if _roles_for(protocol, agent, wanted) is not None)


def _roles_for(protocol: Protocol, agent: str, wanted: int) -> set[str] | None:
    """The roles in which a prover is after `wanted` where it is wrong; None where it never is."""
    labels = (label for label in range(len(protocol.verdicts)) if label != wanted)
    found = [protocol.wanted_by(agent, label).get(wanted) for label in labels]
    return None if all(roles is None for roles in found) else {role for roles in found for role in roles or ()}


def attacking_roles(protocol: Protocol, wanted: int) -> tuple[str, ...]:
    """The roles of attacked episodes: those in which some prover is paid for `wanted` where it is wrong; () where an
    attacker chooses its own."""
    if protocol.chooser is not None:
        return ()
    sought = {role for agent in protocol.provers for role in _roles_for(protocol, agent, wanted) or ()}
    return tuple(role for role in protocol.roles if role in sought) or protocol.roles
