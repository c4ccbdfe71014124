"""MALT: a tree of replies for each item, preference pairs from their expected rewards, and metrics of the trees.

Decisions that matter here:
- a node is a dialogue so far, a leaf where it ends; its children are independent samples of the next round, with the
  replies of all its agents. All nodes of a tree share the episode seed; the path, one child number per round, tells
  samples apart;
- a node's expected reward is the mean, over the dialogues that end below it, of the agent's pay from the node's own
  round on. So its own reward counts once for each leaf below (a sum over children that adds it only once would
  under-weight it);
- a reply counts as positive by the pay of the role that its agent knew of: different prompts have different thresholds;
- an expected reward equal to the threshold up to rounding is positive, as in expert iteration;
- the root counts: replies of the first round are compared and learned like all others.
Source: Motwani et al., "MALT: Improving Reasoning with Multi-Agent LLM Training", 2024.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nip_ray.play.dialogue import Dialogue, LanguageScenario
from nip_ray.protocols import Protocol
from nip_ray.seeding import stable_seed
from nip_ray.settings.text_training import MaltSettings
from nip_ray.text.dialogues.runner import Node
from nip_ray.text.training.expert_iteration import ROUNDING, LearningAgent, Pair, Preferences


@dataclass(frozen=True)
class Label:
    """The value of a node to one agent.

    total: sum over the leaves below it of the agent's pay from the node's round on. expected: their mean. positive:
    `expected` is at least the agent's threshold. has_both: some children are positive and some are not.
    """

    total: float
    expected: float
    positive: bool
    has_both: bool


@dataclass(frozen=True)
class LabelledNode:
    """A node with its labels. branches: leaves at or below it. labels: agent -> label. children: in the node's
    order."""

    node: Node
    branches: int
    labels: Mapping[str, Label]
    children: tuple["LabelledNode", ...]

    def walk(self) -> Iterator["LabelledNode"]:
        """This node and all below, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


Threshold = Callable[[str, Dialogue], float]
"""(agent, dialogue) -> the expected reward from which the agent's reply in the dialogue's last round is positive."""


def threshold(protocol: Protocol, settings: MaltSettings) -> Threshold:
    """`reward_threshold`, or if None the mid-point of the agent's pay in the role that it knew of, or in all roles."""

    def of(agent: str, dialogue: Dialogue) -> float:
        if settings.reward_threshold is not None:
            return settings.reward_threshold
        return protocol.reward_mid_point(agent, protocol.told_role(agent, len(dialogue.rounds) - 1, dialogue.seed))

    return of


def label_tree(root: Node, agents: Sequence[str], threshold: Threshold) -> LabelledNode:
    """The tree under `root` with labels for all agents, computed from the leaves up."""
    children = tuple(label_tree(child, agents, threshold) for child in root.children)
    branches = sum(child.branches for child in children) or 1
    labels = {
        agent: _label(
            root, branches, [child.labels[agent] for child in children], agent, threshold(agent, root.dialogue)
        )
        for agent in agents
    }
    return LabelledNode(root, branches, labels, children)


def _label(node: Node, branches: int, below: Sequence[Label], agent: str, least: float) -> Label:
    total = branches * node.paid(agent) + sum(label.total for label in below)
    expected = total / branches
    has_both = len({label.positive for label in below}) == 2
    return Label(total, expected, expected >= least - ROUNDING, has_both)


def preference_pairs(tree: LabelledNode, agent: str, scenario: LanguageScenario, seed: int) -> Preferences:
    """One pair for every node that has both kinds of children and in whose children's round `agent` speaks.

    The two are drawn among the children with a valid turn, by (seed, item, episode seed, path, agent) alone. Pairs of
    equal replies are left out. If others speak in the same round, their replies differ too.
    """
    pairs: list[Pair] = []
    equal = invalid = 0
    for place in tree.walk():
        if not place.labels[agent].has_both or place.children[0].node.turn(agent) is None:
            continue
        drawn = _draw(place, agent, seed)
        if drawn is None:
            invalid += 1
        elif drawn[0] == drawn[1]:
            equal += 1
        else:
            pairs.append(Pair(scenario.fenced_chat(place.node.dialogue, agent), *drawn, place.node.path))
    return Preferences(pairs, equal, invalid)


