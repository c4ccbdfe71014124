"""What the labels of MALT's trees say, as flat figures. `docs/metrics.md` defines each.

Every figure is a mean over trees (data points) of each tree's own mean over nodes, so that bushy trees do not outweigh the others; with
``_std`` behind it, the standard deviation over trees (of the trees themselves, not an estimate: dividing by their number).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from nip_ray.text.training.malt import LabelledNode, Preferences


def tree_statistics(trees: Sequence[LabelledNode], agents: Sequence[str]) -> dict[str, float]:
    """``malt/<agent>/{expected_reward, positive_share, has_both_share}``, each also with ``/round=<r>`` and with ``_std``.

    The first two are of the replies given in round r, the third of the nodes in which round r is about to be played, so the root has
    ``has_both_share/round=0`` and no reply. Rounds that no tree reached have no key.
    """
    values: defaultdict[str, list[float]] = defaultdict(list)
    for tree in trees:
        for key, mean in _tree_means(tree, agents).items():
            values[key].append(mean)
    return {key: figure for name, x_T in values.items() for key, figure in _mean_and_std(name, x_T)}


def pair_statistics(found: Sequence[Preferences], agent: str) -> dict[str, float]:
    """``malt/<agent>/{pairs, equal_pairs, invalid_pairs}``: sums over trees, see `Preferences`."""
    return {
        f"malt/{agent}/pairs": float(sum(len(one.pairs) for one in found)),
        f"malt/{agent}/equal_pairs": float(sum(one.equal for one in found)),
        f"malt/{agent}/invalid_pairs": float(sum(one.invalid for one in found)),
    }


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


def _mean_and_std(name: str, x_T: Sequence[float]) -> Iterator[tuple[str, float]]:
    base, slash, place = name.partition("/round=")
    yield name, float(np.mean(x_T))
    yield f"{base}_std{slash}{place}", float(np.std(x_T))
