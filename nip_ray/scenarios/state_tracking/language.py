"""State tracking between language models: the same chains, protocols and worst case as between networks, in words.

Decisions that matter here:
- a chat is one message: a few words from a closed list (`StateTrackingInWords.words`), with a word for each state,
  place and move, which a model of fifty thousand parameters can learn; or English without the true states, for
  pretrained models. A reply is a word (of a whole chain, a word for each state);
- under bisection a chat has only what is in dispute (see `nip_ray.scenarios.state_tracking.scenario`): the states
  committed at its ends, its number of moves, and the true state in its middle, which provers know (the committing one
  also sees the state from which the claim would follow, and whether it has lied, since a lie needs preparation); for
  the verifier one move and two states. The place in the chain is left out: nothing depends on it, and agents trained on
  shorter chains then generalise to longer ones;
- legal replies are a list (`choices`): all else is invalid. A turn without a usable reply counts as the first choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from random import Random
from typing import Any

from torch import Tensor

from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, LanguageScenario, Parsed, Probabilities, Turn
from nip_ray.play.dialogues import rulebook
from nip_ray.protocols import Protocol
from nip_ray.scenarios.state_tracking import english
from nip_ray.scenarios.state_tracking.chains import GENERATORS
from nip_ray.scenarios.state_tracking.estimates_in_words import EstimatesInWords
from nip_ray.scenarios.state_tracking.items import (
    HALVES,
    MOVES,
    STATES,
    VERDICTS,
    ChainItem,
    Dispute,
    chains_of,
    reply_shares,
    words_of_chains,
)
from nip_ray.scenarios.state_tracking.seats import Seats, one_question_is_asked, seats_of
from nip_ray.scenarios.state_tracking.worst_case import (
    Chances,
    Positions,
    acceptance_of_truth,
    least_acceptance,
    worst_acceptance,
    worst_acceptance_of_chain,
)
from nip_ray.seeding import stable_seed
from nip_ray.settings.state_tracking import LanguageStateTrackingSettings


@dataclass(frozen=True, eq=False)
class StateTrackingInWords(LanguageScenario):
    """The scenario, made by `build_language_state_tracking`."""

    settings: LanguageStateTrackingSettings
    seats: Seats

    @property
    def words(self) -> tuple[str, ...]:
        """States, places, moves, a few more, and the roles that are drawn; of English there is no list."""
        if self.settings.wording == "english":
            return ()
        return (*words_of_chains(self.settings.length), *self.protocol.roles)

    @property
    def fences(self) -> bool:
        """False: what is sent on is out of `choices`."""
        return False

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """One message."""
        if self.seats.bisects:
            return self._chat_about(dialogue.item, agent, _dispute(dialogue))
        item, committed = dialogue.item, self._committed(dialogue)
        if agent != self.protocol.verifier:
            role = self.protocol.role_of(dialogue.seed) if agent in self.protocol.told else None
            if self.settings.wording == "english":
                return self._prover_reads(item, agent, None, committed, role)
            said = [*_known(item, agent == self.seats.committer), "claim", STATES[item.claim]]
            if agent == self.seats.pointer:
                said += ["committed", *(STATES[state] for state in committed or ())]
            return _message(said if role is None else [role, *said])
        at = None
        if committed is not None and (place := self._pointed_at(dialogue)) is not None:
            at = Dispute(place, place + 1, committed[place], committed[place + 1])
        choices = self.choices(dialogue, agent)
        return self._overview(item, at, committed if self.seats.pointer is None else None, choices)

    def choices(self, dialogue: Dialogue, agent: str) -> tuple[str, ...]:
        """Every legal word of `agent` in the next round (for a chain of states: at each of its places)."""
        r, rules = len(dialogue.rounds), rulebook(self.protocol)
        if agent == self.seats.committer:
            return STATES
        points = HALVES if self.seats.bisects else tuple(map(str, range(self.settings.length)))
        if agent != self.protocol.verifier:
            return points
        verdicts = VERDICTS if r >= self.protocol.min_rounds - 1 else ()
        if r == rules.rounds_of(agent, dialogue.seed)[-1]:
            return verdicts
        return (*(points if agent == self.seats.pointer else ("pass",)), *verdicts)

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """By `choices`. Raises InvalidReply for anything else."""
        said, choices = reply.split(), self.choices(dialogue, agent)
        length = self._reply_words(agent)
        if len(said) != length or not set(said) <= set(choices):
            words = "a word" if length == 1 else f"{length} words"
            raise InvalidReply(f"expected {words} out of {' '.join(choices)}, got {reply!r:.60}")
        if said[0] in VERDICTS:
            return Parsed(decision=VERDICTS.index(said[0]))
        return Parsed(
            dict.fromkeys(rulebook(self.protocol).speakers(len(dialogue.rounds), dialogue.seed)[agent], " ".join(said))
        )

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """Any of the choices."""
        random = Random(
            stable_seed(seed, "state tracking", dialogue.item.id, dialogue.seed, len(dialogue.rounds), agent)
        )
        choices = self.choices(dialogue, agent)
        return " ".join(random.choice(choices) for _ in range(self._reply_words(agent)))

    def warm_example(self, item: ChainItem, agent: str, seed: int) -> tuple[Chat, str]:
        """A random turn of `agent` in a dialogue with random points and halves. The committing agent names the true
        states; for a false claim half of the time those that lead to it, and occasionally any. The verifier gives the
        item's label in its last turn; the earlier halves are those with the lie, so that the label matches the move it
        sees."""
        random = Random(stable_seed(seed, "warm example", item.id, agent))
        dialogue, rules = Dialogue(item, random.randrange(2**16)), rulebook(self.protocol)
        ends = rules.rounds_of(self.protocol.verifier or agent, dialogue.seed)[-1]
        rounds = [r for r in rules.rounds_of(agent, dialogue.seed) if r <= ends]
        finds_lie = self.seats.pointer if self.seats.bisects and agent == self.protocol.verifier else None
        for r in range(random.choice(rounds)):
            turns = []
            for speaker, channels in rules.speakers(r, dialogue.seed).items():
                if speaker == finds_lie:
                    at = _dispute(dialogue)
                    said = HALVES[at.middle == item.states[at.halfway]]
                else:
                    said = self._warm_reply(dialogue, speaker, random, last=False)
                turns.append(Turn(speaker, said, dict.fromkeys(channels, said)))
            dialogue = replace(dialogue, rounds=(*dialogue.rounds, tuple(turns)))
        last = len(dialogue.rounds) == rounds[-1]
        return self.chat(dialogue, agent), self._warm_reply(dialogue, agent, random, last)

    def exact_figures(self, items: Sequence[ChainItem], probabilities: Probabilities) -> dict[str, float]:
        """Under bisection, and under nip with one question: `worst_case/soundness`, of rejecting the false claims of
        `items` against every lie, and `worst_case/completeness`, of accepting the true ones against every opponent."""
        one_question = one_question_is_asked(self.protocol)
        if not (self.seats.bisects or one_question) or {item.y for item in items} != {0, 1}:
            return {}
        false, true = ([item for item in items if item.y == y] for y in (0, 1))
        committer, pointer, verifier = (
            self.seats.committer or "",
            self.seats.pointer or "",
            self.protocol.verifier or "",
        )

        def chances(agent: str, about: Sequence[ChainItem], replies: Sequence[str]) -> Chances:
            return partial(self._chances, probabilities, about, agent, replies)

        rejects, accepts = (chances(verifier, about, VERDICTS) for about in (false, true))
        if one_question:
            worst = worst_acceptance_of_chain(chains_of(false), self._questions(probabilities, false), rejects)
            least = acceptance_of_truth(chains_of(true), self._questions(probabilities, true), accepts)
        else:
            worst = worst_acceptance(chains_of(false), chances(pointer, false, HALVES), rejects)
            least = least_acceptance(chains_of(true), chances(committer, true, STATES), accepts)
        return {"worst_case/soundness": 1 - float(worst.mean()), "worst_case/completeness": float(least.mean())}

    def _questions(self, probabilities: Probabilities, items: Sequence[ChainItem]) -> Tensor:
        """(I, n): the probability that the verifier asks for each move; without a usable reply it is the first."""
        moves, verifier = tuple(map(str, range(self.settings.length))), self.protocol.verifier or ""
        chats = [self._overview(item, None, None, moves) for item in items]
        asked_IT, lost_I1 = reply_shares(probabilities, verifier, chats, moves, self.max_invalid_replies(verifier))
        asked_IT[:, :1] += lost_I1
        return asked_IT

    def _chances(
        self,
        probabilities: Probabilities,
        items: Sequence[ChainItem],
        agent: str,
        replies: Sequence[str],
        at: Positions,
    ) -> Tensor:
        """See `Chances`; equal chats, such as those of one move, are queried once. Of two replies: that of the second.

        Replies outside the choices are retried and finally count as the first (see `choices`); a verifier without a
        verdict is wrong.
        """
        about_true = bool(items[0].y)
        chats = []
        for item, low, high, low_state, high_state, middle in zip(
            *(x.tolist() for x in vars(at).values()), strict=True
        ):
            dispute = Dispute(low, high, low_state, high_state, None if middle < 0 else middle)
            chats.append(self._chat_about(items[item], agent, dispute))
        said, lost = reply_shares(probabilities, agent, chats, replies, self.max_invalid_replies(agent))
        if agent == self.protocol.verifier and not about_true:
            return 1 - said[:, 0]
        if len(replies) == 2:
            return said[:, 1]
        said[:, :1] += lost
        return said

    def _chat_about(self, item: ChainItem, agent: str, at: Dispute) -> Chat:
        """A chat that shows an agent the dispute of a bisection, or the move that it asked for."""
        if not self.seats.bisects:
            return self._overview(item, at, None, VERDICTS)
        checks = agent == self.protocol.verifier and at.high - at.low == 1
        if self.settings.wording == "english":
            if agent != self.protocol.verifier:
                return self._prover_reads(item, agent, at, None, None)
            return _message([english.check(item.moves[at.low], at) if checks else english.halve(at)])
        if checks:
            return _message(_move(item, at))
        said = ["claim", STATES[at.low_state], STATES[at.high_state], "moves", str(at.high - at.low)]
        if agent == self.seats.committer:
            if at.low_state != item.states[at.low]:  # it has lied: only what its lie needs is consistent
                said[0] = "committed"
            said = [
                "true",
                *(STATES[item.states[place]] for place in (at.low, at.high)),
                *said,
                "needed",
                STATES[_needed(item, at)],
            ]
        if agent != self.protocol.verifier:
            said += ["true", STATES[item.states[at.halfway]]]
        return _message(said if at.middle is None else [*said, "committed", STATES[at.middle]])

    def _prover_reads(
        self, item: ChainItem, agent: str, at: Dispute | None, committed: tuple[int, ...] | None, role: str | None
    ) -> Chat:
        """A prover's chat in English."""
        wish, moves = english.wish_for(self.stance(item, agent, role), role), self.settings.num_generators
        if agent == self.seats.committer:
            return _message([english.commit(item, at, moves, wish)])
        return _message([english.point(item, at, committed, moves, wish)])

    def _overview(
        self, item: ChainItem, at: Dispute | None, committed: tuple[int, ...] | None, choices: Sequence[str]
    ) -> Chat:
        """The verifier's chat but under bisection: the chain, with committed states between its moves, or with one of
        its moves. choices: its legal replies, which English names."""
        if self.settings.wording == "english":
            return _message([english.overview(item, at, committed, self.settings.num_generators, choices)])
        said = ["start", STATES[item.states[0]], "moves"]
        for place, move in enumerate(item.moves, 1):
            said += [MOVES[move]] if committed is None else [MOVES[move], STATES[committed[place]]]
        said += ["claim", STATES[item.claim]]
        return _message(said if at is None else [*said, str(at.low), *_move(item, at)])

    def _reply_words(self, agent: str) -> int:
        return self.settings.length - 1 if agent == self.seats.committer and not self.seats.bisects else 1

    def _warm_reply(self, dialogue: Dialogue, agent: str, random: Random, last: bool) -> str:
        item = dialogue.item
        if agent == self.seats.committer:
            at = _dispute(dialogue) if self.seats.bisects else None
            places = range(1, len(item.moves)) if at is None else [at.halfway]
            needed = [_claimed(item)[place] for place in places] if at is None else [_needed(item, at)]
            lies = at is not None and at.low_state != item.states[at.low]
            said = []
            for place, state in zip(places, needed, strict=True):
                likely = [item.states[place], state] * 4
                said.append(state if lies else random.choice([*likely, random.randrange(len(STATES))]))
            return " ".join(
                STATES[item.states[place] if item.y else state] for place, state in zip(places, said, strict=True)
            )
        if last and agent == self.protocol.verifier:
            return VERDICTS[item.y]
        return random.choice([word for word in self.choices(dialogue, agent) if word not in VERDICTS])

    def _committed(self, dialogue: Dialogue) -> tuple[int, ...] | None:
        """Start, the states that were committed to first, and the claim; None before."""
        said = _said_by(dialogue, self.seats.committer)
        if not said:
            return None
        inner = [STATES.index(word) for word in said[0].split()] or [0] * (len(dialogue.item.moves) - 1)
        return (dialogue.item.states[0], *inner, dialogue.item.claim)

    def _pointed_at(self, dialogue: Dialogue) -> int | None:
        said = _said_by(dialogue, self.seats.pointer)
        return int(said[-1] or 0) if said else None


