"""Self-proving models: a language model returns its answer with a proof that code checks, so that no model can have a
wrong answer accepted (Amit, Goldwasser, Paradise and Rothblum, arXiv 2405.15722).

`examples/self_proving.yaml` trains one: nip-ray train examples/self_proving.yaml

Decisions that matter here:
- a reply ends with "." and the proof, and nothing else of it is checked. What stands before it, if `annotated`, are the
  steps of an algorithm: with them each token follows from a few others;
- `gcd`: g divides a and b, and g = u a + v b, so g is their greatest common divisor. `two_colouring`: a colouring of a
  graph without an edge of one colour, or a cycle of odd length, which no such colouring has;
- under `self_proving` one prover speaks, and the code pays it. Under `adp` (two_colouring only) a verifier that learns
  takes the place of the code: the prover claims that there is a colouring. Its error is exact, over all that the
  prover can send.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from math import exp, log
from random import Random
from typing import Any, Literal

import networkx

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, LanguageScenario, Parsed, Probabilities, Turn
from nip_ray.plugins import register_language_scenario
from nip_ray.protocols import DECISIONS, Payment, Protocol, ProtocolParams, reads, register
from nip_ray.scenarios.language import LanguageScenarioKind
from nip_ray.seeding import stable_seed
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class SelfProvingSettings:
    """Inputs whose answers can be proved."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["self_proving"] = option("self_proving", "The scenario.")
    task: Literal["gcd", "two_colouring"] = option("gcd", "Task: greatest common divisors, or colourings of graphs.")
    size: int = option(
        4, "Decimal digits of the numbers of gcd, or vertices of the graphs of two_colouring.", ge=2, le=8
    )
    annotated: bool = option(True, "Write the steps of an algorithm before the proof, in examples to imitate.")
    num_train: int = option(100_000, "Training inputs.", ge=2)
    num_test: int = option(10_000, "Held-out inputs.", ge=2)
    agents: dict[str, LanguageAgentSettings] = option(
        dict, "Agent -> its model; `_default` serves the agents not named."
    )


@dataclass(frozen=True)
class Item:
    """An item. given: the two numbers of gcd, or the ends of all edges. y: 1 if the graph has a colouring; gcd: 1."""

    id: int
    y: int
    given: tuple[int, ...]


Input = tuple[int, tuple[int, ...]]
"""(y, given) of an `Item`."""


def _apart(drawn: Callable[[int], Input], num_train: int, num_test: int) -> tuple[list[Input], list[Input]]:
    """(train, test) without an input in both. drawn: of the number in its split. Raises UserError if so many are held
    out that training inputs would differ in kind from them."""
    test, train = [drawn(number) for number in range(num_test)], list[Input]()
    held_out, refused = set(test), 0
    while len(train) < num_train:
        if (one := drawn(len(train))) not in held_out:
            train.append(one)
        elif (refused := refused + 1) > len(train) + 100:
            raise UserError(
                f"scenario.num_test: {num_test} held-out inputs are more than half of what is drawn at this"
                " scenario.size, expected fewer"
            )
    return train, test


# ------------------------------------------------------------------------------------- greatest common divisors

SIGNS = ("+", "-")
ROWS = (("r", "u", "v"), ("R", "U", "V"))
"""Rows of either number: the rest r, and its coefficients. r = u a - v b, and R = V b - U a."""
TRIES = ("t", "T")
DIVISORS = (("d", "x", "y"), ("D", "X", "Y"))
"""Rows of either number's divisor: the rest of the other number and its coefficients, times a power of ten."""


def gcd_words(given: Sequence[int], size: int) -> list[str]:
    """Both numbers."""
    return _rows([name for name, _, _ in ROWS], given, size)


