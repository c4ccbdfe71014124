"""Models that a run writes to its folder before it starts: those named `words` (`nip_ray.serving.word_model`), and
converted GGUF files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import WORDS, language_agents
from nip_ray.errors import UserError
from nip_ray.play.dialogue import LanguageScenario
from nip_ray.settings.providers import LocalProvider
from nip_ray.storage.model_files import gguf_in
from nip_ray.text.context_room import check_room


def refuse_wordless(config: TextExperimentConfig, scenario: LanguageScenario) -> None:
    """Raise UserError if an agent's model is `words` and the scenario does not list its words."""
    for agent, model, *_ in _local(config) if not scenario.words else ():
        if model == WORDS:
            english = getattr(config.scenario, "wording", "words") == "english"
            what = "scenario.wording: english has" if english else f"{config.scenario.name} has"
            raise UserError(
                f"scenario.agents.{agent}.model: words, but {what} no closed list of words; name a folder, or default"
            )


def write_models(config: TextExperimentConfig, scenario: LanguageScenario, items: Sequence[Any], run_dir: Path) -> None:
    """Write each provider's models to its folder of the run, which serves them by name; existing ones stay. items: of
    training. Raises UserError for a GGUF file that cannot be read, or whose model has no room for chats."""
    converted = False
    for _, model, provider, settings in _local(config):
        if model == WORDS:
            from nip_ray.serving.word_model import save_word_model

            folder = run_dir / provider / "models" / WORDS
            save_word_model(folder, scenario.words, settings.word_model, settings.default_model_seed)
        elif gguf_in(Path(model)) is not None:
            from nip_ray.serving.shelf import ModelFolders

            ModelFolders((run_dir / provider).resolve()).locate(model)
            converted = True
    if converted:
        check_room(config, scenario, items, run_dir)


def _local(config: TextExperimentConfig) -> Iterator[tuple[str, str, str, LocalProvider]]:
    """(agent, its model, its provider and its settings), for agents with local providers."""
    for agent, own in language_agents(config).items():
        provider = config.providers[own.provider]
        if isinstance(provider, LocalProvider):
            yield agent, own.model, own.provider, provider
