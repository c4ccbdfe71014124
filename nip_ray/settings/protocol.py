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
        "The whole table: for each label an amount for each verdict, then for none.",
    )


@dataclass(frozen=True)
class PayoffSettings(PayoffEntries):
    """Entries of one agent's table of payments; none leaves an entry as the other parameters make it."""

    __pydantic_config__ = FORBID_UNKNOWN

    turns: dict[str, float] = option(
        dict,
        "Agent -> amount for each of that agent's turns (negative: a cost).",
    )
    by_role: dict[str, PayoffEntries] = option(
        dict,
        "Role -> entries that count in its episodes only, before the others (helpful_sneaky).",
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
        "Agent that keeps a half of the disputed part: prover0, or the verifier (bisection).",
    )
    verdicts: tuple[str, ...] = option(
        ("reject", "accept"),
        "Names of the verdicts by label; more than two in some protocols.",
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
        "Pay of a graded verdict: by its confidence, Brier score or logarithmic score.",
    )
    one_prover: bool = option(
        False,
        "One prover argues for the drawn side, instead of one prover each (consultancy, merlin_arthur).",
    )
    judges: int = option(3, "Number of judges (judge_panel).", ge=1)
    panel_rule: Literal["majority", "unanimous", "veto", "mean"] = option(
        "majority",
        "Combination of votes: majority, unanimity, veto, or mean probability of networks (judge_panel).",
    )
    judges_paid_for: Literal["vote", "verdict"] = option(
        "vote", "Judges are paid for their own vote, or for the panel's verdict (judge_panel)."
    )
    shared_reward: bool = option(False, "Pay provers by the verifier's table, as message_game always does.")
    payoff: dict[str, PayoffSettings] = option(dict, "Agent -> entries that replace those of its payoff table.")
    force_guess: Literal["zero", "one", "y"] | None = option(
        None, "Debugging: replaces every decision of the verifier."
    )
    zero_knowledge: bool = option(
        False,
        "Add an adversarial verifier and a simulator, which must imitate it without the provers.",
    )
    simulator_reward_coefficient: float = option(
        1.0,
        "Paid per unit of similarity to the simulator, by the adversarial verifier (zero_knowledge).",
        ge=0,
    )
    aux_prover_reward_coefficient: float = option(
        1.0, "Paid to each prover per unit of the simulator's pay (zero_knowledge).", ge=0
    )
    zero_knowledge_legacy: bool = option(
        False,
        "As published: count nodes that do not exist, leave out the simulator's decisions (zero_knowledge).",
    )


@dataclass(frozen=True)
class ProtocolSettings(ProtocolParams):
    """The protocol and its parameters."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: str = option(
        "nip",
        "The protocol: one that ships (protocols.md) or one that a plugin registers.",
    )

    def __post_init__(self) -> None:
        for key, value in FIXED.get(self.name, {}).items():  # so that the config says what is played
            object.__setattr__(self, key, value)