def gcd_steps(given: Sequence[int], size: int) -> tuple[list[str], list[str]]:
    """(steps, proof) of the extended Euclidean algorithm, in steps that each follow from a few words before.

    A word is a digit with its row and place (d1:3 is 30 of a divisor), ones first, and what a computed one carries
    (+) or borrows (-). A number is taken from the other one until a try fails, for each power of ten. Every success is
    followed by what is left and its coefficients, so that the newest row of a name is always the true one.
    """
    steps: list[str] = []
    numbers, turn = [(given[0], 1, 0), (given[1], 0, 1)], 0
    while True:
        (left, u, v), divisor = numbers[turn], numbers[1 - turn]
        steps += ["/", *_rows(ROWS[turn], numbers[turn], size)]
        for power in range(max(len(str(left)) - len(str(divisor[0])), 0), -1, -1):
            less, more_u, more_v = (10**power * number for number in divisor)
            steps += [f"e{power}", *_rows(DIVISORS[turn], (less, more_u, more_v), size)]
            while less <= left:
                steps += [*_row(TRIES[turn], left, -less, size), *_row(ROWS[turn][0], left - less, 0, size)]
                steps += _row(ROWS[turn][1], u, more_u, size) + _row(ROWS[turn][2], v, more_v, size)
                left, u, v = left - less, u + more_u, v + more_v
            steps += _row(TRIES[turn], left, -less, size)
        if not left:
            proof = _rows(DIVISORS[0], divisor, size)
            return steps, [*proof[:size], SIGNS[1 - turn], *proof[size:]]
        numbers[turn], turn = (left, u, v), 1 - turn


def gcd_proved(given: Sequence[int], size: int, proof: Sequence[str]) -> bool:
    """Every common divisor of a and b divides u a + v b = g, and g is one."""
    if len(proof) != 3 * size + 1 or proof[size] not in SIGNS:
        return False
    parts = proof[:size], proof[size + 1 : 2 * size + 1], proof[2 * size + 1 :]
    g, u, v = (_read(words, name) for words, name in zip(parts, DIVISORS[0]))
    if g is None or u is None or v is None:
        return False
    u, v = (u, -v) if proof[size] == SIGNS[0] else (-u, v)
    return g > 0 and not given[0] % g and not given[1] % g and u * given[0] + v * given[1] == g


def gcd_inputs(size: int, seed: int, num_train: int, num_test: int) -> tuple[list[Input], list[Input]]:
    """(train, test): pairs of numbers below 10 ** size, log-uniform as in the paper. No pair is in both."""
    random, most = Random(stable_seed(seed, "self-proving", "gcd")), size * log(10)

    def drawn(number: int) -> Input:
        return 1, (int(exp(random.uniform(0, most))), int(exp(random.uniform(0, most))))

    return _apart(drawn, num_train, num_test)


def _rows(names: Sequence[str], numbers: Sequence[int], size: int) -> list[str]:
    return [word for name, number in zip(names, numbers) for word in _row(name, number, 0, size)]


def _row(name: str, one: int, two: int, size: int) -> list[str]:
    """The lowest `size` digits of one + two, each with what it carries (two >= 0) or borrows (two < 0)."""
    words, carry, sign = [], 0, -1 if two < 0 else 1
    for place in range(size):
        digits = one // 10**place % 10 + sign * (abs(two) // 10**place % 10)
        carry, digit = divmod(digits + carry, 10)
        words.append(f"{name}{place}:{digit}{('', '+', '-')[carry]}")
    return words


def _read(words: Sequence[str], name: str) -> int | None:
    digits = [
        word[-1] for place, word in enumerate(words) if word[:-1] == f"{name}{place}:" and word[-1] in "0123456789"
    ]
    return int("".join(reversed(digits))) if len(digits) == len(words) else None


# ------------------------------------------------------------------------------------------------------- colourings

VERTICES, COLOURS = tuple("abcdefgh"), ("red", "blue")
NOTHING = 16
"""One of so many examples of a verifier shows no colouring."""


def graph_words(given: Sequence[int], size: int) -> list[str]:
    """Every vertex with its edges, so that an edge stands at both of its ends."""
    near = _neighbours(given, size)
    return [
        word
        for one in range(size)
        for word in (VERTICES[one], *(VERTICES[one] + VERTICES[other] for other in near[one]))
    ]


