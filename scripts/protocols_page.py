#!/usr/bin/env python3
"""docs/protocols.md: all protocols side by side, read off their tables, with what is known of each one's equilibrium.

python scripts/protocols_page.py > docs/protocols.md
"""

import sys
import textwrap
from collections.abc import Iterator, Sequence
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
        "With the verifier as leader, and provers that answer it best, the equilibria with the least worst-case loss"
        " are the valid interactive proofs, where the agents are able to give any; played at once, games have other"
        " equilibria too (Hammond and Adam-Day, 'Neural Interactive Proofs', ICLR 2025). With an unbounded prover such"
        " proofs exist for all of PSPACE (Shamir, 'IP = PSPACE', JACM 1992).",
    ),
    Entry(
        "adp",
        "A verifier that hears nothing, and a prover that says nothing, are an equilibrium wherever the verifier is"
        " best off rejecting all; with the verifier as leader there are proofs for all of NP (Anil, Zhang, Wu and"
        " Grosse, 'Learning to give checkable answers with prover-verifier games', arXiv 2108.12099, whose game this"
        " is).",
    ),
    Entry(
        "debate",
        "Between the provers the sum is constant. With optimal play a polynomial-time judge decides all of PSPACE"
        " (Irving, Christiano and Amodei, 'AI safety via debate', arXiv 1805.00899). That takes lies which can be"
        " refuted by whoever has the means to tell them; with obfuscated arguments they cannot (Brown-Cohen, Irving and"
        " Piliouras, 'Scalable AI safety via doubly-efficient debate', ICML 2024).",
    ),
    Entry(
        "open_debate",
        "As in debate, and the side of prover0 follows from its best play. Where honest debaters win it is the true"
        " one, and so the choice alone tells the label; with language models open debaters were right more often than"
        " open consultants (Kenton et al., arXiv 2407.04622, who have the game).",
    ),
    Entry(
        "critique",
        "One round of debate, in which acceptance speaks first: the sum between proposer and critic is constant, and"
        " the verifier gains by the errors that can be shown where they are. Critiques help people to find errors, and"
        " models know of some that they do not tell (Saunders et al., arXiv 2206.05802).",
    ),
    Entry(
        "merlin_arthur",
        "Completeness and soundness of the verifier bound from below how much the parts of the input that provers point"
        " at tell of the label, unless single parts are common in one class and jointly rare (Wäldchen, Sharma, Turan,"
        " Zimmer and Pokutta, 'Interpretability guarantees with Merlin-Arthur classifiers', AISTATS 2024).",
    ),
    Entry(
        "merlin_arthur",
        "One prover in both seats; the bound above is on what it does in each role.",
        {"one_prover": True},
    ),
    Entry(
        "consultancy",
        "The prover is paid for its side whatever the truth, so a verifier that can check nothing of what is said"
        " learns nothing, and decides as it would alone; it gains by what can be shown for one side and not for the"
        " other. Judges of language models did worse than after debate (Khan et al., 'Debating with more persuasive"
        " LLMs leads to more truthful answers', ICML 2024; Kenton et al., arXiv 2407.04622).",
    ),
    Entry(
        "consultancy",
        "As with two provers, who have the same incentives.",
        {"one_prover": True},
    ),
    Entry(
        "open_consultancy",
        "A prover that is believed is paid for either side alike, so to tell the truth is an equilibrium, and so is a"
        " choice that has nothing to do with it, or one that the verifier always turns round, since nobody gains by"
        " another; what can be shown for the true side alone decides between them. Judges follow a consultant that has"
        " chosen the wrong side (Kenton et al., arXiv 2407.04622).",
    ),
    Entry(
        "helpful_sneaky",
        "The sneaky prover can say what the helpful one would say of the other label. So where nothing in a message can"
        " be checked, messages have nothing to do with the label in equilibrium, and the verifier is right as often as"
        " alone; it gains only by what cannot be forged. The game is that of Kirchner et al., 'Prover-verifier games"
        " improve legibility of LLM outputs', arXiv 2407.13692.",
    ),
    Entry(
        "mnip",
        "Provers who cannot hear each other can be questioned against each other. With unbounded provers there are such"
        " proofs for all of NEXP (Babai, Fortnow and Lund, 'Non-deterministic exponential time has two-prover"
        " interactive protocols', Computational Complexity 1991); the game, and its equilibria, as in nip (Hammond and"
        " Adam-Day).",
    ),
    Entry(
        "bisection",
        "Between the provers the sum is constant. Whoever is right can keep the dispute on a false step, and the"
        " verifier, who checks the one step that is left, is right in the equilibria in which it heeds what it checks,"
        " after two messages for each halving (Canetti, Riva and Rothblum, 'Practical delegation of computation using"
        " multiple servers', CCS 2011); there are others, in which it does not and is wrong (benchmarks/results.md"
        " lists those of a small game).",
    ),
    Entry(
        "bisection",
        "The verifier does not know which half is false: of one false step it keeps the half with it with probability"
        " 1/2, in each halving.",
        {"half_chosen_by": "verifier"},
    ),
    Entry(
        "prover_estimator",
        "What the prover is paid for errors the estimator pays. Where a part's truth is known the estimator does best"
        " to say it, and then a false claim is split in two of which one is called impossible; one that says anything"
        " else of a claim is shown an error of 1/2 at least by a prover that knows the truth. There is an equilibrium"
        " in which a verifier that looks at both is right, and there are others (docs/state-tracking.md). The game is"
        " made for what nobody knows: an estimator that cannot tell where a long argument is wrong need only give"
        " probabilities that the prover cannot tell from the truth, and then honest provers win if their argument stays"
        " good under small changes of them (Brown-Cohen, Irving and Piliouras, 'Avoiding obfuscation with"
        " prover-estimator debate', arXiv 2506.13609, where estimates are numbers, claims have many parts, and wrong"
        " estimates of later claims cost more).",
    ),
    Entry(
        "judge_panel",
        "A judge that is paid for its own vote has one best vote, whatever the others do. Paid for the verdict it is"
        " indifferent wherever it is not pivotal, so that under a majority all may agree on the wrong side, and nobody"
        " gains by departing alone: of three judges who know only that 7 of 10 claims are true, where one pays 5 for a"
        " false acceptance, three rejections are an equilibrium as well as three acceptances.",
    ),
    Entry(
        "solo_verifier",
        "No game: the best that the verifier can do alone, which every proof has to beat.",
    ),
    Entry(
        "message_game",
        "All want the right verdict, so the best play of the team is an equilibrium: always right, with two symbols or"
        " more. Talk that nobody heeds is another, as in every such game (Crawford and Sobel, 'Strategic information"
        " transmission', Econometrica 1982).",
    ),
    Entry(
        "nip",
        "What it asks for is that a simulator, without the prover, can say what the adversarial verifier says. If"
        " one-way functions exist, all of NP has such proofs (Goldreich, Micali and Wigderson, 'Proofs that yield"
        " nothing but their validity', JACM 1991); the game is that of Hammond and Adam-Day.",
        {"zero_knowledge": True},
    ),
)