def pairs(trees: Sequence[Node], agent: LearningAgent) -> Preferences:
    """The pairs of all trees."""
    least = threshold(agent.scenario.protocol, agent.settings)
    labelled = (label_tree(tree, [agent.name], least) for tree in trees)
    found = [preference_pairs(tree, agent.name, agent.scenario, agent.seed) for tree in labelled]
    return Preferences(
        [pair for one in found for pair in one.pairs],
        sum(one.equal for one in found),
        sum(one.invalid for one in found),
    )


def _draw(place: LabelledNode, agent: str, seed: int) -> tuple[str, str] | None:
    """(a positive child's raw reply, another's), None if all replies of one kind are invalid."""
    positive, negative = _valid_replies(place, agent, True), _valid_replies(place, agent, False)
    if not positive or not negative:
        return None
    dialogue, path = place.node.dialogue, ".".join(map(str, place.node.path))
    random = np.random.default_rng(stable_seed(seed, "malt", dialogue.item.id, dialogue.seed, path, agent))
    return positive[random.integers(len(positive))], negative[random.integers(len(negative))]


def _valid_replies(place: LabelledNode, agent: str, positive: bool) -> list[str]:
    turns = [child.node.turn(agent) for child in place.children if child.labels[agent].positive is positive]
    return [turn.raw for turn in turns if turn is not None and not turn.invalid]


# ----------------------------------------------------------------------------------------------------------------------
# Metrics of the labels of trees.
# - a metric is the mean over trees (data points) of each tree's own mean over nodes, so that bushy trees do not
#   outweigh the others; with ``_std`` appended, the standard deviation over trees (dividing by their number).


def tree_figures(trees: Sequence[Node], protocol: Protocol, settings: MaltSettings) -> dict[str, float]:
    """`tree_statistics` of all agents, labelled as MALT does."""
    least = threshold(protocol, settings)
    return tree_statistics([label_tree(tree, protocol.agents, least) for tree in trees], protocol.agents)


def tree_statistics(trees: Sequence[LabelledNode], agents: Sequence[str]) -> dict[str, float]:
    """``malt/<agent>/{expected_reward, positive_share, has_both_share}``, each also with ``/round=<r>`` and ``_std``.

    The first two are of the replies in round r, the third of the nodes before round r, so the root has
    ``has_both_share/round=0`` and no reply. Rounds that no tree reached have no key.
    """
    values: defaultdict[str, list[float]] = defaultdict(list)
    for tree in trees:
        for key, mean in _tree_means(tree, agents).items():
            values[key].append(mean)
    figures: dict[str, float] = {}
    for name, x_T in values.items():
        base, slash, place = name.partition("/round=")
        figures |= {name: float(np.mean(x_T)), f"{base}_std{slash}{place}": float(np.std(x_T))}
    return figures


def _tree_means(tree: LabelledNode, agents: Sequence[str]) -> dict[str, float]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for place in tree.walk():
        for agent in agents:
            for what, round, value in _of_node(place, agent):
                values[f"malt/{agent}/{what}"].append(value)
                values[f"malt/{agent}/{what}/round={round}"].append(value)
    return {key: float(np.mean(x_N)) for key, x_N in values.items()}


def _of_node(place: LabelledNode, agent: str) -> Iterator[tuple[str, int, float]]:
    label, played = place.labels[agent], len(place.node.path)
    if played:
        yield "expected_reward", played - 1, label.expected
        yield "positive_share", played - 1, float(label.positive)
    if place.children:
        yield "has_both_share", played, float(label.has_both)
