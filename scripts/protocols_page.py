#!/usr/bin/env python3
"""docs/protocols.md: all protocols side by side, read off their tables, with what is known of each one's equilibrium.

python scripts/protocols_page.py > docs/protocols.md
"""

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from nip_ray.evaluation.report.describe import paid
from nip_ray.protocols.drawing import drawing
from nip_ray.protocols.spec import Protocol, ProtocolParams
from nip_ray.protocols.tables import PROTOCOLS, table_of

_WIDTH = 118


@dataclass(frozen=True)
class Entry:
    """A section of the page: a protocol with these parameters. known: theory of its equilibrium, with the source, for
    readers."""

    name: str
    known: str
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The protocol and its parameters."""
        return ", ".join([self.name, *(f"{key}: {str(value).lower()}" for key, value in self.params.items())])

    @property
    def table(self) -> Protocol:
        """The protocol itself."""
        return table_of(self.name, ProtocolParams(**self.params))


ENTRIES = (
    Entry(
        "nip",
        "with the verifier as leader, the equilibria with the least worst-case loss are the valid interactive proofs"
        " (Hammond and Adam-Day, ICLR 2025); for an unbounded prover they exist for all of PSPACE (Shamir, JACM 1992).",
    ),
    Entry("adp", "with the verifier as leader there are proofs for all of NP (Anil et al., arXiv 2108.12099)."),
    Entry(
        "debate",
        "with optimal play a polynomial-time judge decides all of PSPACE (Irving et al., arXiv 1805.00899), if lies can"
        " be refuted; obfuscated arguments cannot (Brown-Cohen et al., ICML 2024).",
    ),
    Entry(
        "open_debate",
        "where honest debaters win, prover0's choice reveals the label; open debaters were right more often than open"
        " consultants (Kenton et al., arXiv 2407.04622).",
    ),
    Entry("critique", "critiques help people to find errors (Saunders et al., arXiv 2206.05802)."),
    Entry(
        "merlin_arthur",
        "completeness and soundness bound the information about the label in the features that provers point at, with"
        " exceptions (Wäldchen et al., AISTATS 2024). With `one_prover: true` one prover argues for the drawn side.",
    ),
    Entry(
        "consultancy",
        "a verifier gains only by what can be shown for one side; judges did worse than after debate (Khan et al., ICML"
        " 2024; Kenton et al., arXiv 2407.04622). With `one_prover: true` one prover argues for the drawn side.",
    ),
    Entry(
        "open_consultancy",
        "truth, choices independent of it, and inverted choices are all equilibria; judges follow a consultant that has"
        " chosen the wrong side (Kenton et al., arXiv 2407.04622).",
    ),
    Entry(
        "helpful_sneaky",
        "the sneaky prover can imitate the helpful one, so the verifier gains only by what cannot be forged (Kirchner"
        " et al., arXiv 2407.13692).",
    ),
    Entry(
        "mnip",
        "provers that cannot read each other can be questioned against each other: proofs for all of NEXP (Babai,"
        " Fortnow and Lund, 1991).",
    ),
    Entry(
        "bisection",
        "the right prover can keep the dispute on a false step, and a verifier that checks the remaining step is right"
        " (Canetti, Riva and Rothblum, CCS 2011); there are equilibria in which it does not check, and is wrong.",
    ),
    Entry(
        "bisection",
        "the verifier keeps a false step with probability 1/2 at each halving.",
        {"half_chosen_by": "verifier"},
    ),
    Entry(
        "prover_estimator",
        "the estimator's best estimate is the truth where it is known; where it is not, honest provers win if their"
        " argument is stable under small changes (Brown-Cohen, Irving and Piliouras, arXiv 2506.13609, with numbers as"
        " estimates and many parts).",
    ),
    Entry(
        "judge_panel",
        "paid for the verdict a judge is indifferent unless pivotal: of three judges who know only that 7 of 10 claims"
        " are true, where one pays 5 for a false acceptance, three rejections are an equilibrium as well as three"
        " acceptances.",
    ),
    Entry("solo_verifier", "not a game: the best that the verifier can do alone."),
    Entry(
        "message_game",
        "always right with two symbols or more; ignored messages are another equilibrium (Crawford and Sobel, 1982).",
    ),
    Entry(
        "nip",
        "if one-way functions exist, all of NP has such proofs (Goldreich, Micali and Wigderson, JACM 1991).",
        {"zero_knowledge": True},
    ),
)

_INTRODUCTION = """\
# Protocols side by side

Use this page to compare the protocols that ship: who speaks when, who reads what, who is paid for what.

```yaml
protocol: {name: debate, sequential: true, max_rounds: 6}
```

Parameters are the defaults, except in titles. [status.md](status.md) lists which protocols are tested under which
learning rules, [results.md](results.md) what training reached, [own-protocol](tutorials/own-protocol.md) your own.
`protocol.payoff` changes single payments ([keys](configuration/protocol.md)). In `matrix_game`, `kuhn_poker`,
`leduc_poker` and `hironaka` the scenario pays ([games.md](games.md), [hironaka.md](hironaka.md)).

