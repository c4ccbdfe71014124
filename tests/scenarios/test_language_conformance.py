"""The check of language scenarios passes those that ship and the example, and names what breaks a promise."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.load import load_config
from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, Parsed, Turn
from nip_ray.protocols import Protocol, build
from nip_ray.scenarios.language import LANGUAGE_SCENARIOS
from nip_ray.scenarios.language_conformance import check_language_scenario
from nip_ray.settings.code_validation import CodeDataSettings, CodeValidationSettings
from nip_ray.settings.matrix_games import LanguageMatrixGameSettings
from nip_ray.settings.state_tracking import LanguageStateTrackingSettings

pytestmark = pytest.mark.usefixtures("no_plugins")

ROOT = Path(__file__).resolve().parents[2]
SMALL = CodeDataSettings(num_train=8, num_test=4)
STATES = LanguageStateTrackingSettings(num_train=40, num_test=10)


@pytest.fixture
def claim(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's settings, few items."""
    monkeypatch.chdir(ROOT)
    return load_config("examples/own_language_scenario.yaml", ["scenario.num_train=8", "scenario.num_test=4"]).scenario


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        (build("kuhn_poker"), LanguageMatrixGameSettings()),
        (build("bisection", max_rounds=9), STATES),
        (build("debate", max_rounds=3), STATES),
        pytest.param(build("prover_estimator"), STATES, marks=pytest.mark.slow),
        (build("mnip"), CodeValidationSettings(data=SMALL)),
        (build("debate"), CodeValidationSettings(data=SMALL, decision_format="json", verdict_scale="percent")),
    ],
)
def test_what_ships_passes(protocol: Protocol, settings: Any) -> None:
    check_language_scenario(settings, protocol)


@pytest.mark.parametrize(
    "protocol",
    ["nip", "adp", "debate", "mnip", "merlin_arthur", "consultancy", "judge_panel", "solo_verifier", "bisection"],
)
def test_the_example_passes(protocol: str, claim: Any) -> None:
    check_language_scenario(claim, build(protocol, **({"max_rounds": 3} if protocol == "bisection" else {})))


@pytest.mark.parametrize("chooser", ["opponent", "verifier"])
@pytest.mark.parametrize("rounds", [3, 5])
def test_in_the_example_the_lie_is_in_the_part_that_is_judged(chooser: str, rounds: int, claim: Any) -> None:
    protocol = build("bisection", max_rounds=rounds, half_chosen_by=chooser)
    kind, met = LANGUAGE_SCENARIOS["arithmetic_claim"], set()
    scenario = kind.build(protocol, claim)
    for item in kind.items(claim, 0)["train"]:
        for agent in protocol.agents:
            for seed in range(8):
                chat, reply = scenario.warm_example(item, agent, seed) or ([], "")
                lines = [tuple(map(int, line)) for line in re.findall(r"(\d+) x (\d+) = (-?\d+)", chat[-1]["content"])]
                right = [one * two == value for one, two, value in lines]
                one, two, _ = lines[0]
                if reply.endswith(("accept", "reject")):
                    assert reply == f"{one * two} {('reject', 'accept')[item.y]}"
                    assert right == [bool(item.y)]
                elif reply.endswith(("first", "second")):
                    assert reply == f"{one * two} {'second' if right[0] else 'first'}"
                    assert sum(right) == 1 + item.y
                else:
                    first = re.findall(r"first (\d+) x (\d+)", chat[-1]["content"])[0]
                    assert int(reply) == int(first[0]) * int(first[1]) <= one * two
                met.add((agent, reply.split()[-1] if " " in reply else "number", item.y))
    assert len(met) == 7, "numbers and verdicts of both labels, and of false claims either part"


@pytest.mark.parametrize(
    ("said", "reply"),
    [((), "12a"), ((), "12 first"), (("120",), "first"), (("120",), "120 both"), (("120", "second"), "ask: why?")],
)
def test_parts_of_another_form_are_refused(said: tuple[str, ...], reply: str, claim: Any) -> None:
    protocol, kind = build("bisection", max_rounds=3), LANGUAGE_SCENARIOS["arithmetic_claim"]
    agents = ("prover1", "prover0", "verifier")
    rounds = tuple((Turn(agent, text, {"main": text}),) for agent, text in zip(agents, said))
    dialogue = Dialogue(kind.items(claim, 0)["train"][0], 0, rounds)
    with pytest.raises(InvalidReply, match="expected a number"):
        kind.build(protocol, claim).parse(dialogue, agents[len(said)], reply)


def first_line(text: str) -> Any:
    """A chat that begins with this message's content changed."""
    return lambda chat, dialogue, agent: [
        {**chat[0], "content": text.format(chat=chat[0]["content"], dialogue=dialogue)},
        *chat[1:],
    ]