def graph_steps(given: Sequence[int], size: int) -> tuple[list[str], list[str]]:
    """(steps, proof) of breadth-first search, in steps that each follow from a few words before.

    Vertices are numbered as they are reached. After "2/ c:red" come the edges of the vertex with number 2, and after
    each the vertex at its other end: a new one, with its number and colour, one of the other colour (=), or one of the
    same (!). From there both ways back are written, in pairs, up to where they meet. The proof is all colours in order,
    or the odd cycle.
    """
    near = _neighbours(given, size)
    queue, colour, before = [0], {0: 0}, dict[int, int]()
    steps = ["0", _coloured(0, 0)]
    for number, vertex in enumerate(queue):
        steps += [f"{number}/", _coloured(vertex, colour[vertex])]
        for other in near[vertex]:
            steps.append(VERTICES[vertex] + VERTICES[other])
            if other not in colour:
                colour[other], before[other] = 1 - colour[vertex], vertex
                steps += [str(len(queue)), _coloured(other, colour[other])]
                queue.append(other)
            elif colour[other] != colour[vertex]:
                steps.append("=")
            else:  # as far from the first vertex as `vertex`
                ways = [[vertex], [other]]
                while ways[0][-1] != ways[1][-1]:
                    for way in ways:
                        way.append(before[way[-1]])
                steps += ["!", *(VERTICES[one] + VERTICES[two] for one, two in zip(*ways))]
                return steps, [VERTICES[at] for at in (*ways[0], *reversed(ways[1][:-1]))]
    return steps, [_coloured(vertex, colour[vertex]) for vertex in range(size)]


def graph_proved(given: Sequence[int], size: int, proof: Sequence[str]) -> bool:
    """The colours differ along every edge, or an odd number of different vertices are joined in a circle."""
    edges = set(_edges(given))
    if (colours := colours_of(proof, size)) is not None:
        return all(colours[one] != colours[two] for one, two in edges)
    if len(proof) % 2 == 0 or len(set(proof)) < len(proof) or not all(word in VERTICES[:size] for word in proof):
        return False
    at = [VERTICES.index(word) for word in proof]
    return all((min(ends), max(ends)) in edges for ends in zip(at, [*at[1:], at[0]]))


def colours_of(proof: Sequence[str], size: int) -> list[int] | None:
    """The colour of each vertex, if the proof names one for each, in order."""
    words = [[_coloured(vertex, colour) for colour in (0, 1)] for vertex in range(size)]
    if len(proof) != size or not all(word in known for word, known in zip(proof, words)):
        return None
    return [known.index(word) for word, known in zip(proof, words)]


def graph_inputs(size: int, seed: int, num_train: int, num_test: int) -> tuple[list[Input], list[Input]]:
    """(train, test): connected graphs of `size` vertices, every other one with a colouring; no graph is in both. A
    colouring is drawn first, and edges across it; or edges of a density between .2 and .8, until there is no colouring.
    """
    random = Random(stable_seed(seed, "self-proving", "graphs"))

    def drawn(number: int) -> Input:
        y = number % 2
        while True:
            side, chance = [random.random() < 0.5 for _ in range(size)], random.uniform(0.2, 0.8)
            given = tuple(
                vertex
                for one, two in combinations(range(size), 2)
                if (not y or side[one] != side[two]) and random.random() < chance
                for vertex in (one, two)
            )
            graph = networkx.Graph(_edges(given))
            if len(graph) == size and networkx.is_connected(graph) and networkx.is_bipartite(graph) == bool(y):
                return y, given

    return _apart(drawn, num_train, num_test)


def _coloured(vertex: int, colour: int) -> str:
    return f"{VERTICES[vertex]}:{COLOURS[colour]}"


def _neighbours(given: Sequence[int], size: int) -> list[list[int]]:
    """Of each vertex, in order."""
    near: list[list[int]] = [[] for _ in range(size)]
    for one, two in _edges(given):
        near[one].append(two)
        near[two].append(one)
    return [sorted(ones) for ones in near]


def _edges(given: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(given[::2], given[1::2]))


# --------------------------------------------------------------------------------------------------------- scenario


@dataclass(frozen=True)
class Task:
    """The parts of a task. inputs: (size, seed, num_train, num_test) -> (train, test). asks: an input as words. solves:
    (steps, proof). proved: the verifier. vocabulary: all words of these."""

    inputs: Callable[[int, int, int, int], tuple[list[Input], list[Input]]]
    asks: Callable[[Sequence[int], int], list[str]]
    solves: Callable[[Sequence[int], int], tuple[list[str], list[str]]]
    proved: Callable[[Sequence[int], int, Sequence[str]], bool]
    vocabulary: Callable[[int], tuple[str, ...]]


