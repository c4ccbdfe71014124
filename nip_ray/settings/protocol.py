"""The parameters of a protocol."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nip_ray.settings.options import option

FORBID_UNKNOWN = {"extra": "forbid"}  # a rule says what is wrong with amounts that are not finite

FIXED: Mapping[str, Mapping[str, Any]] = {"message_game": {"shared_reward": True}}
"""Protocol -> parameters that it has whatever its settings say."""


@dataclass(frozen=True)
class PayoffEntries:
    """Entries of a table of payments; none leaves an entry as it is."""

    __pydantic_config__ = FORBID_UNKNOWN

    true_accept: float | None = option(None, "Paid for the acceptance of a true claim.")
    false_accept: float | None = option(None, "Paid for the acceptance of a false claim.")
    true_reject: float | None = option(None, "Paid for the rejection of a false claim.")
    false_reject: float | None = option(None, "Paid for the rejection of a true claim.")
    undecided: float | None = option(None, "Paid when the rounds run out without a verdict.")
    table: tuple[tuple[float, ...], ...] | None = option(
        None,
        "The whole table: for each label a row of amounts, for each verdict in order and for none; other entries "
        "override it.",
    )


@dataclass(frozen=True)
class PayoffSettings(PayoffEntries):
    """Entries of one agent's table of payments; none leaves an entry as the other parameters make it."""

    __pydantic_config__ = FORBID_UNKNOWN

    turns: dict[str, float] = option(
        dict,
        "Agent -> paid for each of that agent's turns (negative: a cost); of the verifier's, those with no verdict but"
        " the last.",
    )
    by_role: dict[str, PayoffEntries] = option(
        dict,
        "Role that the episode draws -> entries that count in its episodes alone, above the others (helpful_sneaky).",
    )


@dataclass(frozen=True)
class ProtocolParams:
    """The parameters that protocols are built from; one that a protocol has no use for is refused when it is set."""

    __pydantic_config__ = FORBID_UNKNOWN

    max_rounds: int | None = option(
        None, "Rounds after which an undecided episode ends (none: the protocol's own).", ge=1
    )
    min_rounds: int | None = option(
        None, "First round, counted from 1, whose decision counts (none: the protocol's own).", ge=1
    )
    verifier_first: bool = option(True, "The verifier moves in round 0 (nip, debate, mnip, consultancy).")
    sequential: bool = option(False, "Provers speak one after the other instead of at once (debate, mnip).")
    prover0_first: bool = option(True, "prover0 speaks before prover1 in sequential order (debate, mnip).")
    half_chosen_by: Literal["opponent", "verifier"] = option(
        "opponent",
        "Agent that keeps a half of the disputed part: prover0, or the verifier, which then faces one prover "
        "(bisection).",
    )
    verdicts: tuple[str, ...] = option(
        ("reject", "accept"),
        "Names of the verdicts, one for each label in order. More than two (which digit?) with solo_verifier, debate,"
        " consultancy, open_consultancy, merlin_arthur and helpful_sneaky.",
        min_length=2,
    )
    prover_reward: float = option(1.0, "Paid to a prover whose goal the verifier's decision meets.")
    verifier_reward: float = option(1.0, "Paid to the verifier for a correct decision.")
    verifier_incorrect_penalty: float = option(-1.0, "Paid to the verifier for a wrong decision.")
    verifier_terminated_penalty: float = option(-1.0, "Paid to the verifier when the rounds run out undecided.")
    verifier_no_guess_reward: float = option(
        0.0, "Paid to the verifier for each of its turns without a registered decision."
    )
    verifier_scoring: Literal["linear", "brier", "log"] = option(
        "linear",
        "Pay of a graded verdict: in proportion to its confidence, or by its Brier or logarithmic score, under which "
        "the verifier earns most by stating its true belief. A network's confidence is its probability of accepting "
        "(ppo, reinforce).",
    )
    one_prover: bool = option(
        False,
        "One prover, who argues for the side that the episode draws, instead of one for each side (consultancy,"
        " merlin_arthur).",
    )
    judges: int = option(3, "Number of judges (judge_panel).", ge=1)
    panel_rule: Literal["majority", "unanimous", "veto", "mean"] = option(
        "majority",
        "Rule that combines votes: more than half of all judges; accepted if all accept, else rejected; rejected if "
        "one rejects, else accepted; or the mean probability of acceptance, of networks under ppo and reinforce "
        "(judge_panel).",
    )
    judges_paid_for: Literal["vote", "verdict"] = option(
        "vote", "Judges are paid for their own vote, or for the panel's verdict (judge_panel)."
    )
    shared_reward: bool = option(
        False, "Provers are paid by the verifier's table instead of their own, as message_game always does."
    )
    payoff: dict[str, PayoffSettings] = option(
        dict, "Agent -> what it is paid instead: entries of its table of payments."
    )
    force_guess: Literal["zero", "one", "y"] | None = option(
        None, "Debugging: replaces every decision of the verifier."
    )
    zero_knowledge: bool = option(
        False,
        "Adds an adversarial verifier, who tries to learn more than the verdict, and a simulator, who must do without"
        " the provers.",
    )
    simulator_reward_coefficient: float = option(
        1.0,
        "Paid to the simulator, and taken from the adversarial verifier, per unit of similarity (zero_knowledge).",
        ge=0,
    )
    aux_prover_reward_coefficient: float = option(
        1.0, "Paid to each prover per unit of what the simulator is paid (zero_knowledge).", ge=0
    )
    zero_knowledge_legacy: bool = option(
        False,
        "As published: similarity counts nodes that do not exist, and the simulator's decisions are left out"
        " (zero_knowledge).",
    )


@dataclass(frozen=True)
class ProtocolSettings(ProtocolParams):
    """The protocol and its parameters."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: str = option(
        "nip",
        "One that ships (nip, adp, debate, open_debate, critique, merlin_arthur, consultancy, open_consultancy,"
        " helpful_sneaky, mnip, bisection, prover_estimator, judge_panel, solo_verifier) or one that a plugin"
        " registers.",
    )

    def __post_init__(self) -> None:
        for key, value in FIXED.get(self.name, {}).items():  # so that the config says what is played
            object.__setattr__(self, key, value)
