"""Every protocol under every learning rule, at a tiny size: it trains, is saved, restored and continues exactly, and is
examined."""

from pathlib import Path
from typing import Any

import pytest

from tests.rllib.experiments import experiment, game_id
from tests.rllib.matrix import PROOFS, RULES, Pair, diagonal, goes_on_exactly, rule_id

PROTOCOLS = [
    *PROOFS,
    dict(name="message_game", max_rounds=3),
    dict(name="matrix_game", max_rounds=3),
    dict(name="kuhn_poker"),
]
GAMES = {"matrix_game": "prisoners_dilemma", "kuhn_poker": "kuhn_poker"}


def tiny(protocol: dict[str, Any], rule: dict[str, Any]) -> Any:
    scenario: dict[str, Any] = {}
    if protocol["name"] in GAMES:
        scenario = dict(name="matrix_game", game=GAMES[protocol["name"]])
    # one with every kind of message, one whose critics see more than the agents
    elif protocol["name"] in ("debate", "mnip"):
        scenario = (
            dict(message_size=2, linear_symbols=3)
            if protocol["name"] == "debate"
            else dict(central_critic=True, shared_body=False)
        )
    rule = {"num_epochs": 1, **rule}
    if rule["name"] == "solo":
        rule["agent"] = "player0" if scenario.get("name") == "matrix_game" else "verifier"
    return experiment(protocol, scenario, algorithm={**rule, "minibatch_size": 16})


def cannot_learn_alone(protocol: dict[str, Any], rule: dict[str, Any]) -> bool:
    return rule["name"] == "solo" and protocol["name"] in GAMES


def experiments(pairs: list[Pair]) -> list[Pair]:
    return [(protocol, rule) for protocol, rule in pairs if not cannot_learn_alone(protocol, rule)]


def ids(pairs: list[Pair]) -> list[str]:
    return [f"{game_id(protocol)}-{rule_id(rule)}" for protocol, rule in pairs]


WHOLE = [(protocol, rule) for protocol in PROTOCOLS for rule in RULES]
USUAL = diagonal(PROTOCOLS, [*RULES[1:], RULES[0]])  # every protocol and every rule
SOME = experiments([pair for pair in WHOLE if pair in USUAL])
REST = experiments([pair for pair in WHOLE if pair not in USUAL])


@pytest.mark.parametrize(("protocol", "rule"), SOME, ids=ids(SOME))
def test_trains_saves_restores_and_is_examined(protocol: dict[str, Any], rule: dict[str, Any], tmp_path: Path) -> None:
    goes_on_exactly(tiny(protocol, rule), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "rule"), REST, ids=ids(REST))
def test_every_other_pair_does_so_too(protocol: dict[str, Any], rule: dict[str, Any], tmp_path: Path) -> None:
    goes_on_exactly(tiny(protocol, rule), tmp_path)