def gcd_vocabulary(size: int) -> tuple[str, ...]:
    """All words of inputs and replies."""
    marks = dict.fromkeys("rRdDxXyY", ("",)) | dict.fromkeys("tT", ("", "-")) | dict.fromkeys("uUvV", ("", "+"))
    rows = product(marks, range(size), range(10))
    return (
        *(f"{name}{place}:{digit}{mark}" for name, place, digit in rows for mark in marks[name]),
        *("/", *(f"e{power}" for power in range(size)), *SIGNS),
    )


def graph_vocabulary(size: int) -> tuple[str, ...]:
    """All words of inputs and replies, verdicts among them."""
    vertices = VERTICES[:size]
    pairs = (one + two for one, two in product(vertices, repeat=2))
    colours = (_coloured(vertex, colour) for vertex in range(size) for colour in (0, 1))
    numbers = (f"{number}{mark}" for number in range(size) for mark in ("", "/"))
    return (*vertices, *pairs, *colours, *numbers, "=", "!", *DECISIONS[:2])


TASKS = {
    "gcd": Task(gcd_inputs, gcd_words, gcd_steps, gcd_proved, gcd_vocabulary),
    "two_colouring": Task(graph_inputs, graph_words, graph_steps, graph_proved, graph_vocabulary),
}


def items(settings: SelfProvingSettings, seed: int) -> dict[str, list[Item]]:
    """Both splits."""
    splits = TASKS[settings.task].inputs(settings.size, seed, settings.num_train, settings.num_test)
    return {
        split: [Item(number, y, given) for number, (y, given) in enumerate(found)]
        for split, found in zip(("train", "test"), splits)
    }


