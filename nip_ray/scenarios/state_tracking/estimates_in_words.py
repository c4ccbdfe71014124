"""Prover and estimator between language models, in words; see `nip_ray.scenarios.state_tracking.estimates`.

Decisions that matter here:
- the state of a dialogue is computed by the same function as for networks (`replay`), with one row;
- a chat is one message of the words of `nip_ray.scenarios.state_tracking.items` and a few more. Prover and estimator
  see where the ends of a claim lead, so that every estimate is a comparison of words.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

import torch

from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, LanguageScenario, Parsed, Probabilities, Turn
from nip_ray.play.dialogues import rulebook
from nip_ray.scenarios.state_tracking.chains import Chains
from nip_ray.scenarios.state_tracking.estimates import (
    PAIRS,
    POINTS,
    WORDS,
    Asked,
    Claims,
    Walks,
    least_acceptance,
    replay,
    worst_acceptance,
)
from nip_ray.scenarios.state_tracking.items import (
    HALVES,
    MOVES,
    STATES,
    VERDICTS,
    ChainItem,
    chains_of,
    reply_shares,
    words_of_chains,
)
from nip_ray.seeding import stable_seed

_PAIRS = tuple(f"{WORDS[one]} {WORDS[two]}" for one, two in PAIRS)
_REPLIES = (STATES, _PAIRS, tuple(f"{HALVES[half]} {STATES[end]}" for half, end in POINTS))
"""Replies of a round that splits, estimates, or points; the index of a reply is its symbol."""


@dataclass(frozen=True, eq=False)
class EstimatesInWords(LanguageScenario):
    """The scenario under prover_estimator, made by `build_language_state_tracking`."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words of chains and of estimates."""
        return (
            *words_of_chains(self.settings.length),
            *WORDS,
            "reached",
            "follows",
            "estimated",
            "first",
            "over",
            "contradicted",
        )

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """One message."""
        chains = chains_of((dialogue.item,))
        return self._chats(chains, agent, replay(chains, *_said(dialogue))[0])[0]

    def choices(self, dialogue: Dialogue, agent: str) -> tuple[str, ...]:
        """Every possible reply of `agent` in the next round."""
        return VERDICTS if agent == self.protocol.verifier else _REPLIES[len(dialogue.rounds) % 3]

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """As `choices` says. Raises InvalidReply for anything else."""
        said, choices = " ".join(reply.split()), self.choices(dialogue, agent)
        if said not in choices:
            raise InvalidReply(f"expected one of {', '.join(choices)}, got {reply!r:.60}")
        if said in VERDICTS:
            return Parsed(decision=VERDICTS.index(said))
        return Parsed(dict.fromkeys(rulebook(self.protocol).speakers(len(dialogue.rounds), dialogue.seed)[agent], said))

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """Any of the choices."""
        random = Random(
            stable_seed(seed, "state tracking", dialogue.item.id, dialogue.seed, len(dialogue.rounds), agent)
        )
        return random.choice(self.choices(dialogue, agent))

    def warm_example(self, item: ChainItem, agent: str, seed: int) -> tuple[Chat, str]:
        """A turn of `agent` in a dialogue in which the prover splits with the reached state, or half of the time for a
        false claim with any, and points anywhere; the estimator is right, and the verifier gives the item's label."""
        random = Random(stable_seed(seed, "warm example", item.id, agent))
        dialogue, rules = Dialogue(item, random.randrange(2**16)), rulebook(self.protocol)
        for r in range(random.choice(rules.rounds_of(agent, dialogue.seed))):
            ((speaker, channels),) = rules.speakers(r, dialogue.seed).items()
            said = self._warm_reply(dialogue, speaker, random)
            dialogue = replace(
                dialogue, rounds=(*dialogue.rounds, (Turn(speaker, said, dict.fromkeys(channels, said)),))
            )
        return self.chat(dialogue, agent), self._warm_reply(dialogue, agent, random)

    def estimate_error(self, dialogue: Dialogue) -> float:
        """See `nip_ray.scenarios.state_tracking.estimates`."""
        return float(replay(chains_of((dialogue.item,)), *_said(dialogue))[1])

    def exact_figures(self, items: Sequence[ChainItem], probabilities: Probabilities) -> dict[str, float]:
        """`worst_case/soundness`, of rejecting the false claims of `items` against every prover, and
        `worst_case/completeness`, of accepting the true ones against every estimator with a truthful prover."""
        if {item.y for item in items} != {0, 1}:
            return {}
        false, true = (chains_of([item for item in items if item.y == y]) for y in (0, 1))
        verifier = self.protocol.verifier or ""
        worst = worst_acceptance(
            false,
            self._asks(probabilities, false, "estimator", _REPLIES[1]),
            self._asks(probabilities, false, verifier, VERDICTS),
        )
        least = least_acceptance(true, self._asks(probabilities, true, verifier, VERDICTS))
        return {"worst_case/soundness": 1 - float(worst.mean()), "worst_case/completeness": float(least.mean())}

    def _asks(self, probabilities: Probabilities, chains: Chains, agent: str, replies: Sequence[str]) -> Asked:
        """See `Asked`. An unusable reply counts as the first, and a verifier without a verdict is wrong."""

        def asked(at: Claims) -> torch.Tensor:
            chats = self._chats(chains, agent, at)
            said, lost = reply_shares(probabilities, agent, chats, replies, self.max_invalid_replies(agent))
            if agent == self.protocol.verifier:
                return said[:, 1] if bool(chains.label_I[0]) else 1 - said[:, 0]
            said[:, :1] += lost
            return said

        return asked

    def _chats(self, chains: Chains, agent: str, claims: Claims) -> list[Chat]:
        """Chats that show `agent` these claims."""
        walks, half_N = Walks(chains), claims.halfway_N
        columns = {
            "reached": walks.lead(claims.item_N, claims.low_N, claims.low_state_N, half_N),
            "needed": walks.lead(claims.item_N, claims.high_N, claims.high_state_N, half_N),
            "follows": walks.lead(claims.item_N, half_N, claims.middle_N.clamp(min=0), claims.high_N),
            "move": chains.move_IT[claims.item_N, claims.low_N.clamp(max=chains.length - 1)],
            **{name.removesuffix("_N"): column for name, column in vars(claims).items()},
        }
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [_message(dict(zip(columns, row)), agent == self.protocol.verifier) for row in rows]

    def _warm_reply(self, dialogue: Dialogue, agent: str, random: Random) -> str:
        item, step = dialogue.item, len(dialogue.rounds) % 3
        if agent == self.protocol.verifier:
            return VERDICTS[item.y]
        shown = self.chat(dialogue, agent)[0]["content"].split()
        if step == 0:
            return shown[shown.index("reached") + 1] if item.y or random.random() < 0.5 else random.choice(STATES)
        if step == 1:
            truth = [shown[-1] == shown[shown.index("reached") + 1], shown[-1] == shown[shown.index("needed") + 1]]
            return " ".join(WORDS[-1] if true else WORDS[0] for true in truth)
        half = random.randrange(2)
        ends = (shown[shown.index("committed") + 1], shown[2])
        return f"{HALVES[half]} {ends[half] if random.random() < 0.5 else random.choice(STATES)}"


