"""MALT: labels and pairs against an enumeration of leaves, growing, and figures."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from nip_ray.play.dialogue import Dialogue, Turn
from nip_ray.play.dialogues import Answer, play_round, start_dialogue
from nip_ray.protocols import build
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.scenarios.code_validation.scenario import build_text_scenario
from nip_ray.seeding import stable_seed
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.protocol import PayoffEntries, PayoffSettings
from nip_ray.settings.text_training import MaltSettings
from nip_ray.text.dialogues.runner import Node, grow
from nip_ray.text.training.malt import LabelledNode, label_tree, preference_pairs, threshold, tree_statistics
from tests.text.small_dialogues import Item, tiny

AGENTS = ("prover", "verifier")
MIDS = {"prover": 0.5, "verifier": 0.0}


def mids(agent: str, dialogue: Dialogue) -> float:
    return MIDS[agent]


def child(parent: Node, number: int, paid: dict[str, float], turns: tuple[Turn, ...], ended: bool = False) -> Node:
    before = parent.dialogue
    dialogue = replace(before, rounds=(*before.rounds, turns), rewards=(*before.rewards, paid), ended=ended)
    return Node(dialogue, (*parent.path, number))


def speaker(depth: int) -> str:
    return "verifier" if depth % 2 == 0 else "prover"


def random_tree(random: np.random.Generator, number: int = 0) -> Node:
    """Depth up to 5, width 2 to 4, ends anywhere; rewards are eighths, exact in binary, at inner nodes too. An eighth
    is invalid."""
    width = int(random.integers(2, 5))
    depth = int(random.integers(1, 6 if width == 2 else 4))

    def below(node: Node) -> Node:
        if node.dialogue.ended:
            return node
        agent, level = speaker(len(node.path)), len(node.path) + 1
        made = []
        for i in range(width):
            paid = {name: float(random.integers(-8, 9)) / 8 for name in AGENTS}
            turn = Turn(agent, f"text {random.integers(3)}", {}, invalid=bool(random.random() < 1 / 8))
            made.append(below(child(node, i, paid, (turn,), ended=level == depth or random.random() < 0.25)))
        return replace(node, children=tuple(made))

    return below(Node(start_dialogue(Item(number, 1), int(random.integers(2**16)))))


def leaves(node: Node) -> Iterator[Node]:
    if not node.children:
        yield node
    for one in node.children:
        yield from leaves(one)


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for one in node.children:
        yield from nodes(one)


def expected_by_enumeration(node: Node, agent: str) -> Fraction:
    """Over all dialogues that end below the node: the mean of what is paid from the node's own round on."""
    first = max(len(node.path) - 1, 0)
    sums = [
        sum((Fraction(paid[agent]) for paid in leaf.dialogue.rewards[first:]), Fraction(0)) for leaf in leaves(node)
    ]
    return sum(sums, Fraction(0)) / len(sums)


@dataclass
class Reference:
    """Labels of one agent in one tree, by path, worked out from the leaves of each node again."""

    agent: str
    known: dict[tuple[int, ...], Fraction] = field(default_factory=dict)

    def expected(self, node: Node) -> Fraction:
        if node.path not in self.known:
            self.known[node.path] = expected_by_enumeration(node, self.agent)
        return self.known[node.path]

    def positive(self, node: Node) -> bool:
        return self.expected(node) >= Fraction(MIDS[self.agent])

    def both(self, node: Node) -> bool:
        signs = [self.positive(one) for one in node.children]
        return True in signs and False in signs

    def pair_outcome(self, node: Node, seed: int) -> tuple[str, str] | str | None:
        """(preferred, rejected), or why there is none; None where nothing is asked."""
        if not self.both(node) or speaker(len(node.path)) != self.agent:
            return None
        good = [one.dialogue.rounds[-1][0] for one in node.children if self.positive(one)]
        bad = [one.dialogue.rounds[-1][0] for one in node.children if not self.positive(one)]
        good, bad = [turn for turn in good if not turn.invalid], [turn for turn in bad if not turn.invalid]
        if not good or not bad:
            return "invalid"
        path = ".".join(str(i) for i in node.path)
        random = np.random.default_rng(
            stable_seed(seed, "malt", node.dialogue.item.id, node.dialogue.seed, path, self.agent)
        )
        preferred, rejected = good[random.integers(len(good))].raw, bad[random.integers(len(bad))].raw
        return "equal" if preferred == rejected else (preferred, rejected)


