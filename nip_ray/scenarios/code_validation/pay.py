"""What an agent's prompt says of its payment: the amounts by name, and sentences where its table is none of the usual ones."""

from collections.abc import Mapping
from typing import Any

from nip_ray.protocols import Protocol, for_being_right, for_verdict
from nip_ray.protocols.payment import LEAST

_BETWEEN = {
    "linear": "in proportion to how sure you were",
    "brier": "by how far the probability that you gave to the truth falls short of 1, squared",
    "log": f"by the logarithm of the probability that you gave to the truth, which counts as at least {LEAST:g}",
}


def rewards_of(protocol: Protocol, agent: str, stance: int | None, names: Mapping[str, str], graded: bool) -> dict[str, Any]:
    """The variable `rewards` of the templates of `agent`, who argues for `stance`. names: agent -> its name in chats.

    graded: whether the verifier states how sure it is.
    """
    verifier = agent if agent in protocol.verifiers else protocol.viewpoint
    payment = protocol.payment if stance is None else protocol.payment.arguing({**protocol.payment.goals, agent: stance})
    judged, asking = payment.table(verifier), payment.turns.get(verifier, {})
    prover = agent if agent in protocol.provers else next(iter(protocol.provers), "")
    own, goal = payment.table(prover), payment.goals.get(prover, 1)
    right, wrong, undecided, wanted = judged[1][1], judged[0][1], judged[0][2], own[1][goal]
    shared = bool(prover) and own == judged and payment.turns.get(prover, {}) == asking
    usual = judged == for_being_right(right, wrong, undecided) and not set(asking) - {*protocol.verifiers}
    if agent in protocol.provers and not shared:
        usual = own == for_verdict(goal, wanted) and not payment.turns.get(agent)
    return {
        "prover": wanted,
        "verifier": right,
        "incorrect": wrong,
        "terminated": undecided,
        "no_guess": asking.get(verifier, 0.0),
        "shared": shared,
        "between": _BETWEEN[payment.scoring],
        "said": "" if usual or (shared and agent != verifier) else _said(protocol, agent, payment.table(agent), names, graded),
    }


def _said(protocol: Protocol, agent: str, table: tuple[tuple[float, ...], ...], names: Mapping[str, str], graded: bool) -> str:
    (true_reject, false_accept, undecided), (false_reject, true_accept, also) = table
    said = (
        f"You are paid {true_accept:g} when a correct solution is accepted, {false_reject:g} when it is rejected, "
        f"{true_reject:g} when a wrong one is rejected, {false_accept:g} when it is accepted"
    )
    between = _BETWEEN[protocol.payment.scoring] if agent in protocol.verifiers else "in proportion to how sure the decision is"
    said += f", and in between {between}." if graded else "."
    if undecided == also != 0:
        said += f" Without a decision in the end you are paid {undecided:g}."
    elif undecided != also:
        said += f" Without a decision in the end you are paid {also:g} for a correct solution and {undecided:g} for a wrong one."
    for speaker, amount in protocol.payment.turns.get(agent, {}).items():
        if amount:
            whose = "your turns" if speaker == agent else f'the turns of "{names[speaker]}"'
            said += f" Each of {whose}{' without a decision' if speaker in protocol.verifiers else ''} is paid to you with {amount:g}."
    return said
