"""Models that a run writes into its own folder before it begins: those called `words` (`nip_ray.serving.word_model`),
and those in GGUF files, converted."""

from collections.abc import Iterator
from pathlib import Path

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import WORDS, language_agents
from nip_ray.errors import UserError
from nip_ray.play.dialogue import LanguageScenario
from nip_ray.settings.providers import LocalProvider
from nip_ray.storage.model_files import gguf_in


def refuse_wordless(config: TextExperimentConfig, scenario: LanguageScenario) -> None:
    """Raise UserError where an agent's model is to be made of the words of a scenario that does not list them."""
    for agent, model, *_ in _local(config) if not scenario.words else ():
        if model == WORDS:
            raise UserError(
                f"scenario.agents.{agent}.model: words, but {config.scenario.name} has no closed list of words; name a"
                " folder, or default"
            )


def write_models(config: TextExperimentConfig, scenario: LanguageScenario, run_dir: Path) -> None:
    """Write each provider's into its folder of the run, where it finds models by name; one that is there stays as it
    is. Raises UserError for a GGUF file that cannot be read."""
    for _, model, provider, settings in _local(config):
        if model == WORDS:
            from nip_ray.serving.word_model import save_word_model

            folder = run_dir / provider / "models" / WORDS
            save_word_model(folder, scenario.words, settings.word_model, settings.default_model_seed)
        elif gguf_in(Path(model)) is not None:
            from nip_ray.serving.shelf import ModelFolders

            ModelFolders((run_dir / provider).resolve()).locate(model)


def _local(config: TextExperimentConfig) -> Iterator[tuple[str, str, str, LocalProvider]]:
    """(agent, its model, its provider and that one's settings), for agents whose provider is local."""
    for agent, own in language_agents(config).items():
        provider = config.providers[own.provider]
        if isinstance(provider, LocalProvider):
            yield agent, own.model, own.provider, provider
