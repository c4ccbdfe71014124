"""Describe a run in two sentences: the task, and who is paid for what. Reads only its config, without torch."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nip_ray.config.members import ADDED
from nip_ray.protocols.payment import Payment, Table, for_being_right, for_verdict
from nip_ray.protocols.spec import ACCEPT, REJECT, TWO_VERDICTS, Protocol
from nip_ray.protocols.tables import SHIPPED, table_of
from nip_ray.settings.protocol import ProtocolSettings

TASKS = {
    "graph_isomorphism": "are two graphs the same up to the names of their nodes (accept) or not (reject)?",
    "image_classification": (
        "does an image belong to the second of two groups of classes (accept) or to the first (reject)?"
    ),
    "code_validation": "is a program a correct solution of its problem (accept) or not (reject)?",
    "message_game": (
        "does a secret that only the prover sees lie in the upper half (accept) or in the lower one (reject)?"
    ),
    "state_tracking": "does a chain of permutations lead where it is claimed to (accept) or elsewhere (reject)?",
    "hironaka": (
        "Hironaka's polyhedra game: the host chooses coordinates, the agent one of them; the host wins when one point"
        " is left."
    ),
}
_LABELS = {
    "graph_isomorphism": ("not isomorphic", "isomorphic"),
    "image_classification": ("of the first group", "of the second group"),
    "code_validation": ("incorrect program", "correct program"),
    "message_game": ("lower half", "upper half"),
    "state_tracking": ("false claim", "true claim"),
}
GAMES_WITHOUT_SPLIT = ("message_game", "matrix_game")  # test instances are those of training
_RULES = {
    "majority": "that of more than half of them",
    "unanimous": "acceptance if all accept, else rejection",
    "veto": "rejection if one rejects, else acceptance",
    "mean": "that of the mean of their probabilities",
}
_MOST_JUDGES = 1000
# large tables do not help, and more agents are named below
_NOT_OF_PAY = ("max_rounds", "min_rounds", "zero_knowledge")
_DECISIONS = ("rejection", "acceptance")


def describe(config: Mapping[str, Any]) -> tuple[str, str]:
    """(the task, who is paid for what), one sentence each. config: an experiment's, as a mapping; missing values are
    called unknown."""
    return _task(section(config, "scenario"), verdicts_of(config)), _pay(config)


def label_words(config: Mapping[str, Any]) -> dict[str, str]:
    """Label -> its meaning, in the words of the task."""
    names = verdicts_of(config)
    if names != TWO_VERDICTS:
        return {name: name for name in names}
    words = _LABELS.get(str(section(config, "scenario").get("name")), ("label reject", "label accept"))
    return dict(zip(TWO_VERDICTS, words, strict=True))


def verdicts_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the verdicts."""
    names = section(config, "protocol").get("verdicts")
    return (
        tuple(names)
        if isinstance(names, list) and len(names) > 2 and all(isinstance(n, str) for n in names)
        else TWO_VERDICTS
    )


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping within a config, {} for anything else."""
    found = config.get(key)
    return found if isinstance(found, dict) else {}


def entries(config: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The mappings of a list within a config, [] for anything else."""
    found = config.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def has_held_out(config: Mapping[str, Any]) -> bool:
    """True if the evaluation uses other instances than training, as far as the scenario's name tells."""
    return section(config, "scenario").get("name") not in GAMES_WITHOUT_SPLIT


def pays_for_rejection(config: Mapping[str, Any]) -> bool:
    """True if some prover is paid for a rejection, so completeness can be attacked; also for an unknown protocol."""
    made = _table(config) if section(config, "protocol").get("name") in SHIPPED else None
    if made is None:
        return True
    if not made.two_verdicts:
        return False
    return any(wanted == REJECT for agent in made.provers for wanted in made.wanted_by(agent, ACCEPT))


def _task(scenario: Mapping[str, Any], verdicts: tuple[str, ...]) -> str:
    name = str(scenario.get("name", "unknown"))[:60]
    if name == "image_classification" and verdicts != TWO_VERDICTS:
        return f"Task: to which class does an image belong: {', '.join(verdicts)[:200]}?"
    if name == "matrix_game":
        return (
            f"Task: {str(scenario.get('game', 'a matrix game'))[:60].replace('_', ' ')}, a small game whose solution is"
            " known."
        )
    if name in TASKS:
        return f"Task: {TASKS[name]}"
    own = next((added[name] for part in ("scenario", "language_scenario") if name in (added := ADDED[part])), None)
    told = " ".join((own.__doc__ or "").split()) if own is not None else ""
    # the signature of a dataclass without a docstring
    if own is not None and told and not told.startswith(f"{own.__name__}("):
        return f"Task: {name}, defined by a plugin. {told[:300]}"
    return f"Task: {name}" + (", defined by a plugin." if scenario else ".")


