"""Kuhn poker between language models: the same protocol, deals, payments and exact metrics as between networks, with
words for moves.

Decisions that matter here:
- a chat is a card, the moves so far and the two words to choose from, and a reply is exactly one of them: so the
  probability of a move is that of one reply, and a strategy can be computed exactly (`KuhnPokerInWords.strategies`);
- a turn without a usable reply passes (checks or folds), as a network's turn without a move does;
- training and test items are the same six deals: there is nothing to generalise over.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random
from typing import Any

import torch

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, LanguageScenario, Parsed, Probabilities, Turn
from nip_ray.protocols import Protocol
from nip_ray.scenarios.matrix_games.games import Tables
from nip_ray.scenarios.matrix_games.poker import CARDS, DEALS, KUHN, Poker
from nip_ray.scenarios.matrix_games.scenario import PLAYERS
from nip_ray.seeding import stable_seed
from nip_ray.settings.matrix_games import LanguageMatrixGameSettings, protocol_of

OPEN, ANSWER = ("check", "bet"), ("fold", "call")
"""The words without a bet, and after the other's bet; the first passes."""
HISTORIES = ((), ("check", "bet")), (("check",), ("bet",))
"""Player -> the moves before its two situations, in the order of `Poker`'s states."""


@dataclass(frozen=True)
class Deal:
    """An item: the cards of the two players. y: has no meaning."""

    id: int
    player0: str
    player1: str
    y: int = 0


ITEMS = [Deal(number, CARDS[first], CARDS[second]) for number, (first, second) in enumerate(DEALS)]


@dataclass(frozen=True, eq=False)
class KuhnPokerInWords(LanguageScenario):
    """The scenario, made by `build_language_game`."""

    settings: LanguageMatrixGameSettings

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the twelve chats, and the replies."""
        chats = [self.chat(dialogue, PLAYERS[player]) for player, _, dialogue in information_sets()]
        shown = [word for chat in chats for message in chat for word in message["content"].split()]
        return tuple(dict.fromkeys([*OPEN, *ANSWER, *shown]))

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """The card, then the other's moves, each with the possible replies, and the agent's own replies."""
        moves = _moves(dialogue)
        chat: Chat = [{"role": "system", "content": f"Kuhn poker. Your card: {getattr(dialogue.item, agent)}."}]
        for r in range(PLAYERS.index(agent), len(moves) + 1, 2):
            heard = f"{moves[r - 1]}: " if r else ""
            chat.append({"role": "user", "content": f"{heard}{' or '.join(_words(moves[:r]))}?"})
            if r < len(moves):
                chat.append({"role": "assistant", "content": moves[r]})
        return chat

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """One of the two words. Raises InvalidReply for anything else."""
        word, words = reply.strip(), _words(_moves(dialogue))
        if word not in words:
            raise InvalidReply(f"expected {' or '.join(words)}, got {word!r:.60}")
        return Parsed({"main": word})

    def judge(self, dialogue: Dialogue, turns: tuple[Turn, ...]) -> tuple[Mapping[str, float], bool]:
        """By the game's rules."""
        moves = [*_moves(dialogue), *(turn.messages["main"] for turn in turns)]
        paid, over = _outcomes()[dialogue.item.id, tuple(_bets(word) for word in moves)]
        return dict(zip(PLAYERS, paid)), over

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """Either word."""
        place = (dialogue.item.id, dialogue.seed, len(dialogue.rounds), agent)
        return Random(stable_seed(seed, "kuhn poker", *place)).choice(_words(_moves(dialogue)))

    def exact_figures(self, items: Sequence[Deal], probabilities: Probabilities) -> dict[str, float]:
        """Values and exploitability over all deals (`Poker.figures`), and ``off_form``: the largest probability of
        a player outside the two words."""
        tables, off_form = self.strategies(probabilities)
        return {**Poker(KUHN).figures(tables), "off_form": off_form}

    def strategies(self, probabilities: Probabilities) -> tuple[Tables, float]:
        """((states, moves) of each player, as in dialogues; the largest probability outside the words in any state).

        A reply outside the words is retried, and finally passes.
        """
        tables, most = tuple(torch.zeros(Poker(KUHN).num_states, 2, dtype=torch.float64) for _ in PLAYERS), 0.0
        for player, state, dialogue in information_sets():
            agent = PLAYERS[player]
            given = torch.as_tensor(
                probabilities(agent, [self.chat(dialogue, agent)], _words(_moves(dialogue)))[0], dtype=torch.float64
            )
            lost = max(0.0, 1 - float(given.sum()))
            asked = self.max_invalid_replies(agent)
            tables[player][state] = given * sum(lost**attempt for attempt in range(asked))
            tables[player][state, 0] += lost**asked
            most = max(most, lost)
        return (tables[0], tables[1]), most


def information_sets() -> Iterator[tuple[int, int, Dialogue]]:
    """(player, state, a dialogue in which it is the player's turn there), for all twelve."""
    for player, card in product(range(len(PLAYERS)), range(len(CARDS))):
        item = next(item for item, cards in zip(ITEMS, DEALS) if cards[player] == card)
        for situation, words in enumerate(HISTORIES[player]):
            rounds = tuple((Turn(PLAYERS[r % 2], word, {"main": word}),) for r, word in enumerate(words))
            yield player, 2 * card + situation, Dialogue(item, 0, rounds, ({},) * len(rounds))


def _moves(dialogue: Dialogue) -> list[str]:
    """The word of every round so far; an unusable reply passes, which no agent can tell from the word."""
    moves: list[str] = []
    for turns in dialogue.rounds:
        moves.append(turns[0].messages["main"] or _words(moves)[0])
    return moves


def _bets(word: str) -> int:
    return int(word in (OPEN[1], ANSWER[1]))


def _words(moves: list[str]) -> tuple[str, str]:
    """The possible words after these moves."""
    return ANSWER if moves and _bets(moves[-1]) else OPEN


@cache
def _outcomes() -> dict[tuple[int, tuple[int, ...]], tuple[list[float], bool]]:
    """(deal, moves so far, 1 for a bet or call) -> the pay of the last one, and True if the game is over, by
    `Poker.judge`."""
    made = {}
    for length in (1, 2, 3):
        keys = list(product(range(len(DEALS)), product((0, 1), repeat=length)))
        move_NRA = torch.full((len(keys), 3, 2), -1)
        for n, (_, moves) in enumerate(keys):
            for r, move in enumerate(moves):
                move_NRA[n, r, r % 2] = move
        judged = Poker(KUHN).judge(
            torch.tensor([deal for deal, _ in keys]), move_NRA, torch.full((len(keys),), length - 1)
        )
        made |= dict(zip(keys, zip(judged.reward_BA.tolist(), judged.over_B.tolist())))
    return made


def build_language_game(protocol: Protocol, settings: Any) -> KuhnPokerInWords:
    """The scenario of `settings` (LanguageMatrixGameSettings). Raises UserError for another protocol than its own."""
    if protocol.name != protocol_of(settings.game):
        raise UserError(
            f"protocol.name: {settings.game} is played under {protocol_of(settings.game)!r} alone (got"
            f" {protocol.name!r})"
        )
    return KuhnPokerInWords(protocol, settings)