class SelfProving(LanguageScenario):
    """One prover; under a protocol with a verifier, the prover claims that there is a colouring."""

    @cached_property
    def task(self) -> Task:
        """The task."""
        return TASKS[self.settings.task]

    @property
    def words(self) -> tuple[str, ...]:
        """See `LanguageScenario.words`."""
        return (*self.task.vocabulary(self.settings.size), ".")

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """The input; for a verifier after the proof, so that it reads each edge with both colours known."""
        words = [turn.messages["main"] for turns in dialogue.rounds for turn in turns]
        words += self.task.asks(dialogue.item.given, self.settings.size)
        return [{"role": "user", "content": " ".join(words)}]

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """A proof of any form, which `judge` checks; a verdict, or one colour for each vertex. Raises InvalidReply."""
        words = reply.split()
        if agent in self.protocol.deciders:
            if words not in ([verdict] for verdict in DECISIONS[:2]):
                raise InvalidReply("expected accept or reject")
            return Parsed(decision=DECISIONS.index(words[0]))
        proof = words[len(words) - words[::-1].index(".") :] if "." in words else []
        if self.protocol.deciders and colours_of(proof, self.settings.size) is None:
            raise InvalidReply("expected . and a colour for each vertex")
        return Parsed({"main": " ".join(proof)})

    def judge(self, dialogue: Dialogue, turns: tuple[Turn, ...]) -> tuple[Mapping[str, float], bool]:
        """1 for a proof, else 0."""
        proof = turns[0].messages.get("main", "").split()
        return {"prover": float(self.task.proved(dialogue.item.given, self.settings.size, proof))}, True

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """A random proof or verdict."""
        random = Random(stable_seed(seed, "self-proving", dialogue.item.id, dialogue.seed, agent))
        if agent in self.protocol.deciders:
            return random.choice(DECISIONS[:2])
        if self.settings.task == "two_colouring":
            return " ".join([".", *self._any_colours(random)])
        other = [random.randint(1, 10**self.settings.size - 1) for _ in range(2)]
        return " ".join([".", *self.task.solves(other, self.settings.size)[1]])

    def warm_example(self, item: Item, agent: str, seed: int) -> tuple[Chat, str]:
        """The steps and the proof; for a verifier, a verdict on a colouring, either way round, with up to two vertices
        changed, or on nothing."""
        size = self.settings.size
        steps, proof = self.task.solves(item.given, size)
        if self.protocol.deciders:
            random = Random(stable_seed(seed, "self-proving example", item.id))
            proof = proof if item.y else self._any_colours(random)
            if agent in self.protocol.deciders:
                changed, around = random.sample(range(size), random.choice((0, 1, 2))), random.randrange(2)
                colours = colours_of(proof, size) or ()
                proof = [_coloured(at, colour ^ around ^ (at in changed)) for at, colour in enumerate(colours)]
                proof = proof if random.randrange(NOTHING) else []
                return self._shown(item, proof), DECISIONS[int(self.task.proved(item.given, size, proof))]
        reply = [*(steps if self.settings.annotated else ()), ".", *proof]
        return self.chat(Dialogue(item, 0), agent), " ".join(reply)

    def exact_figures(self, items: Sequence[Item], probabilities: Probabilities) -> dict[str, float]:
        """Of a verifier that learns, means over graphs of the probability that it accepts. Without a colouring:
        ``soundness_error``, what it accepts most of all colourings and of nothing (a reply without one);
        ``mean_error``, the mean of all colourings. With one: ``completeness``, the mean of the true colourings."""
        if not self.protocol.deciders:
            return {}
        size = self.settings.size
        colourings = [[_coloured(*one) for one in enumerate(colours)] for colours in product((0, 1), repeat=size)]
        found: dict[str, list[float]] = {"soundness_error": [], "mean_error": [], "completeness": []}
        for item in items:
            sent = [one for one in colourings if not item.y or self.task.proved(item.given, size, one)]
            chats = [self._shown(item, one) for one in (*sent, [])]
            *accepts, nothing = (float(chance[0]) for chance in probabilities("verifier", chats, DECISIONS[1:2]))
            mean = sum(accepts) / len(accepts)
            if item.y:
                found["completeness"].append(mean)
            else:
                found["soundness_error"].append(max(*accepts, nothing))
                found["mean_error"].append(mean)
        return {name: sum(values) / len(values) for name, values in found.items() if values}

    def _shown(self, item: Item, proof: Sequence[str]) -> Chat:
        """The verifier's chat after this proof."""
        turn = Turn("prover", " ".join(proof), {"main": " ".join(proof)})
        return self.chat(Dialogue(item, 0, rounds=((turn,),), rewards=({},)), "verifier")

    def _any_colours(self, random: Random) -> list[str]:
        return [_coloured(vertex, random.randrange(2)) for vertex in range(self.settings.size)]


def built(protocol: Protocol, settings: SelfProvingSettings) -> SelfProving:
    """The scenario. Raises UserError under another protocol."""
    judged = protocol.name == "adp" and settings.task == "two_colouring"
    if protocol.name != "self_proving" and not judged:
        raise UserError(
            f"protocol.name: {protocol.name!r} with scenario.task {settings.task!r}, expected self_proving, or adp with"
            " two_colouring"
        )
    if settings.task == "two_colouring" and settings.size < 4:
        raise UserError(
            f"scenario.size: {settings.size} with scenario.task two_colouring, expected 4 or more: smaller graphs are"
            " too few to hold some out"
        )
    if settings.task == "gcd" and settings.size > 4:
        raise UserError(
            f"scenario.size: {settings.size} with scenario.task gcd, expected at most 4: of more digits, steps take"
            " over 1,000 words"
        )
    return SelfProving(protocol, settings)


def read_item(record: Any) -> Item:
    """An item from its record in a run folder."""
    return Item(**{**record, "given": tuple(record["given"])})


@reads()
def self_proving(params: ProtocolParams) -> Protocol:
    """A prover speaks once, and the scenario pays it."""
    return Protocol(
        name="self_proving",
        agents=("prover",),
        channels=("main",),
        sees={"prover": ("main",)},
        turns=(((("prover", "main"),),),),
        max_rounds=1,
        min_rounds=1,
        payment=Payment(),
        verifier=None,
    )


register("self_proving", self_proving)
register_language_scenario(
    LanguageScenarioKind(SelfProvingSettings, built, items, read_item, groups={"y": lambda item: item.y})
)
