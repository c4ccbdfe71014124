"""What the text room asks of a scenario that language models play: what `TextScenario` has, and what asking models and learning need."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_ray.play.dialogue import Chat, Dialogue, Parsed, Turn, beginning
from nip_ray.protocols import Protocol
from nip_ray.settings.language_agents import LanguageAgentSettings

Probabilities = Callable[[str, Sequence[Chat], Sequence[str]], Sequence[Sequence[float]]]
"""(agent, chats, replies) -> for each chat, the probability that the agent replies with each of these texts and nothing else."""


@dataclass(frozen=True, eq=False)
class LanguageScenario(ABC):
    """A task of language agents. It can be pickled; its methods are pure functions of the dialogue, so all can be rebuilt from records.

    protocol: who speaks when. settings: a settings dataclass with `agents` (agent -> `LanguageAgentSettings`).
    """

    protocol: Protocol
    settings: Any

    @abstractmethod
    def chat(self, dialogue: Dialogue, agent: str) -> Chat:
        """All that `agent` is shown before its turn in the round about to be played. Its own invalid replies are not in it."""

    @abstractmethod
    def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
        """What `agent`'s reply in the round about to be played says. Raises InvalidReply."""

    @abstractmethod
    def invent(self, dialogue: Dialogue, agent: str, seed: int) -> str:
        """A random reply of the right form in the round about to be played. It depends on the arguments alone."""

    def stance(self, item: Any, agent: str, role: str | None = None) -> int | None:
        """The verdict, by its code, that `agent` argues for and is paid for; None for a verifier, and where nothing is paid. role:
        that the episode draws, given under protocols that draw one.
        """
        return self.protocol.payment.of(role).goals.get(agent)

    def verdict_text(self, label: int) -> str:
        """The reply that decides for `label` with full confidence, as `parse` reads it."""
        return self.protocol.verdicts[label]

    def reply_schema(self, agent: str) -> dict[str, Any] | None:
        """The JSON schema of `agent`'s replies, None for one that replies in text."""
        return None

    def judge(self, dialogue: Dialogue, turns: tuple[Turn, ...]) -> tuple[Mapping[str, float], bool]:
        """In a game without a verifier: what these turns of the dialogue's next round pay each agent, and whether the game is over."""
        raise NotImplementedError(f"{type(self).__name__} cannot judge a game without a verifier")

    def exact_figures(self, items: Sequence[Any], probabilities: Probabilities) -> dict[str, float]:
        """Figures that are computed instead of sampled, over these items, where the game is small enough."""
        return {}

    @property
    def words(self) -> tuple[str, ...]:
        """Every word of all chats and replies, between spaces, for models whose tokens are words (`model: words`); () for no such list."""
        return ()

    def warm_example(self, item: Any, agent: str, seed: int) -> tuple[Chat, str] | None:
        """What `agent` may be shown in a dialogue about `item`, and a reply that is worth imitating before any learning from rewards; None
        where the scenario knows of none. It depends on the arguments alone."""
        return None

    def agent_settings(self, agent: str) -> LanguageAgentSettings:
        """The settings of `agent`: its own, those of `_default`, or the built-in ones."""
        agents = self.settings.agents
        return agents.get(agent) or agents.get("_default") or LanguageAgentSettings()

    def max_invalid_replies(self, agent: str) -> int:
        """See `LanguageAgentSettings`."""
        return self.agent_settings(agent).max_invalid_replies

    def training_chat(self, dialogue: Dialogue, agent: str, round: int) -> tuple[Chat, str]:
        """What `agent` saw before its turn in `round`, and what it replied. Raises ValueError where it had no turn, or no usable reply."""
        turn = next((turn for turn in dialogue.rounds[round] if turn.agent == agent), None)
        if turn is None or turn.invalid:
            raise ValueError(f"{agent!r} has no usable reply in round {round} of this dialogue; ask `usable_rounds` first")
        return self.chat(beginning(dialogue, round), agent), turn.raw

    def usable_rounds(self, dialogue: Dialogue, agent: str) -> list[int]:
        """The rounds that `training_chat` can be asked for."""
        return [r for r, turns in enumerate(dialogue.rounds) if any(turn.agent == agent and not turn.invalid for turn in turns)]