def test_labels_and_pairs_of_random_trees_equal_brute_force() -> None:
    random, scenario = np.random.default_rng(0), tiny("nip")
    kinds = {"pairs": 0, "equal": 0, "invalid": 0}
    for number in range(1000):
        tree = random_tree(random, number)
        labelled = label_tree(tree, AGENTS, mids)
        assert [place.node for place in labelled.walk()] == list(nodes(tree))
        for agent in AGENTS:
            reference = Reference(agent)
            for place in labelled.walk():
                label = place.labels[agent]
                assert place.branches == len(list(leaves(place.node)))
                assert label.expected == float(reference.expected(place.node))
                assert label.positive == reference.positive(place.node)
                assert label.has_both == reference.both(place.node)
            found = preference_pairs(labelled, agent, scenario, 3)
            wanted = [(node, reference.pair_outcome(node, 3)) for node in nodes(tree)]
            assert [(pair.path, pair.preferred, pair.rejected) for pair in found.pairs] == [
                (node.path, *outcome) for node, outcome in wanted if isinstance(outcome, tuple)
            ]
            assert found.equal == sum(outcome == "equal" for _, outcome in wanted)
            assert found.invalid == sum(outcome == "invalid" for _, outcome in wanted)
            kinds["pairs"] += len(found.pairs)
            kinds["equal"] += found.equal
            kinds["invalid"] += found.invalid
    assert min(kinds.values()) > 30, kinds  # each case did occur


def by_hand() -> Node:
    """The verifier asks (two ways, paid -0.25 for not deciding), the prover answers (two ways), and the verdict is
    paid."""
    root = Node(start_dialogue(Item(0, 1), 5))

    def ask(number: int, ends: tuple[float, float]) -> Node:
        node = child(root, number, {"prover": 0.0, "verifier": -0.25}, (Turn("verifier", f"question {number}", {}),))
        answers = [
            child(
                node,
                i,
                {"prover": float(paid > 0), "verifier": paid},
                (Turn("prover", f"answer {number}{i}", {}),),
                True,
            )
            for i, paid in enumerate(ends)
        ]
        return replace(node, children=tuple(answers))

    return replace(root, children=(ask(0, (1.0, -0.5)), ask(1, (-1.0, -1.0))))


def test_the_root_gives_a_pair() -> None:
    scenario = tiny("nip")
    labelled = label_tree(by_hand(), AGENTS, mids)
    (pair,) = preference_pairs(labelled, "verifier", scenario, 0).pairs
    assert (pair.path, pair.preferred, pair.rejected) == ((), "question 0", "question 1")
    assert pair.chat == scenario.fenced_chat(labelled.node.dialogue, "verifier")
    (pair,) = preference_pairs(labelled, "prover", scenario, 0).pairs
    assert (pair.path, pair.preferred, pair.rejected) == ((0,), "answer 00", "answer 01")
    assert [message["content"].split("\n")[1:] for message in pair.chat][1:] == [["question 0"]]


def one_level(*kinds: tuple[str, float, bool]) -> LabelledNode:
    root = Node(start_dialogue(Item(0, 1), 0))
    children = tuple(
        child(root, i, {"prover": 0.0, "verifier": paid}, (Turn("verifier", raw, {}, invalid=invalid),), True)
        for i, (raw, paid, invalid) in enumerate(kinds)
    )
    return label_tree(replace(root, children=children), AGENTS, mids)


def test_equal_replies_are_counted_and_left_out() -> None:
    tree = one_level(("same", 1.0, False), ("same", -1.0, False))
    found = preference_pairs(tree, "verifier", tiny("nip"), 0)
    assert (found.pairs, found.equal, found.invalid) == ([], 1, 0)


def test_a_threshold_is_reached_in_spite_of_rounding() -> None:
    """A verdict at 0.95 pays a little less than 0.9 in binary."""
    root = Node(start_dialogue(Item(0, 1), 0))
    paid = 0.95 * 1 + (1 - 0.95) * -1
    assert paid < 0.9
    tree = replace(root, children=(child(root, 0, {"verifier": paid}, (Turn("verifier", "x", {}),), True),))
    assert label_tree(tree, ["verifier"], lambda agent, dialogue: 0.9).children[0].labels["verifier"].positive


