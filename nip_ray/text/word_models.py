"""The models called `words` that a run is asked for; see `nip_ray.serving.word_model`."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import WORDS, language_agents
from nip_ray.errors import UserError
from nip_ray.play.dialogue import LanguageScenario
from nip_ray.play.dialogues import Answer, Question, play_in_step, start_dialogue
from nip_ray.settings.providers import LocalProvider

_DIALOGUES = 8


def refuse_wordless(config: TextExperimentConfig, scenario: LanguageScenario) -> None:
    """Raise UserError where an agent's model is to be made of the words of a scenario that does not list them."""
    for agent in _asking(config) if not scenario.words else ():
        raise UserError(
            f"scenario.agents.{agent}.model: words, but {config.scenario.name} has no closed list of words; name a"
            " folder, or default"
        )


def check_room(config: TextExperimentConfig, scenario: LanguageScenario, items: Sequence[Any]) -> None:
    """Raise UserError where a model of words has no room for chats as they are in some dialogues of random replies: of
    a longer one the middle would be left out."""
    asking = _asking(config)
    longest = dict.fromkeys(asking, 0)

    def answer(asked: list[Question]) -> list[Answer]:
        for one in asked:
            tokens = sum(1 + len(message["content"].split()) for message in one.chat)
            longest[one.agent] = max(tokens, longest.get(one.agent, 0))
        return [Answer(scenario.invent(one.dialogue, one.agent, one.attempt)) for one in asked]

    if asking:
        play_in_step(scenario, [start_dialogue(item, number) for number, item in enumerate(items[:_DIALOGUES])], answer)
    for agent, (name, provider) in asking.items():
        key = "word_model.context" if (provider.max_length or math.inf) >= provider.word_model.context else "max_length"
        room = min(provider.word_model.context, provider.max_length or math.inf)
        if longest[agent] + (reply := language_agents(config)[agent].reply_tokens) > room:
            needs = f"chats of {agent} take {longest[agent]} tokens and its reply up to {reply} (max_tokens)"
            raise UserError(f"providers.{name}.{key}: got {room}, but {needs}, raise it or lower that")


def write_word_models(config: TextExperimentConfig, scenario: LanguageScenario, run_dir: Path) -> None:
    """Write each provider's into its folder of the run, where it finds models by name; one that is there stays as it
    is."""
    for provider, settings in _asking(config).values():
        from nip_ray.serving.word_model import save_word_model

        save_word_model(
            run_dir / provider / "models" / WORDS, scenario.words, settings.word_model, settings.default_model_seed
        )


def _asking(config: TextExperimentConfig) -> dict[str, tuple[str, LocalProvider]]:
    """Agent -> its provider, for agents whose model is called `words`."""
    found = {
        agent: (own.provider, config.providers[own.provider])
        for agent, own in language_agents(config).items()
        if own.model == WORDS
    }
    return {agent: (name, provider) for agent, (name, provider) in found.items() if isinstance(provider, LocalProvider)}