_INTRODUCTION = """\
# Protocols side by side

<!-- written by `python scripts/protocols_page.py`; edit nip_ray/protocols/tables.py, or what that module knows -->

Every protocol that ships, with the default parameters but for those in its title. Who is paid what can be changed entry
by entry ([configuration.md](configuration.md), `protocol.payoff`), and a table of your own is
[a tutorial](tutorials/own-protocol.md). What runs made of them is in [metrics.md](metrics.md) and
[benchmarks/results.md](../benchmarks/results.md). `matrix_game`, `kuhn_poker` and `hironaka` have no verifier: their
scenarios pay ([games.md](games.md), [hironaka.md](hironaka.md)).

"""
_SMALL = """
## Equilibria of a small game, exactly

`grow` in `benchmarks/_equilibrium.py` makes the tree of all dialogues of agents about a few instances, where symbols
and rounds are few. Of it, `regrets()` is what each agent could gain by its best answer to the others (all 0 in a Nash
equilibrium), and `pure_equilibria()` what agents are paid in every equilibrium in pure strategies.
`benchmarks/equilibria.py` trains networks under each protocol in a haystack of two places, where the verifier is shown
whether what a prover points at is the needle, or about a claim of two steps (bisection, prover_estimator), where it is
shown whether one of them holds, and prints both: [results](../benchmarks/results.md#equilibria-of-small-games).
Most have equilibria in which the verifier heeds nobody, beside those in which it looks.
"""
_LEGEND = """
A drawing has a row for every agent and channel that it writes to, and a column for each round: `o` writes, `V` writes
or gives a verdict, which counts, `C` writes and chooses its side. On the right stands who reads along. Where the
episode draws who speaks, each possibility is drawn.

"""


