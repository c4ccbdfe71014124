"""The test provider's models: for each role and situation a table of probabilities over finitely many replies, updated
exactly.

Supervised learning (`supervised`): in each situation of the data, q being the share of each reply in it,

    p' = (1 - a) p + a q,   a = 1 - (1 - rate)^epochs

which is the optimum of a E_q[log p'] + (1 - a) E_p[log p']: the maximum-likelihood fit, held back towards the old
table.

DPO (`dpo`): `epochs * steps` steps of gradient descent, from the reference table, on the mean over all pairs of

    -log sigmoid(beta (log p(w)/p_ref(w) - log p(l)/p_ref(l)))

in the logits z. In a softmax table log p(w) - log p(l) = z_w - z_l, so the gradient of a pair's loss is -+ beta
sigmoid(-beta margin) at w and l, and zero elsewhere.
"""

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nip_ray.seeding import stable_seed

Table = dict[str, dict[str, list[float]]]
"""role -> situation -> a probability for each of the role's replies. What is missing is as the role's prior."""


class BadData(Exception):
    """Training data that cannot be learnt from: the job fails with this reason."""


@dataclass(frozen=True)
class Role:
    """Who is spoken for. marker: a regular expression found in the first message of this role's chats. prior: weights
    of the replies."""

    name: str
    marker: str
    replies: tuple[str, ...]
    prior: tuple[float, ...] | None = None

    def start(self) -> list[float]:
        weights = self.prior or (1.0,) * len(self.replies)
        return [weight / sum(weights) for weight in weights]


@dataclass(frozen=True)
class Rates:
    """How fast is learnt. supervised: `rate` above. dpo: step size; steps: gradient steps of an epoch. epochs, beta:
    when not asked for."""

    supervised: float = 0.5
    dpo: float = 1.0
    steps: int = 10
    epochs: int = 3
    beta: float = 0.1


@dataclass
class Examples:
    """What a file asks for. chosen: (role, situation) -> reply -> how often. pairs: (role, situation, better,
    worse)."""

    chosen: dict[tuple[str, str], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    pairs: list[tuple[str, str, int, int]] = field(default_factory=list)


def default_situation(messages: Sequence[dict[str, Any]]) -> str:
    """The last message that is not the model's own."""
    return next((str(message["content"]) for message in reversed(messages) if message["role"] != "assistant"), "")


def role_of(roles: Sequence[Role], messages: Sequence[dict[str, Any]]) -> Role:
    """The first role whose marker is in the first message. Raises BadData when there is none."""
    for role in roles:
        if messages and re.search(role.marker, str(messages[0]["content"])):
            return role
    raise BadData("no role's marker is in the first message")


def index_of(role: Role, reply: str) -> int:
    """Which of the role's replies this is. Raises BadData when it is none."""
    for number, known in enumerate(role.replies):
        if known.strip() == reply.strip():
            return number
    raise BadData(f"{role.name} cannot say {reply!r:.80}")


def supervised(table: Table, roles: Sequence[Role], examples: Examples, epochs: int, rate: float) -> Table:
    """The new table; see above."""
    share = 1.0 - (1.0 - rate) ** epochs
    new = _copy(table)
    for (name, situation), counts in examples.chosen.items():
        old = probabilities(table, _named(roles, name), situation)
        total = sum(counts.values())
        new.setdefault(name, {})[situation] = [(1 - share) * p + share * counts[n] / total for n, p in enumerate(old)]
    return new


def dpo(
    table: Table, roles: Sequence[Role], examples: Examples, epochs: int, step: float, steps: int, beta: float
) -> Table:
    """The new table; see above."""
    reference = {(name, s): probabilities(table, _named(roles, name), s) for name, s, _, _ in examples.pairs}
    shift = {place: [0.0] * len(old) for place, old in reference.items()}
    for _ in range(epochs * steps):
        slope = {place: [0.0] * len(old) for place, old in reference.items()}
        for name, situation, better, worse in examples.pairs:
            moved = shift[name, situation]
            push = beta / (1.0 + math.exp(beta * (moved[better] - moved[worse]))) / len(examples.pairs)
            slope[name, situation][better] += push
            slope[name, situation][worse] -= push
        shift = {place: [z + step * g for z, g in zip(shift[place], slope[place])] for place in shift}
    new = _copy(table)
    for (name, situation), old in reference.items():
        new.setdefault(name, {})[situation] = _normal([p * math.exp(z) for p, z in zip(old, shift[name, situation])])
    return new


def probabilities(table: Table, role: Role, situation: str, temperature: float = 1.0) -> list[float]:
    """Of each reply; temperature 0 puts all on the likeliest."""
    p = table.get(role.name, {}).get(situation) or role.start()
    if temperature == 0:
        return [float(n == p.index(max(p))) for n in range(len(p))]
    return p if temperature == 1 else _normal([x ** (1 / temperature) for x in p])


def draw(p: Sequence[float], seed: int, key: str) -> int:
    """An index, by inverting the distribution at a point that depends on the seed and the key alone."""
    point, sum_so_far = stable_seed(seed, "reply", key) / 2**63, 0.0
    for number, share in enumerate(p):
        sum_so_far += share
        if point < sum_so_far:
            return number
    return max(range(len(p)), key=lambda n: p[n])


def tokens(text: str) -> int:
    """How many tokens a text has here: its words."""
    return len(text.split())


def digest(*parts: str) -> str:
    """A short name of some texts."""
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:12]


def _named(roles: Iterable[Role], name: str) -> Role:
    return next(role for role in roles if role.name == name)


def _normal(weights: Sequence[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


def _copy(table: Table) -> Table:
    return {role: {situation: list(p) for situation, p in rows.items()} for role, rows in table.items()}