def _pay(config: Mapping[str, Any]) -> str:
    protocol = section(config, "protocol")
    name, learning = str(protocol.get("name", "nip" if protocol else "unknown"))[:60], section(config, "algorithm")
    if learning.get("name") == "solo":
        return (
            f"The {str(learning.get('agent', 'verifier'))[:40]} learns the labels alone, by supervised training; no"
            " agent is paid."
        )
    table = _table(config) if protocol else None
    if table is None:
        known = f"defined by the protocol {name}, of a plugin" if protocol and name not in SHIPPED else "unknown"
        return f"Who is paid for what is {known}."
    if table.verifier is None:
        return "The rules of the game say what each player is paid."
    first, *others = table.verifiers
    judged = paid(first, table)
    parts = [f"{_the(first)} is paid {judged}"]
    parts += [
        f"{_the(agent)} {'the same' if pay == judged else pay}"
        for agent in (*others, *table.provers)
        if (pay := paid(agent, table))
    ]
    if table.panel is not None:
        own = "its own vote" if table.panel.paid_for == "vote" else "the panel's verdict"
        parts.append(
            f"each of {', '.join(table.verifiers)} is paid for {own}, and the verdict is {_RULES[table.panel.rule]}"
        )
    which = f"which of {' and '.join(table.roles)} it is"
    if not table.two_verdicts and table.roles == table.verdicts:
        which = "which verdict it argues for"
    if table.chooser:
        parts.append(f"{_the(table.chooser)} chooses {which}, and all are told")
    elif table.roles:
        known = ", ".join(map(_the, table.told)) or "no agent"
        parts.append(f"{which} is drawn for each episode, and {known} is told")
    if protocol.get("zero_knowledge") is True:
        parts.append("the simulator for imitating the adversarial verifier's conversation, and that one pays it")
    said = "; ".join(parts) + "."
    return said[0].upper() + said[1:]


def _table(config: Mapping[str, Any]) -> Protocol | None:
    """The protocol, with its valid parameters; None if it cannot be built or is unknown."""
    given = {key: value for key, value in section(config, "protocol").items() if key not in _NOT_OF_PAY}
    if verdicts_of(config) == TWO_VERDICTS:
        given.pop("verdicts", None)
    if isinstance(judges := given.get("judges"), int) and judges > _MOST_JUDGES:
        del given["judges"]
    settings = None
    while settings is None:
        try:
            settings = TypeAdapter(ProtocolSettings).validate_python(given)
        except ValidationError as error:
            for key, *within in (fault["loc"] for fault in error.errors()):
                part = given.pop(str(key), None)
                if within and isinstance(part, dict):
                    given[str(key)] = {name: value for name, value in part.items() if name != within[0]}
    with suppress(Exception):  # a plugin's protocol may be missing or refuse its parameters
        made = table_of(settings.name, settings)
        tables = [made.payment.of(role).table(agent) for role in made.roles or ("",) for agent in made.agents]
        if all({len(row) for row in table} == {len(made.verdicts) + 1} == {len(table) + 1} for table in tables):
            return made
    return None


def paid(agent: str, table: Protocol) -> str:
    """An agent's pay and its condition; by role, where that differs."""
    said = {role: _paid_by(agent, table, table.payment.of(role)) for role in table.roles or ("",)}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    amount = max(table.payment.of(table.roles[0]).table(agent)[0])
    argued = [for_verdict(code, amount, len(table.verdicts)) for code in range(len(table.verdicts))]
    if not table.two_verdicts and [table.payment.of(role).table(agent) for role in table.roles] == argued:
        return f"{amount:g} for the verdict that it argues for, right or wrong"
    return ", ".join(f"when {role} {paid}" for role, paid in said.items())


def _paid_by(agent: str, table: Protocol, payment: Payment) -> str:
    rows = payment.table(agent)
    if not table.two_verdicts:
        return _paid_by_class(agent, table, rows) + _paid_turns(agent, table, payment)
    (right, wrong, end), (missed, found, also) = rows[0], rows[1]
    if rows == for_being_right(right, wrong, end):
        for_what = (
            f"{right:g} for a correct verdict and {wrong:g} for a wrong one"
            if right or wrong
            else "nothing for a verdict"
        )
    elif rows[0] == rows[1] and 0 in (right, wrong):
        for_what = f"{right + wrong:g} for {_DECISIONS[right == 0]}, right or wrong"
    else:
        for_what = (
            f"{found:g} for a true acceptance, {wrong:g} for a false one, {right:g} for a true rejection, {missed:g}"
            " for a false one"
        )
    if end != also or (end and rows != for_being_right(right, wrong, end)):
        for_what += (
            f", {end:g} for no verdict"
            if end == also
            else f", {also:g} or {end:g} for no verdict on a true or a false claim"
        )
    if payment.scoring != "linear" and payment.wants_truth(agent):
        for_what += f", between them by the {'Brier' if payment.scoring == 'brier' else 'logarithmic'} score"
    for_what += _paid_turns(agent, table, payment)
    if error := payment.per_error.get(agent):
        for_what = f"{error:g} for each unit of error in the estimates" + (
            f", {for_what}" if any(map(any, rows)) else ""
        )
    return for_what


def _paid_by_class(agent: str, table: Protocol, rows: Table) -> str:
    """`_paid_by` where there are more than two verdicts."""
    right, wrong, end = rows[0][0], rows[0][1], rows[0][-1]
    given = [code for code, amount in enumerate(rows[0][:-1]) if amount]
    if rows == for_being_right(right, wrong, end, len(rows)):
        for_what = (
            f"{right:g} for a correct verdict and {wrong:g} for a wrong one"
            if right or wrong
            else "nothing for a verdict"
        )
    elif len(given) == 1 and rows == for_verdict(given[0], rows[0][given[0]], len(rows)):
        return f"{rows[0][given[0]]:g} for {table.verdicts[given[0]]}, right or wrong"
    else:
        return "by a table over label and verdict"
    return for_what + (f", {end:g} for no verdict" if end else "")


def _paid_turns(agent: str, table: Protocol, payment: Payment) -> str:
    paid = (
        (speaker, amount)
        for speaker, amount in payment.turns.get(agent, {}).items()
        if amount and speaker not in table.verifiers
    )
    return "".join(f", {amount:g} for each turn of {_the(speaker)}" for speaker, amount in paid)


def _the(agent: str) -> str:
    """An agent in a sentence: with an article unless it has a number."""
    return agent if agent[-1:].isdigit() else f"the {agent}"
