"""docs/status.md has a row for every protocol, a column for every rule, and "refused" where a config is refused."""

from typing import Any

import pytest

from nip_ray.config.load import config_from_dict
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.protocols.tables import BOUND_TO_SCENARIO, SHIPPED
from nip_ray.rllib.registry import ALGORITHMS
from nip_ray.text.training.rules import TEXT_ALGORITHMS
from tests.docs.blocks import ROOT

pytestmark = pytest.mark.usefixtures("no_plugins")

SIGNS = ("🟢", "🟡", "⚪", "–")
SPLIT = ("bisection", "prover_estimator")
WORDS: dict[str, Any] = {"_default": {"provider": "local", "model": "words", "max_invalid_replies": 1}}


def tables() -> list[dict[str, dict[str, str]]]:
    """Each table of signs: protocol -> column -> sign."""
    found: list[dict[str, dict[str, str]]] = []
    titles: list[str] = []
    for line in (ROOT / "docs" / "status.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| protocol |"):
            titles = cells[1:]
            found.append({})
        elif line.startswith("| ") and titles:
            found[-1].update({name: dict(zip(titles, cells[1:], strict=True)) for name in cells[0].split(", ")})
    return found


NETWORKS, LANGUAGE, TASKS = tables()
POKER = ("kuhn_poker", "leduc_poker")
ROWS = list(NETWORKS)


def protocol_of(row: str) -> dict[str, Any]:
    name, _, zero_knowledge = row.partition(" ")
    return {"name": name, **({zero_knowledge: True} if zero_knowledge else {})}


def refused(row: str, task: dict[str, Any], rule: dict[str, Any]) -> bool:
    """A config of this protocol, task and rule is refused."""
    name = row.partition(" ")[0]
    game = {"game": name} if name in POKER and task["name"] == "matrix_game" else {}
    config: dict[str, Any] = {"protocol": protocol_of(row), "scenario": {**task, **game}, "algorithm": rule}
    if "agents" in task:
        config["providers"] = {"local": {"name": "local"}}
    if rule["name"] == "dqn":
        config["evaluation"] = {"sampled": False}
    try:
        check(config_from_dict(config))
    except UserError:
        return True
    return False


def own_task(row: str) -> str:
    name = row.partition(" ")[0]
    return BOUND_TO_SCENARIO.get(name, "state_tracking" if name in SPLIT else "graph_isomorphism")


def own_words(row: str) -> str:
    name = row.partition(" ")[0]
    return "matrix_game" if name in POKER else "state_tracking" if name in SPLIT else "code_validation"


def rule_of(name: str, row: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"name": name}
    if name == "solo":
        rule["agent"] = {
            "matrix_game": "player0",
            **dict.fromkeys(POKER, "player0"),
            "hironaka": "host",
            "judge_panel": "judge0",
        }.get(row, "verifier")
    return rule if name in ("dqn", *TEXT_ALGORITHMS) else {**rule, "minibatch_size": 400 if row == "hironaka" else 64}


def test_every_protocol_has_a_row_and_every_rule_a_column() -> None:
    for table in (NETWORKS, LANGUAGE, TASKS):
        assert {row.partition(" ")[0] for row in table} == set(SHIPPED)
        assert sorted(table) == sorted(ROWS)
        assert {sign for cells in table.values() for sign in cells.values()} <= set(SIGNS)
    assert set(NETWORKS["nip"]) == set(ALGORITHMS)
    assert set(LANGUAGE["nip"]) == set(TEXT_ALGORITHMS)


@pytest.mark.parametrize("row", ROWS)
def test_what_is_refused_is_marked(row: str) -> None:
    for name, sign in NETWORKS[row].items():
        assert refused(row, {"name": own_task(row)}, rule_of(name, row)) == (sign == "–"), name
    for name, sign in LANGUAGE[row].items():
        assert refused(row, {"name": own_words(row), "agents": WORDS}, rule_of(name, row)) == (sign == "–"), name


@pytest.mark.parametrize("row", ROWS)
def test_tasks_that_are_refused_are_marked(row: str) -> None:
    name = row.partition(" ")[0]
    for title, sign in TASKS[row].items():
        if title == "own game":
            task: dict[str, Any] = {"name": BOUND_TO_SCENARIO.get(name, "message_game")}
        elif title in ("code_validation", "state_tracking in words"):
            task = {"name": title.partition(" ")[0], "agents": WORDS}
        else:
            task = {"name": title}
        rule = "expert_iteration" if "agents" in task else "ppo"
        assert refused(row, task, rule_of(rule, row)) == (sign == "–"), title