"""
_SMALL = """
## Equilibria of a small game, exactly

`benchmarks/equilibria.py` trains networks under each protocol in a game of two places or two steps and prints regrets
and equilibria, computed from the tree of all dialogues: [results](../benchmarks/results.md#equilibria-of-small-games).
Most protocols have equilibria in which the verifier ignores all messages.

<!-- written by `python scripts/protocols_page.py` from nip_ray/protocols/tables.py and that module's notes -->
"""
_LEGEND = """
A drawing has a row for every agent and channel that it writes to, and a column for each round, from 1: `o` writes, `V`
writes or gives a verdict, `C` writes and chooses its side. Where the episode draws the speaker, each case is drawn.
Unless stated otherwise verifiers are paid 1 for a correct verdict and -1 for a wrong one, provers 1 for the verdict in
the table, right or wrong.

"""
_USUAL = ("1 for acceptance, right or wrong", "1 for rejection, right or wrong")


def page() -> str:
    """The page, in Markdown."""
    return (
        "\n".join(
            chain([_INTRODUCTION.rstrip(), ""], _side_by_side(), [_LEGEND], *map(_section, ENTRIES), [_SMALL])
        ).rstrip()
        + "\n"
    )


def _side_by_side() -> Iterator[str]:
    yield "| protocol | rounds, first verdict in | paid for |"
    yield "|---|---|---|"
    for entry in ENTRIES:
        table = entry.table
        anchor = "".join(
            letter for letter in entry.title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_"
        )
        cells = [
            f"[{entry.title}](#{anchor})",
            f"{table.max_rounds}, {table.min_rounds}",
            _wishes(table),
        ]
        yield f"| {' | '.join(cells)} |"


def _wishes(table: Protocol) -> str:
    """The goal of each agent but a verifier, in a word; by role, where that differs."""
    said = []
    for agent in (agent for agent in table.agents if agent not in table.verifiers or len(table.agents) == 1):
        words = {role: _wish(table, agent, role) for role in table.roles or ("",)}
        same = len(set(words.values())) == 1
        said.append(
            f"{agent}: {words.popitem()[1]}"
            if same
            else f"{agent}: " + ", ".join(f"{word} ({role})" for role, word in words.items())
        )
    return "; ".join(said)


def _wish(table: Protocol, agent: str, role: str) -> str:
    extra, payment = table.zero_knowledge, table.payment.of(role or None)
    if extra is not None and agent in (extra.adversary, extra.simulator):
        return "likeness" if agent == extra.simulator else "unlikeness"
    (right, wrong, _), (missed, found, _) = payment.table(agent)
    # acceptance of a false claim, of a true one
    likes = (wrong > right) - (wrong < right), (found > missed) - (found < missed)
    wish = {(-1, 1): "truth", (1, -1): "untruth", (1, 1): "acceptance", (-1, -1): "rejection"}.get(likes, "its table")
    if error := payment.per_error.get(agent):
        own = "wrong estimates" if error > 0 else "right estimates"
        return f"{wish} and {own}" if any(map(any, payment.table(agent))) else own
    return wish


def _section(entry: Entry) -> Iterator[str]:
    table = entry.table
    about = (PROTOCOLS[entry.name].__doc__ or "").split("\n\n")[0].split(" Source: ")[0]
    yield from (
        f"## {entry.title}",
        "",
        *([] if entry.params else [*textwrap.wrap(" ".join(about.split()), _WIDTH), ""]),
        "```text",
        *drawing(table),
        "```",
        "",
    )
    if table.roles:
        how = f"{table.chooser} chooses" if table.chooser else "The episode draws"
        yield f"{how} the role, {' or '.join(table.roles)}; it is known to {', '.join(table.told) or 'no agent'}.\n"
    earnings = [f"- {agent}: {_earns(agent, table)}" for agent in table.agents if not _is_usual(agent, table)]
    for line in earnings:
        yield from textwrap.wrap(line, _WIDTH, subsequent_indent="  ")
    yield from (*([""] if earnings else []), *textwrap.wrap(f"Known: {entry.known}", _WIDTH), "")


def _is_usual(agent: str, table: Protocol) -> bool:
    """Paid as the legend says, in every role."""
    earned = _earns(agent, table)
    if agent in table.verifiers:
        return earned == "1 for a correct verdict and -1 for a wrong one"
    return earned in _USUAL or (bool(table.roles) and all(usual in earned for usual in _USUAL))


def _earns(agent: str, table: Protocol) -> str:
    """An agent's payments, in amounts."""
    extra = table.zero_knowledge
    if extra is None or agent in table.verifiers:
        return paid(agent, table)
    if agent in table.provers:
        return f"{paid(agent, table)}, {extra.prover_reward:g} for each unit of what the simulator is paid"
    return (
        f"{extra.simulator_reward if agent == extra.simulator else -extra.simulator_reward:g} for each unit of likeness"
    )


def main() -> None:
    """Print the page."""
    sys.stdout.write(page())


if __name__ == "__main__":
    main()