def test_a_reply_is_measured_by_the_role_that_its_agent_knew_of() -> None:
    """Sneakiness pays from 5 to 10: half way between is more than helpfulness ever pays, which is from 0 to 1."""
    pays = PayoffSettings(by_role={"sneaky": PayoffEntries(table=((5, 10, 5), (10, 5, 5)))})
    protocol = build("helpful_sneaky", payoff={"prover": pays})
    for seed, worth in ((0, (1.0, 0.0)), (1, (10.0, 5.0))):
        root, turns = Node(start_dialogue(Item(0, 1), seed)), (Turn("prover", "good", {}), Turn("prover", "bad", {}))
        children = [child(root, i, {"prover": paid}, (turns[i],), True) for i, paid in enumerate(worth)]
        tree = label_tree(replace(root, children=tuple(children)), ["prover"], threshold(protocol, MaltSettings()))
        assert [one.labels["prover"].positive for one in tree.children] == [True, False]
    given = threshold(protocol, MaltSettings(reward_threshold=2.0))
    assert given("prover", root.dialogue) == 2.0


async def dummy_round(scenario: Any, dialogue: Dialogue, path: tuple[int, ...]) -> Dialogue:
    """The real text core, with seeded replies of the right form."""

    async def ask(dialogue: Dialogue, agent: str, chat: Any, attempt: int, path: tuple[int, ...]) -> Answer:
        await asyncio.sleep(0)
        return Answer(scenario.invent(dialogue, agent, stable_seed(0, ".".join(map(str, path)), attempt)))

    return await play_round(scenario, dialogue, ask, path)


@pytest.mark.parametrize("name", ["nip", "adp", "debate", "mnip", "merlin_arthur", "solo_verifier"])
def test_trees_of_real_protocols(name: str) -> None:
    params = {"max_rounds": 4} if name in ("nip", "debate", "mnip") else {}
    scenario = build_text_scenario(build(name, **params), CodeValidationSettings())
    item = CodeItem(3, "Print 1.", "print(1)", 1, 1)
    tree = asyncio.run(grow(scenario, item, 70000, 2, lambda dialogue, path: dummy_round(scenario, dialogue, path)))
    for node in nodes(tree):
        assert node.dialogue.seed == 70000 % 2**16
        assert len(node.path) == len(node.dialogue.rounds)
        assert node.dialogue.ended == (not node.children)
        assert len(node.children) in (0, 2)
        for number, one in enumerate(node.children):
            assert one.path == (*node.path, number)
            assert one.dialogue.rounds[:-1] == node.dialogue.rounds
    paths = [node.path for node in nodes(tree)]
    assert len(set(paths)) == len(paths)
    again = asyncio.run(grow(scenario, item, 70000, 2, lambda dialogue, path: dummy_round(scenario, dialogue, path)))
    assert again == tree


def test_children_are_played_at_the_same_time() -> None:
    """A branch does not wait for its cousins: the first round of one and the second of another are under way
    together."""
    running, most, seen = 0, 0, set[tuple[int, ...]]()

    async def slow(dialogue: Dialogue, path: tuple[int, ...]) -> Dialogue:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02 if path[0] == 0 else 0.05)
        running -= 1
        seen.add(path)
        turn = Turn("verifier", str(path), {})
        return replace(
            dialogue, rounds=(*dialogue.rounds, (turn,)), rewards=(*dialogue.rewards, {}), ended=len(path) == 3
        )

    tree = asyncio.run(grow(tiny("nip"), Item(0, 1), 0, 3, slow))
    assert len(list(leaves(tree))) == 27
    assert len(seen) == 3 + 9 + 27
    assert most > 9


def test_figures_by_hand() -> None:
    """Two trees; the second ends after one round, so later rounds are those of the first alone."""
    first = label_tree(by_hand(), AGENTS, mids)
    second = one_level(("good", 1.0, False), ("bad", -1.0, False))
    found = tree_statistics([first, second], AGENTS)
    # replies of the first tree: 0, -1.25 (round 0); 1, -0.5, -1, -1 (round 1)
    assert found["malt/verifier/expected_reward/round=0"] == pytest.approx((-0.625 + 0.0) / 2)
    assert found["malt/verifier/expected_reward_std/round=0"] == pytest.approx(0.3125)
    assert found["malt/verifier/expected_reward/round=1"] == pytest.approx(-0.375)
    assert found["malt/verifier/expected_reward_std/round=1"] == 0.0
    assert found["malt/verifier/expected_reward"] == pytest.approx((-2.75 / 6 + 0.0) / 2)
    assert found["malt/verifier/positive_share"] == pytest.approx((2 / 6 + 1 / 2) / 2)
    assert found["malt/verifier/has_both_share/round=0"] == 1.0
    assert found["malt/verifier/has_both_share/round=1"] == 0.5
    assert found["malt/verifier/has_both_share"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["malt/prover/has_both_share/round=0"] == 0.5
    assert not [key for key in found if key.endswith("round=2")]
