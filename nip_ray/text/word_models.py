"""The models called `words` that a run is asked for; see `nip_ray.serving.word_model`."""

from pathlib import Path

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import WORDS, language_agents
from nip_ray.errors import UserError
from nip_ray.play.dialogue import LanguageScenario
from nip_ray.settings.providers import LocalProvider


def check_words(config: TextExperimentConfig, scenario: LanguageScenario) -> None:
    """Raise UserError where an agent's model is to be made of the words of a scenario that does not list them."""
    for agent in _asking(config):
        if not scenario.words:
            raise UserError(
                f"scenario.agents.{agent}.model: words, but {config.scenario.name} has no closed list of words; name a folder, or default"
            )


def write_word_models(config: TextExperimentConfig, scenario: LanguageScenario, run_dir: Path) -> None:
    """Write each provider's into its folder of the run, where it finds models by name; one that is there stays as it is."""
    for provider, settings in _asking(config).values():
        from nip_ray.serving.word_model import save_word_model

        save_word_model(run_dir / provider / "models" / WORDS, scenario.words, settings.word_model, settings.default_model_seed)


def _asking(config: TextExperimentConfig) -> dict[str, tuple[str, LocalProvider]]:
    """Agent -> its provider, for agents whose model is called `words`."""
    found = {agent: (own.provider, config.providers[own.provider]) for agent, own in language_agents(config).items() if own.model == WORDS}
    return {agent: (name, provider) for agent, (name, provider) in found.items() if isinstance(provider, LocalProvider)}
