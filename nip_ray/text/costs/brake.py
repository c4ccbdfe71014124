"""`Brake`: ends a run in which most replies of an agent cannot be used, before each of them is asked for, and paid, many times."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from nip_ray.errors import TrainingError
from nip_ray.play.dialogue import Dialogue, Turn
from nip_ray.settings.text_training import TalkSettings


class Brake:
    """Counts, for each agent that a hosted provider speaks for, its last `talk.invalid_window` replies, over all stages."""

    def __init__(self, settings: TalkSettings) -> None:
        self._settings = settings
        self._last: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=settings.invalid_window))

    def invalid(self, agent: str, model: str) -> None:
        """A reply could not be used. Raises TrainingError when too many of the last ones could not."""
        last, share = self._last[agent], self._settings.max_invalid_share
        last.append(True)
        if len(last) == last.maxlen and sum(last) > share * len(last):
            raise _error(f"{sum(last)} of the last {len(last)} replies of {agent} ({model})", share)

    def over(self, turns: Iterable[Turn], models: Mapping[str, str]) -> None:
        """A round is over; unusable replies that were asked for again are counted already. models: of the agents that are counted."""
        for turn in turns:
            if turn.agent not in models:
                continue
            if turn.invalid:
                self.invalid(turn.agent, models[turn.agent])
            else:
                self._last[turn.agent].append(False)


def check_stage(settings: TalkSettings, dialogues: Iterable[Dialogue], models: Mapping[str, str]) -> None:
    """Raises TrainingError when an agent had turns in these dialogues, which are all of a stage, and none of its replies could be used.

    models: of the agents that hosted providers speak for.
    """
    turns = [turn for dialogue in dialogues for played in dialogue.rounds for turn in played if turn.agent in models]
    usable = {turn.agent for turn in turns if not turn.invalid}
    for agent in dict.fromkeys(turn.agent for turn in turns):
        if agent not in usable and settings.max_invalid_share < 1:
            raise _error(f"all replies of {agent} ({models[agent]}) in one stage", settings.max_invalid_share)


def _error(what: str, share: float) -> TrainingError:
    return TrainingError(
        f"{what} could not be used (talk.max_invalid_share: {share:g}). They stand in calls/. Start a run with another model, prompt or "
        "limit of tokens, or resume this one with a higher share"
    )
