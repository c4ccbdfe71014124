"""What a run is about, in two sentences: the task, and who is paid for what. Read from its config alone, without torch."""

from collections.abc import Mapping
from typing import Any

from nip_ray.protocols.spec import ProtocolParams
from nip_ray.protocols.tables import SHIPPED, table_of

TASKS = {
    "graph_isomorphism": "are two graphs the same up to the names of their nodes (accept) or not (reject)?",
    "image_classification": "does an image belong to the second of two groups of classes (accept) or to the first (reject)?",
    "code_validation": "is a program a correct solution of its problem (accept) or not (reject)?",
    "message_game": "does a secret that only the prover sees lie in the upper half (accept) or in the lower one (reject)?",
    "state_tracking": "does a chain of permutations lead where it is claimed to (accept) or elsewhere (reject)?",
    "hironaka": "Hironaka's polyhedra game: the host chooses coordinates, the agent one of them; the host wins when one point is left.",
}
_LABELS = {
    "graph_isomorphism": ("not isomorphic", "isomorphic"),
    "image_classification": ("of the first group", "of the second group"),
    "code_validation": ("incorrect program", "correct program"),
    "message_game": ("lower half", "upper half"),
    "state_tracking": ("false claim", "true claim"),
}
GAMES_WITHOUT_SPLIT = ("message_game", "matrix_game")  # test instances are those of training
_DECISIONS = ("rejection", "acceptance")


def describe(config: Mapping[str, Any]) -> tuple[str, str]:
    """(the task, who is paid for what), one sentence each. config: an experiment's, as a mapping; what is missing is called unknown."""
    return _task(section(config, "scenario")), _pay(config, section(config, "protocol"))


def label_words(config: Mapping[str, Any]) -> dict[str, str]:
    """Label (reject, accept) -> what it says of an instance, in the words of the task."""
    words = _LABELS.get(str(section(config, "scenario").get("name")), ("label reject", "label accept"))
    return dict(zip(("reject", "accept"), words, strict=True))


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping within a config, {} for anything else."""
    found = config.get(key)
    return found if isinstance(found, dict) else {}


def has_held_out(config: Mapping[str, Any]) -> bool:
    """Whether the run's evaluation asks about other instances than its training did, as far as the scenario's name tells."""
    return section(config, "scenario").get("name") not in GAMES_WITHOUT_SPLIT


def pays_for_rejection(config: Mapping[str, Any]) -> bool:
    """Whether some prover is paid for a rejection, so that an attack on completeness is one; True of a protocol that does not ship."""
    name = section(config, "protocol").get("name")
    return name not in SHIPPED or 0 in table_of(str(name), ProtocolParams()).payment.goals.values()


def _task(scenario: Mapping[str, Any]) -> str:
    name = str(scenario.get("name", "unknown"))[:60]
    if name == "matrix_game":
        return f"Task: {str(scenario.get('game', 'a matrix game'))[:60].replace('_', ' ')}, a small game whose solution is known."
    return f"Task: {TASKS[name]}" if name in TASKS else f"Task: {name}" + (", defined by a plugin." if scenario else ".")


def _pay(config: Mapping[str, Any], protocol: Mapping[str, Any]) -> str:
    name, learning = str(protocol.get("name", "nip" if protocol else "unknown"))[:60], section(config, "algorithm")
    if learning.get("name") == "solo":
        return f"The {str(learning.get('agent', 'verifier'))[:40]} learns the labels alone, by supervised training; nobody is paid."
    if name not in SHIPPED:
        return f"Who is paid for what is defined by the protocol {name}, of a plugin." if protocol else "Who is paid for what is unknown."
    table = table_of(name, ProtocolParams())
    if table.verifier is None:
        return "The rules of the game say what each player is paid."
    right, wrong = (protocol.get(f"verifier_{key}", amount) for key, amount in (("reward", 1), ("incorrect_penalty", -1)))
    if table.payment.shared_reward or (protocol.get("shared_reward") is True and table.provers):
        who = ", ".join(["The verifier", *map(_the, table.provers[:-1])])
        return (
            f"{who} and {_the(table.provers[-1])} are each paid {_amount(right)} for a correct verdict, {_amount(wrong)} for a wrong one."
        )
    parts = [f"The verifier is paid {_amount(right)} for a correct verdict and {_amount(wrong)} for a wrong one"]
    parts += [
        f"{_the(agent)} {_amount(protocol.get('prover_reward', 1))} for {_DECISIONS[table.payment.goals[agent]]}, right or wrong"
        if agent in table.payment.goals
        else f"{_the(agent)} nothing"
        for agent in table.provers
    ]
    if protocol.get("zero_knowledge") is True:
        parts.append("the simulator for imitating the adversarial verifier's conversation, and that one pays it")
    return "; ".join(parts) + "."


def _the(agent: str) -> str:
    """An agent in a sentence: with an article unless it has a number."""
    return agent if agent[-1:].isdigit() else f"the {agent}"


def _amount(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else "?"