def _dispute(dialogue: Dialogue) -> Dispute:
    """The remaining interval of a bisection."""
    item = dialogue.item
    at = Dispute(0, len(item.moves), item.states[0], item.claim)
    for r, turns in enumerate(dialogue.rounds):
        said = next(iter(turns[0].messages.values()), "")
        at = at.half(said == HALVES[1]) if r % 2 else replace(at, middle=STATES.index(said or STATES[0]))
    return at


def _said_by(dialogue: Dialogue, agent: str | None) -> list[str]:
    """The message of each turn of `agent`, "" of one without a usable reply."""
    return [
        next(iter(turn.messages.values()), "") for turns in dialogue.rounds for turn in turns if turn.agent == agent
    ]


def _known(item: ChainItem, with_claimed: bool) -> list[str]:
    """Places with their true states and, for the committing agent, the states from which the claim would follow (the
    true ones of a true claim)."""
    chains = zip(item.states, _claimed(item), strict=True) if with_claimed else zip(item.states, strict=True)
    return [
        "states",
        *(word for place, states in enumerate(chains) for word in (str(place), *(STATES[state] for state in states))),
    ]


def _claimed(item: ChainItem) -> tuple[int, ...]:
    """The states that lead to the claim by the item's moves."""
    return _leading_to(item.claim, item.moves)


def _needed(item: ChainItem, at: Dispute) -> int:
    """The state in the middle that leads to the one committed at the upper end."""
    return _leading_to(at.high_state, item.moves[at.halfway : at.high])[0]


@lru_cache(maxsize=4096)
def _leading_to(state: int, moves: tuple[int, ...]) -> tuple[int, ...]:
    """The states, one more than moves, that end in `state`."""
    states = [state]
    for move in reversed(moves):
        states.append(GENERATORS[move].index(states[-1]))
    return tuple(reversed(states))


def _move(item: ChainItem, at: Dispute) -> list[str]:
    return ["move", MOVES[item.moves[at.low]], STATES[at.low_state], STATES[at.high_state]]


def _message(words: Sequence[str]) -> Chat:
    return [{"role": "user", "content": " ".join(words)}]


def build_language_state_tracking(protocol: Protocol, settings: Any) -> LanguageScenario:
    """The scenario of `settings`. Raises UserError for an unsupported protocol."""
    seats = seats_of(protocol, settings)
    return EstimatesInWords(protocol, settings) if seats.estimator else StateTrackingInWords(protocol, settings, seats)
