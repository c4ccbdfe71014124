"""MALT: a tree of replies for each item, and preference pairs from what the replies led to.

Decisions that matter here:
- a node is a dialogue so far; its children are independent samples of the next round, with the replies of all who speak in it. All
  nodes of a tree share the episode seed; the path, one child number per round, tells samples apart;
- a node's expected reward is the mean, over the dialogues that end below it, of what the agent is paid from the node's own round on.
  So its own reward counts once for each leaf below (a sum over children that adds it only once would under-weight it);
- an expected reward that is the threshold but for rounding is positive, as in expert iteration;
- the root counts: replies of the first round are compared and learned like all others;
- a dialogue that ends early is a leaf where it ends; depths need not agree.
Source: Motwani et al., "MALT: Improving Reasoning with Multi-Agent LLM Training", 2024.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nip_ray.protocols import Protocol as Rules
from nip_ray.seeding import stable_seed
from nip_ray.settings.text_training import MaltSettings
from nip_ray.text.dialogues.runner import Node
from nip_ray.text.training.expert_iteration import ROUNDING, LearnableScenario, LearningAgent, Pair, Preferences


@dataclass(frozen=True)
class Label:
    """What a node is worth to one agent.

    total: sum over the leaves below it of what the agent is paid from the node's round on. expected: their mean. positive: `expected` is
    at least the agent's threshold. has_both: some children are positive and some are not.
    """

    total: float
    expected: float
    positive: bool
    has_both: bool


@dataclass(frozen=True)
class LabelledNode:
    """A node with its labels. branches: leaves at or below it. labels: agent -> label. children: in the order of the node's."""

    node: Node
    branches: int
    labels: Mapping[str, Label]
    children: tuple["LabelledNode", ...]

    def walk(self) -> Iterator["LabelledNode"]:
        """This node and all below, parents before children."""
        yield self
        for child in self.children:
            yield from child.walk()


def mid_points(protocol: Rules, settings: MaltSettings) -> dict[str, float]:
    """Agent -> the expected reward from which a reply is positive: `reward_threshold`, or if none the agent's reward mid-point."""
    given = settings.reward_threshold
    return {agent: protocol.reward_mid_point(agent) if given is None else given for agent in protocol.agents}


def label_tree(root: Node, agents: Sequence[str], mid_points: Mapping[str, float]) -> LabelledNode:
    """The tree under `root` with everyone's labels, worked out from the leaves up. mid_points: agent -> threshold of `Label.positive`."""
    children = tuple(label_tree(child, agents, mid_points) for child in root.children)
    branches = sum(child.branches for child in children) or 1
    labels = {agent: _label(root, branches, [child.labels[agent] for child in children], agent, mid_points[agent]) for agent in agents}
    return LabelledNode(root, branches, labels, children)


def _label(node: Node, branches: int, below: Sequence[Label], agent: str, mid_point: float) -> Label:
    total = branches * node.paid(agent) + sum(label.total for label in below)
    expected = total / branches
    has_both = len({label.positive for label in below}) == 2
    return Label(total, expected, expected >= mid_point - ROUNDING, has_both)


def preference_pairs(tree: LabelledNode, agent: str, scenario: LearnableScenario, seed: int, *, skip_equal: bool = True) -> Preferences:
    """One pair for every node that has both kinds of children and in whose children's round `agent` speaks.

    The two are drawn among the children whose turn is valid, by (seed, item, episode seed, path, agent) alone. With `skip_equal`,
    a pair of equal replies, which teaches nothing, is left out. Where others speak in the same round, the two differ in their replies too.
    """
    pairs: list[Pair] = []
    equal = invalid = 0
    for place in tree.walk():
        if not place.labels[agent].has_both or place.children[0].node.turn(agent) is None:
            continue
        drawn = _draw(place, agent, seed)
        if drawn is None:
            invalid += 1
        elif skip_equal and drawn[0] == drawn[1]:
            equal += 1
        else:
            pairs.append(Pair(scenario.chat(place.node.dialogue, agent), *drawn, place.node.path))
    return Preferences(pairs, equal, invalid)


def pairs(trees: Sequence[Node], agent: LearningAgent) -> Preferences:
    """Those of all trees."""
    thresholds = mid_points(agent.scenario.protocol, agent.settings)
    labelled = (label_tree(tree, [agent.name], thresholds) for tree in trees)
    found = [preference_pairs(tree, agent.name, agent.scenario, agent.seed) for tree in labelled]
    return Preferences([pair for one in found for pair in one.pairs], sum(one.equal for one in found), sum(one.invalid for one in found))


def _draw(place: LabelledNode, agent: str, seed: int) -> tuple[str, str] | None:
    """(a positive child's raw reply, another's), None where all replies of one kind are invalid."""
    positive, negative = _valid_replies(place, agent, True), _valid_replies(place, agent, False)
    if not positive or not negative:
        return None
    dialogue, path = place.node.dialogue, ".".join(map(str, place.node.path))
    random = np.random.default_rng(stable_seed(seed, "malt", dialogue.item.id, dialogue.seed, path, agent))
    return positive[random.integers(len(positive))], negative[random.integers(len(negative))]


def _valid_replies(place: LabelledNode, agent: str, positive: bool) -> list[str]:
    turns = [child.node.turn(agent) for child in place.children if child.labels[agent].positive is positive]
    return [turn.raw for turn in turns if turn is not None and not turn.invalid]
