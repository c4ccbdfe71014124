"""The turn table of a protocol as text: a row for every agent and channel that it writes to, a column for each round,
from 1.

`o` writes, `V` writes or gives a verdict that counts, `C` writes and chooses its side. On the right are the other
readers. If the episode draws who speaks, each possibility is drawn, with an empty line between them.
"""

from nip_ray.protocols.spec import Protocol

_MOST_ROUNDS = 13


def drawing(protocol: Protocol) -> list[str]:
    """The lines of the drawing. Rounds beyond the thirteenth, which repeat the cycle, are not drawn."""
    rounds = min(protocol.max_rounds, _MOST_ROUNDS)
    lines = []
    for number, turns in enumerate(protocol.turns):
        spoken = [turns[r % len(turns)] for r in range(rounds)]
        pairs = [(a, c) for a in protocol.agents for c in protocol.channels if any((a, c) in said for said in spoken)]
        names = [agent if len(protocol.channels) == 1 else f"{agent} > {channel}" for agent, channel in pairs]
        width = max(map(len, ["round", *names]))
        head = (
            "round".ljust(width)
            + "".join(f"{r:3}" for r in range(1, rounds + 1))
            + (" ..." if rounds < protocol.max_rounds else "")
        )
        lines += ([""] if number else []) + [head + "   read by"]
        for name, pair in zip(names, pairs):
            agent, channel = pair
            marks = ["  " + (_mark(protocol, agent, r) if pair in spoken[r] else ".") for r in range(rounds)]
            readers = [other for other in protocol.agents if other != agent and channel in protocol.sees[other]]
            row = name.ljust(width) + "".join(marks)
            lines.append(row.ljust(len(head)) + "   " + (", ".join(readers) or "none"))
    return lines


def _mark(protocol: Protocol, agent: str, round: int) -> str:
    if agent == protocol.chooser:
        return "C" if round == protocol.choice_round else "o"
    return "V" if agent in protocol.deciders and round >= protocol.min_rounds - 1 else "o"
