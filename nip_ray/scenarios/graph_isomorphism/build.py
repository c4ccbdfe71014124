"""Build a graph isomorphism scenario from settings: load or make data, look up agents."""

from functools import lru_cache
from pathlib import Path

from nip_ray.networks import native
from nip_ray.protocols import Protocol
from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs, load_pairs
from nip_ray.scenarios.graph_isomorphism.generate import GeneratorSettings, generate_pairs, pair_keys
from nip_ray.scenarios.graph_isomorphism.scenario import GraphIsomorphism
from nip_ray.scenarios.marks import Mark, marks
from nip_ray.scenarios.seat import agents_of, naming_options
from nip_ray.seeding import stable_seed
from nip_ray.settings.graph_isomorphism import GraphAgentSettings, GraphDataSettings, GraphIsomorphismSettings

_DEFAULT_TRAIN, _DEFAULT_TEST = 10_000, 1_000  # as in the option texts


def build_graph_isomorphism(
    protocol: Protocol, settings: GraphIsomorphismSettings, dataset: str | None = None
) -> GraphIsomorphism:
    """The scenario of `settings` under `protocol`. dataset: a file of pairs for evaluation instead of held-out ones.

    Raises UserError for unusable data, unknown agents, and unavailable compiled kernels.
    """
    train, test = graph_data(settings.data)
    if dataset is not None:
        test = load_pairs(Path(dataset))
    agents = agents_of(protocol, settings.agents, GraphAgentSettings)
    compiled = native.wanted(settings.kernels, agents)
    return GraphIsomorphism(protocol, train, test, agents, compiled=compiled, **naming_options(settings))


def graph_data(settings: GraphDataSettings) -> tuple[GraphPairs, GraphPairs]:
    """(train, test) of `settings`; pairs that are made never contain one of the other split, which was made before or
    read from a file. Cached until a file changes."""
    return _graph_data(settings, marks(settings.train, settings.test))


@lru_cache(maxsize=2)
def _graph_data(settings: GraphDataSettings, marked: tuple[Mark, ...]) -> tuple[GraphPairs, GraphPairs]:
    """marked: the state of the files, which is only part of the key."""
    made = GeneratorSettings(
        graph_sizes=tuple(settings.graph_sizes),
        edge_probabilities=tuple(settings.edge_probabilities),
        non_iso_prop_score_1=settings.non_iso_prop_score_1,
        non_iso_prop_score_2=settings.non_iso_prop_score_2,
    )
    train = None
    if settings.train is not None:
        train = _truncated(load_pairs(Path(settings.train)), settings.num_train, settings.seed)
    if settings.test is not None:
        test = _truncated(load_pairs(Path(settings.test)), settings.num_test, settings.seed)
    else:
        test_seed = stable_seed(settings.seed, "graph_isomorphism", "test split")
        known = None if train is None else pair_keys(train).tolist()
        test = generate_pairs(settings.num_test or _DEFAULT_TEST, test_seed, made, forbid=known)
    if train is None:
        train = generate_pairs(
            settings.num_train or _DEFAULT_TRAIN, settings.seed, made, forbid=pair_keys(test).tolist()
        )
    if settings.min_wl_score is not None:
        train = train.select((train.wl_score_P < 0) | (train.wl_score_P >= settings.min_wl_score))
    return train, test


def _truncated(pairs: GraphPairs, count: int | None, seed: int) -> GraphPairs:
    return pairs if count is None or count >= len(pairs) else pairs.truncate(count, seed)
