"""Chains in English, from which a prover has to work out the states itself.

Decisions that matter here:
- no chat holds a true state but the first one, nor the state from which a claim would follow;
- the moves are described first, alike in all chats of an agent, so that models share their encoding;
- a place in the chain is a step: "before move 1" would be read as before m1;
- replies are those that `StateTrackingInWords.choices` lists.
"""

from collections.abc import Sequence

from nip_ray.protocols import DECISIONS
from nip_ray.scenarios.state_tracking.chains import GENERATORS
from nip_ray.scenarios.state_tracking.items import MOVES, STATES, VERDICTS, ChainItem, Dispute

Committed = tuple[int, ...] | None


def commit(item: ChainItem, at: Dispute | None, moves: int, wish: str) -> str:
    """The chat of the prover that commits to the middle state of `at`, or to all states (None). moves: different ones
    that chains have. wish: of `wish_for`."""
    told = f"{_rules(moves)}\n{_chain(item)}{wish}"
    if at is None:
        return f"{told} In which box is the ball before each step but the first? Reply with the letters, in order."
    return f"{told} {_left(at)} In which box is the ball before step {at.halfway}? Reply with its letter."


def point(item: ChainItem, at: Dispute | None, committed: Committed, moves: int, wish: str) -> str:
    """The chat of the prover that keeps a half of `at`, or names a move of the committed chain."""
    told = f"{_rules(moves)}\n{_chain(item)}{wish}"
    if at is None:
        return f"{told} {_said(committed)} Which step is wrong? Reply with its number."
    return f"{told} {_left(at)} {_halves(at)}"


def halve(at: Dispute) -> str:
    """The chat of a verifier that keeps a half of `at`; it is shown no moves."""
    return f"A ball is moved between the boxes {_BOXES}. {_left(at)} {_halves(at)}"


def check(move: int, at: Dispute) -> str:
    """The chat of a verifier that judges the one move of `at`."""
    return (
        f"A ball is in one of the boxes {_BOXES}. {_takes(move)} Is it right that {MOVES[move]} takes it from"
        f" {STATES[at.low_state]} to {STATES[at.high_state]}? Reply accept or reject."
    )


def overview(item: ChainItem, at: Dispute | None, committed: Committed, moves: int, choices: Sequence[str]) -> str:
    """The chat of a verifier that judges the whole chain. at: the move that it asked for. choices: its legal
    replies."""
    told = [f"{_rules(moves)}\n{_chain(item)}"]
    if committed is not None:
        told.append(_said(committed))
    if at is not None:
        told.append(
            f"The prover says that step {at.low} takes the ball from {STATES[at.low_state]} to {STATES[at.high_state]}."
        )
    asks, decides = any(choice.isdecimal() for choice in choices), not set(VERDICTS).isdisjoint(choices)
    if asks:
        told.append(f"Reply with the number of a step to see it{', accept or reject' if decides else ''}.")
    elif decides:
        more = "accept, reject, or pass to hear more" if "pass" in choices else "accept or reject"
        told.append(f"Is the claim right? Reply {more}.")
    else:
        told.append("Reply pass to hear more.")
    return " ".join(told)


def wish_for(stance: int | None, role: str | None) -> str:
    """The sentence about the pay of a prover, "" without one. role: drawn by the episode and known to the prover."""
    told = "" if role is None else f" You are {role}."
    return told if stance is None else f"{told} You want the verifier to {DECISIONS[stance]} the claim."


_BOXES = ", ".join(STATES)


def _rules(moves: int) -> str:
    return "\n".join([f"A ball is in one of the boxes {_BOXES}.", *map(_takes, range(moves))])


def _takes(move: int) -> str:
    ways = ", ".join(f"{STATES[before]} to {STATES[after]}" for before, after in enumerate(GENERATORS[move]))
    return f"Move {MOVES[move]} takes it from {ways}."


def _chain(item: ChainItem) -> str:
    moves = ", ".join(f"{place} {MOVES[move]}" for place, move in enumerate(item.moves))
    return (
        f"The ball starts in box {STATES[item.states[0]]}. The steps are: {moves}. Claim: it ends in box"
        f" {STATES[item.claim]}."
    )


def _left(at: Dispute) -> str:
    return (
        f"It is said that before step {at.low} the ball is in box {STATES[at.low_state]}, and after step {at.high - 1}"
        f" in box {STATES[at.high_state]}."
    )


def _halves(at: Dispute) -> str:
    assert at.middle is not None
    return (
        f"The prover says that before step {at.halfway} it is in box {STATES[at.middle]}. Which half is wrong? Reply"
        " left (before) or right (after)."
    )


def _said(committed: Committed) -> str:
    said = "nothing" if committed is None else " ".join(STATES[state] for state in committed)
    return f"The prover says that the ball passes through the boxes {said}."
