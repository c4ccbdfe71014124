"""Graph isomorphism: where the pairs come from, what a message is, and the networks of each agent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nip_ray.settings.heads import HeadSettings, LrFactors, head_faults
from nip_ray.settings.options import FILE, FORBID_UNKNOWN, RESUMABLE, option

_SMALLEST_WITH_SCORE_3 = 7  # nodes; no smaller graphs need three refinement rounds
_TINY = 1e-9


@dataclass(frozen=True)
class GraphDataSettings:
    """Training and held-out pairs: from files, or made from a seed (the same wherever they are needed).

    Made training pairs never contain a held-out pair, wherever that comes from.
    """

    __pydantic_config__ = FORBID_UNKNOWN

    train: str | None = option(
        None,
        "Training pairs: .npz of this package, the published data.pt or plain .npz (none: generated).",
        meaning=FILE,
    )
    test: str | None = option(None, "File of held-out pairs, in the same formats.", meaning=FILE)
    num_train: int | None = option(
        None, "Training pairs to generate (none: 10000) or to take from the file, balanced.", ge=2
    )
    num_test: int | None = option(None, "Held-out pairs to use (none: 1000 if they are generated).", ge=2)
    seed: int = option(0, "Seed of what is made and of truncations.", ge=0)
    graph_sizes: tuple[int, ...] = option((7, 8, 9, 10, 11), "Numbers of nodes of made graphs.", min_length=1)
    edge_probabilities: tuple[float, ...] = option((0.2, 0.4, 0.6, 0.8), "Their densities.", min_length=1)
    non_iso_prop_score_1: float = option(
        0.1, "Share of generated non-isomorphic pairs that one refinement round distinguishes.", ge=0, le=1
    )
    non_iso_prop_score_2: float = option(0.2, "Share that needs two rounds; the rest needs more.", ge=0, le=1)
    min_wl_score: int | None = option(
        None, "Keep training negatives with at least this Weisfeiler-Leman score (a curriculum).", ge=1
    )

    def faults(self) -> Iterator[str]:
        """Files that are missing, or the same for both splits, and pairs that cannot be made."""
        for split in ("train", "test"):
            path = getattr(self, split)
            if path is not None and not Path(path).exists():
                hint = (
                    "put it there, or in a new run leave the key out to make the pairs or write them with `nip-ray data"
                    " graph-isomorphism`"
                )
                yield f"{split}: {path}: no such file, {hint}"
        if self.train is not None and self.test is not None and Path(self.train).resolve() == Path(self.test).resolve():
            yield f"test: {self.test}: this is the training file, hold other pairs out"
        for name in ("graph_sizes", "edge_probabilities"):
            values: Sequence[float] = getattr(self, name)
            if len(set(values)) != len(values):
                yield f"{name}: got {list(values)}, expected each value once"
        if min(self.graph_sizes) < 2:
            yield f"graph_sizes: got {min(self.graph_sizes)}, expected graphs of at least 2 nodes"
        for probability in self.edge_probabilities:
            if not 0 < probability < 1:
                yield f"edge_probabilities: got {probability}, expected numbers between 0 and 1, both excluded"
        both = self.non_iso_prop_score_1 + self.non_iso_prop_score_2
        if both > 1 + _TINY:
            yield f"non_iso_prop_score_2: with non_iso_prop_score_1 it makes {both:g}, expected at most 1 together"
        elif self.train is None or self.test is None:
            yield from self._made_scores(both)

    def _made_scores(self, both: float) -> Iterator[str]:
        smallest = min(self.graph_sizes)
        if 2 <= smallest < _SMALLEST_WITH_SCORE_3 and both < 1 - _TINY:
            yield (
                f"graph_sizes: got {smallest}, but no pair with score 3 or more has fewer than {_SMALLEST_WITH_SCORE_3}"
                " nodes, use larger graphs or let non_iso_prop_score_1 and non_iso_prop_score_2 add up to 1"
            )
        if self.min_wl_score is None or self.train is not None:
            return
        below = {1: 0.0, 2: self.non_iso_prop_score_1}.get(self.min_wl_score, both)
        if below > 1 - _TINY:
            yield f"min_wl_score: got {self.min_wl_score}, but no made negative has that score, lower it"


@dataclass(frozen=True)
class GraphAgentSettings(HeadSettings):
    """Networks of one agent in graph isomorphism; the defaults are the published library's."""

    kind: Literal["learned", "random", "manual"] = option(
        "learned",
        "Learned networks, a uniform random agent, or the hand-made architecture (nip only, never trained).",
    )
    num_gnn_layers: int = option(5, "Message-passing layers.", ge=0)
    d_gnn: int = option(16, "Width of a node's representation in the graph network.", ge=1)
    d_gin_mlp: int = option(64, "Hidden width of the graph network's perceptrons.", ge=1)
    use_dual_gnn: bool = option(True, "Run the graph network also without messages and use both outputs.")
    num_heads: int = option(4, "Attention heads.", ge=1)
    num_transformer_layers: int = option(4, "Transformer layers (0: none).", ge=0)
    d_transformer: int = option(16, "Width of a token.", ge=1)
    d_transformer_mlp: int = option(64, "Hidden width of a transformer layer's feed-forward part.", ge=1)
    transformer_dropout: float = option(0.0, "Dropout in the transformer, in training only.", ge=0, lt=1)
    noise_sigma: float = option(0.0, "Relative noise on pooled graph representations, in training only.", ge=0)
    use_batch_norm: bool = option(True, "Batch-normalise pooled graph representations.")
    use_pair_invariant_pooling: bool = option(
        True, "Replace pooled (u, w) by their mean and half their absolute difference."
    )
    d_node_selector: int = option(16, "Hidden width of the head that chooses a node.", ge=1)
    history_initialisation: Literal["independent", "shared", "unmarked"] = option(
        "independent",
        "First look of named nodes: different by round (independent, as published), shared, or unmarked.",
    )
    input_bias: float = option(0.0, "Length of the random vector that each node starts with.", ge=0)
    attention_initialisation: Literal["independent", "tied"] = option(
        "independent",
        "Queries and keys start unrelated (independent, as published) or equal (tied).",
    )
    gnn_lr_factor: LrFactors = option(LrFactors, "Further factors of its graph network.")

    def faults(self) -> Iterator[str]:
        """Attention heads that do not fit the width."""
        if self.kind == "learned" and self.num_transformer_layers:
            yield from head_faults(self.num_heads, "d_transformer", self.d_transformer)


@dataclass(frozen=True)
class GraphIsomorphismSettings:
    """The task: are the two graphs of a pair the same up to the names of their nodes?"""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["graph_isomorphism"] = option("graph_isomorphism", "The task.")
    data: GraphDataSettings = option(GraphDataSettings, "Source of the pairs.")
    agents: dict[str, GraphAgentSettings] = option(
        dict, "Agent -> its networks; `_default` serves the agents not named."
    )
    shared_body: bool = option(True, "Policy and value of an agent share a body.")
    central_critic: bool = option(
        False,
        "Critics see the whole state and label in training (needs shared_body false).",
    )
    message_size: int = option(1, "Nodes named at once in each channel.", ge=1)
    linear_symbols: int = option(0, "Size of a second, plain message alphabet (0: none).", ge=0)
    normalize_observations: bool = option(True, "Scale message features by their statistics under random play.")
    kernels: Literal["auto", "native", "torch"] = option(
        "auto",
        "Compiled CPU kernels if there is a C++ compiler (auto), always (native) or never (torch).",
        meaning=RESUMABLE,
    )
    num_normalization_steps: int = option(1000, "Rounds of random play that these statistics are taken from.", ge=1)
