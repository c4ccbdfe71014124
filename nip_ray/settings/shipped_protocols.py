"""What a config has to know of the protocols that ship: who plays, for how long, when the verifier speaks, which parameters count.

The tables themselves are in `nip_ray.protocols`, where torch is needed; tests hold the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from nip_ray.settings.protocol import ProtocolParams


@dataclass(frozen=True)
class ShippedProtocol:
    """One protocol in short.

    agents: their names. max_rounds, min_rounds: its own limits (min_rounds None: always the last round). fixed_length: it takes no others.
    period, verifier_turn: the verifier speaks in the rounds that leave `verifier_turn` modulo `period`, unless the order is a
    parameter; verifier_turn is None in a game without a verifier. order_parameters: those of verifier_first, sequential and prover0_first
    that it has a use for. goals: prover -> the decision (0 reject, 1 accept) that it is paid for. shared_reward: provers are always paid
    what the verifier is.
    """

    agents: tuple[str, ...]
    max_rounds: int = 8
    min_rounds: int | None = 1
    fixed_length: bool = False
    period: int = 2
    verifier_turn: int | None = 0
    order_parameters: tuple[str, ...] = ()
    goals: Mapping[str, int] = field(default_factory=dict)
    shared_reward: bool = False


ORDER_PARAMETERS = ("verifier_first", "sequential", "prover0_first")
_PAIR = ("prover", "verifier")
_TRIO = ("prover0", "prover1", "verifier")
_PLAYERS = ("player0", "player1")
_PERSUADES, _OPPOSE, _BOTH_PERSUADE = {"prover": 1}, {"prover0": 0, "prover1": 1}, {"prover0": 1, "prover1": 1}

SHIPPED: dict[str, ShippedProtocol] = {
    "nip": ShippedProtocol(_PAIR, order_parameters=("verifier_first",), goals=_PERSUADES),
    "adp": ShippedProtocol(_PAIR, max_rounds=2, fixed_length=True, verifier_turn=1, goals=_PERSUADES),
    "debate": ShippedProtocol(_TRIO, order_parameters=ORDER_PARAMETERS, goals=_OPPOSE),
    "merlin_arthur": ShippedProtocol(_TRIO, max_rounds=2, fixed_length=True, verifier_turn=1, goals=_OPPOSE),
    "mnip": ShippedProtocol(_TRIO, order_parameters=ORDER_PARAMETERS, goals=_BOTH_PERSUADE),
    "solo_verifier": ShippedProtocol(("verifier",), max_rounds=1, fixed_length=True, period=1),
    "multi_channel_test": ShippedProtocol(
        ("prover0", "prover1", "prover2", "verifier"), min_rounds=2, fixed_length=True, period=3, verifier_turn=2
    ),
    "message_game": ShippedProtocol(_PAIR, min_rounds=None, period=1, shared_reward=True),
    "matrix_game": ShippedProtocol(_PLAYERS, max_rounds=1, period=1, verifier_turn=None),
    "kuhn_poker": ShippedProtocol(_PLAYERS, max_rounds=3, fixed_length=True, verifier_turn=None),
    "hironaka": ShippedProtocol(("host", "agent"), max_rounds=200, fixed_length=True, verifier_turn=None),
}
"""By name."""

BOUND_TO_SCENARIO = {"message_game": "message_game", "matrix_game": "matrix_game", "kuhn_poker": "matrix_game", "hironaka": "hironaka"}
"""Protocol -> the one scenario that it is played in, and that is played under no protocols but these."""

ADVERSARY, SIMULATOR = "adversarial_verifier", "simulator"
"""The agents that zero knowledge adds."""
ZERO_KNOWLEDGE_PARAMETERS = ("simulator_reward_coefficient", "aux_prover_reward_coefficient", "zero_knowledge_legacy")
ZERO_KNOWLEDGE_SCENARIOS = ("graph_isomorphism", "image_classification")
"""Where zero knowledge is played."""


def agents_of(name: str, params: ProtocolParams) -> tuple[str, ...]:
    """Who plays a shipped protocol under `params`, in index order."""
    return (*SHIPPED[name].agents, *((ADVERSARY, SIMULATOR) if params.zero_knowledge else ()))


def limits(name: str, params: ProtocolParams) -> tuple[int, int]:
    """(max_rounds, min_rounds) of a shipped protocol under `params`."""
    facts = SHIPPED[name]
    longest = facts.max_rounds if params.max_rounds is None else params.max_rounds
    if facts.min_rounds is None:
        return longest, longest
    return longest, facts.min_rounds if params.min_rounds is None else params.min_rounds


def verifier_rounds(name: str, params: ProtocolParams) -> list[int]:
    """The rounds, counted from 0, in which the verifier of a shipped protocol has a turn."""
    facts = SHIPPED[name]
    period, turn = facts.period, facts.verifier_turn
    if turn is None:
        return []
    if "verifier_first" in facts.order_parameters:
        period = 3 if params.sequential and "sequential" in facts.order_parameters else 2
        turn = 0 if params.verifier_first else period - 1
    return list(range(turn, limits(name, params)[0], period))


def useless_parameters(name: str, params: ProtocolParams) -> list[str]:
    """The parameters that are set though `name` is a game without a verifier, which has a use for max_rounds alone."""
    if name not in SHIPPED or SHIPPED[name].verifier_turn is not None:
        return []
    unset = {field.name: (field.default,) for field in fields(ProtocolParams)} | {"min_rounds": (None, SHIPPED[name].min_rounds)}
    return [key for key, values in unset.items() if key != "max_rounds" and getattr(params, key) not in values]