COUNT = iter(range(10**6))


@pytest.mark.parametrize(
    ("chat", "said"),
    [
        (first_line("{chat} {dialogue.item.y}"), "reveals the label to a verifier"),
        (
            lambda chat, dialogue, agent: [{**chat[0], "content": f"{next(COUNT)}"}, *chat[1:]],
            "another chat when it is called again",
        ),
        (
            lambda chat, dialogue, agent: [*chat, *({"role": "user", "content": t[0].raw} for t in dialogue.rounds)],
            "others' raw replies",
        ),
        (lambda chat, dialogue, agent: [{"role": "assistant", "content": "Hm."}, *chat], "begins with the assistant"),
        (lambda chat, dialogue, agent: [*chat, {"role": "user", "content": ""}], "none empty"),
        (lambda chat, dialogue, agent: None, "must be a list of messages"),
    ],
)
def test_chats_that_break_a_promise(chat: Any, said: str, claim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = LANGUAGE_SCENARIOS["arithmetic_claim"]

    class Broken(type(kind.build(build("nip"), claim))):  # type: ignore[misc]
        def chat(self, dialogue: Dialogue, agent: str) -> Chat:
            return chat(super().chat(dialogue, agent), dialogue, agent)

    monkeypatch.setitem(LANGUAGE_SCENARIOS, "arithmetic_claim", replace(kind, build=Broken))
    with pytest.raises(UserError, match=said):
        check_language_scenario(claim, build("nip"))


def test_a_warm_up_that_play_does_not_show_is_found(claim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = LANGUAGE_SCENARIOS["arithmetic_claim"]

    class Broken(type(kind.build(build("nip"), claim))):  # type: ignore[misc]
        def warm_example(self, item: Any, agent: str, seed: int) -> tuple[Chat, str]:
            return self.chat(Dialogue(item, seed), agent), "accept"

    monkeypatch.setitem(LANGUAGE_SCENARIOS, "arithmetic_claim", replace(kind, build=Broken))
    with pytest.raises(UserError, match=r"warm_example\('verifier'\) gives a chat of another form than that of play"):
        check_language_scenario(claim, build("nip"))


@pytest.mark.parametrize(
    ("method", "change", "said"),
    [
        ("parse", lambda made, reply: Parsed({"elsewhere": reply}), "parse puts messages of 'verifier' into elsewhere"),
        ("parse", lambda made, reply: made() if reply else {}["x"], "parse raises KeyError for the reply ''"),
        ("parse", lambda made, reply: None, "parse gives None for a reply of 'verifier'"),
        ("invent", lambda made, seed: 3, r"invent\('verifier'\) gives 3"),
        (
            "parse",
            lambda made, reply: replace(made(), decision=2),
            r"parse reads verdict_text\(0\), 'reject', as decision 2",
        ),
        ("invent", lambda made, seed: "reject", "invent makes the same reply of 'verifier' every time"),
        ("invent", lambda made, seed: "perhaps", "parse refuses what invent made for 'verifier'"),
        ("invent", lambda made, seed: f"ask: {next(COUNT)}", "depends on more than its arguments"),
    ],
)
def test_replies_that_break_a_promise(
    method: str, change: Any, said: str, claim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = LANGUAGE_SCENARIOS["arithmetic_claim"]
    whole = type(kind.build(build("nip"), claim))

    def changed(self: Any, dialogue: Dialogue, agent: str, given: Any) -> Any:
        return change(lambda: getattr(whole, method)(self, dialogue, agent, given), given)

    broken = type("Broken", (whole,), {method: changed})
    monkeypatch.setitem(LANGUAGE_SCENARIOS, "arithmetic_claim", replace(kind, build=broken))
    with pytest.raises(UserError, match=said):
        check_language_scenario(claim, build("nip"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda items, n: items["train"], "expected a mapping of train and test"),
        (lambda items, n: {"train": items["train"]}, "must give items for train and test"),
        (lambda items, n: {**items, "train": items["test"]}, "4 items are in train and in test"),
        (lambda items, n: {**items, "test": items["test"][1::2]}, "the test items all have one label"),
        (
            lambda items, n: {**items, "train": [replace(item, id=7) for item in items["train"]]},
            "the ids of train items",
        ),
        (lambda items, n: {**items, "train": items["train"][n % 2 :]}, "other items when it is called again"),
    ],
)
def test_items_that_break_a_promise(change: Any, said: str, claim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, calls = LANGUAGE_SCENARIOS["arithmetic_claim"], iter(range(10))
    broken = replace(kind, items=lambda settings, seed: change(kind.items(settings, seed), next(calls)))
    monkeypatch.setitem(LANGUAGE_SCENARIOS, "arithmetic_claim", broken)
    with pytest.raises(UserError, match=said):
        check_language_scenario(claim, build("nip"))
