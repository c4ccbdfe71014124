"""State tracking: chains of moves and the claim where they end."""

from dataclasses import dataclass

from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class ChainSettings:
    """Chains of moves over five states, drawn from a seed. A test chain is no training chain, and no chain comes twice."""

    __pydantic_config__ = FORBID_UNKNOWN

    length: int = option(16, "Moves of a chain; under bisection 2 to the power of its halvings.", ge=2, le=64)
    num_generators: int = option(4, "Different moves, each a permutation of the states; the first two generate all 120.", ge=2, le=8)
    num_train: int = option(20_000, "Training chains.", ge=2)
    num_test: int = option(500, "Held-out chains.", ge=2)