def _message(claim: dict[str, int], decides: bool) -> Chat:
    """A chat about one claim. claim: the fields of `Claims` and where its ends lead."""
    ends = [STATES[claim["low_state"]], STATES[claim["high_state"]]]
    estimated = [] if claim["stated"] < 0 else ["estimated", WORDS[claim["stated"]]]
    if decides:
        first = ["first", WORDS[-1 if claim["root"] else 0]]
        flags = [name for name in ("over", "contradicted") if claim[name]]
        said = ["move", MOVES[claim["move"]], *ends, *estimated, *first, *flags]
    else:
        said = ["claim", *ends, *estimated, "reached", STATES[claim["reached"]], "needed", STATES[claim["needed"]]]
        if claim["pair"] >= 0:
            one, two = PAIRS[claim["pair"]]
            said += ["follows", STATES[claim["follows"]], WORDS[one], WORDS[two]]
        if claim["middle"] >= 0:
            said += ["committed", STATES[claim["middle"]]]
    return [{"role": "user", "content": " ".join(said)}]


@lru_cache(maxsize=4096)
def _symbols(said: tuple[str, ...]) -> tuple[int, ...]:
    """The symbols of the messages in these rounds, -1 for no usable reply."""
    return tuple(_REPLIES[r % 3].index(text) if text else -1 for r, text in enumerate(said))


def _said(dialogue: Dialogue) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Arguments of `replay` for one dialogue: row, symbols, round."""
    rounds = 3 * (len(dialogue.item.moves).bit_length() - 1)
    texts = tuple(next(iter(turns[0].messages.values()), "") for turns in dialogue.rounds[:rounds])
    symbols = (_symbols(texts) + (-1,) * rounds)[:rounds]
    return torch.zeros(1, dtype=torch.int64), torch.tensor([symbols]), torch.tensor([len(texts)])
