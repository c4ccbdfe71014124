"""The message game of two secrets in words, between language models: a plugin of `benchmarks/collapse.py`.

The prover sees a coin and says one of two words that mean nothing yet; the verifier decides whether the coin shows
heads. Both are paid if it is right. The exact metric is the probability that it is not, or that a reply is unusable.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, LanguageScenario, Parsed, Probabilities, Turn
from nip_ray.plugins import register_language_scenario
from nip_ray.protocols import DECISIONS
from nip_ray.scenarios.language import LanguageScenarioKind
from nip_ray.seeding import stable_seed
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.options import FORBID_UNKNOWN, option

SIDES, WORDS, VERDICTS = ("tails", "heads"), ("ba", "ku"), DECISIONS[:2]
_REPLIES = {"prover": WORDS, "verifier": VERDICTS}


@dataclass(frozen=True)
class MessageWordsSettings:
    """A coin."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["message_words"] = option("message_words", "The task.")
    agents: dict[str, LanguageAgentSettings] = option(
        dict, "Agent -> its model; `_default` serves the agents not named."
    )


@dataclass(frozen=True)
class Coin:
    """An item. y: 1 for heads."""

    id: int
    y: int


COINS = [Coin(y, y) for y in range(2)]


class MessageWords(LanguageScenario):
    """Under `adp` with `shared_reward`: the prover's word, then the verdict."""

    words = (*SIDES, *WORDS, *VERDICTS, "coin:", "say", "heads?")

    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """The coin for the prover, its word for the verifier."""
        if agent == "prover":
            return [{"role": "user", "content": f"coin: {SIDES[dialogue.item.y]} say"}]
        said = [word for turns in dialogue.rounds for turn in turns for word in turn.messages.values() if word]
        return [{"role": "user", "content": " ".join([*said, "heads?"])}]

    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """A word or a verdict. Raises InvalidReply for anything else."""
        word, right = reply.strip(), _REPLIES[agent]
        if word not in right:
            raise InvalidReply(f"expected {' or '.join(right)}, got {word!r:.60}")
        return Parsed({"main": word}) if agent == "prover" else Parsed(decision=DECISIONS.index(word))

    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """Either of the two replies."""
        place = (dialogue.item.id, dialogue.seed, len(dialogue.rounds), agent)
        return Random(stable_seed(seed, "message words", *place)).choice(_REPLIES[agent])

    def exact_figures(self, items: Sequence[Coin], probabilities: Probabilities) -> dict[str, float]:
        """``regret``: the probability of a verdict that is wrong, or of an unusable reply."""
        right = 0.0
        for coin in COINS:
            start = Dialogue(coin, 0)
            said = probabilities("prover", [self.chat(start, "prover")], WORDS)[0]
            for word, chance in zip(WORDS, said):
                heard = replace(start, rounds=((Turn("prover", word, {"main": word}),),), rewards=({},))
                judged = probabilities("verifier", [self.chat(heard, "verifier")], VERDICTS)[0]
                right += float(chance) * float(judged[coin.y]) / len(COINS)
        return {"regret": 1 - right}


def coins(settings: MessageWordsSettings, seed: int) -> dict[str, list[Coin]]:
    """Both, for training and test: there is nothing to generalise over."""
    return {"train": COINS, "test": COINS}


def read_coin(record: Any) -> Coin:
    """A coin from its record in a run folder."""
    return Coin(**record)


register_language_scenario(LanguageScenarioKind(MessageWordsSettings, MessageWords, coins, read_coin))
