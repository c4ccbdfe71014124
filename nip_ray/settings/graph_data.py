"""Where pairs of graphs come from."""

from dataclasses import dataclass

from nip_ray.settings.options import FILE, FORBID_UNKNOWN, option


@dataclass(frozen=True)
class GraphDataSettings:
    """Training and held-out pairs: from files, or made from a seed (the same wherever they are needed).

    Made training pairs never contain a held-out pair, wherever that comes from.
    """

    __pydantic_config__ = FORBID_UNKNOWN

    train: str | None = option(
        None, "File of training pairs (.npz of ours, the published data.pt, or a plain .npz); none: made.", meaning=FILE
    )
    test: str | None = option(None, "File of held-out pairs, likewise.", meaning=FILE)
    num_train: int | None = option(None, "Training pairs: how many to make (none: 10000), or a balanced truncation of the file.", ge=2)
    num_test: int | None = option(None, "Held-out pairs, likewise (none: 1000 where they are made).", ge=2)
    seed: int = option(0, "Seed of what is made and of truncations.", ge=0)
    graph_sizes: tuple[int, ...] = option((7, 8, 9, 10, 11), "Numbers of nodes of made graphs.", min_length=1)
    edge_probabilities: tuple[float, ...] = option((0.2, 0.4, 0.6, 0.8), "Their densities.", min_length=1)
    non_iso_prop_score_1: float = option(0.1, "Share of made non-isomorphic pairs that one refinement round tells apart.", ge=0, le=1)
    non_iso_prop_score_2: float = option(0.2, "Share that needs two rounds; the rest needs more.", ge=0, le=1)
    iso_prop_from_non_iso: float = option(
        0.5, "Share of made isomorphic pairs whose graph also occurs in a non-isomorphic one.", ge=0, le=1
    )
    min_wl_score: int | None = option(None, "Keep only training negatives with at least this Weisfeiler-Leman score (a curriculum).", ge=1)