def page() -> str:
    """The page, in Markdown."""
    return (
        "\n".join(
            chain([_INTRODUCTION.rstrip(), ""], _side_by_side(), [_LEGEND], *map(_section, ENTRIES), [_SMALL])
        ).rstrip()
        + "\n"
    )


def _side_by_side() -> Iterator[str]:
    yield "| protocol | speak in turn | cannot read | rounds, first verdict in | decide | paid for |"
    yield "|---|---|---|---|---|---|"
    for entry in ENTRIES:
        table = entry.table
        anchor = "".join(
            letter for letter in entry.title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_"
        )
        cells = [
            f"[{entry.title}](#{anchor})",
            _order(table),
            _hidden(table),
            f"{table.max_rounds}, {table.min_rounds}",
        ]
        cells += [", ".join(agent for agent in table.deciders if agent != table.chooser), _wishes(table)]
        yield f"| {' | '.join(cells)} |"


def _order(table: Protocol) -> str:
    """The agents in a cycle of rounds: those of a round joined by +, rounds by commas, seed classes by "or"."""
    cycles = [
        [" + ".join(dict.fromkeys(agent for agent, _ in turns)) for turns in one[: table.max_rounds]]
        for one in table.turns
    ]
    return " or ".join(", ".join(_shortened(cycle)) for cycle in cycles)


def _shortened(cycle: Sequence[str]) -> Sequence[str]:
    """A cycle that repeats the same two or three rounds, written once."""
    period = next((p for p in (2, 3) if len(cycle) > 2 * p and cycle[:p] == cycle[p : 2 * p]), None)
    return cycle if period is None else [*cycle[:period], "...", cycle[-1]]


def _hidden(table: Protocol) -> str:
    """The agents that do not read a channel."""
    hidden = {
        agent: [channel for channel in table.channels if channel not in table.sees[agent]] for agent in table.agents
    }
    return "; ".join(f"{agent}: {', '.join(channels)}" for agent, channels in hidden.items() if channels) or "-"


def _wishes(table: Protocol) -> str:
    """Each agent's goal, in a word; by role, where that differs."""
    said = []
    for agent in table.agents:
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
        *textwrap.wrap(" ".join(about.split()), _WIDTH),
        "",
        "```text",
        *drawing(table),
        "```",
        "",
    )
    if table.roles:
        how = f"{table.chooser} chooses" if table.chooser else "The episode draws"
        yield f"{how} the role, {' or '.join(table.roles)}; told of it: {', '.join(table.told) or 'nobody'}.\n"
    for agent in table.agents:
        yield from textwrap.wrap(f"- {agent}: {_earns(agent, table)}", _WIDTH, subsequent_indent="  ")
    yield from ("", *textwrap.wrap(f"Known: {entry.known}", _WIDTH), "")


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
