"""The models that a run of language agents made or started from, answering in this process: without Ray and records."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import chat_shapes, groups, language_agents
from nip_ray.play.dialogue import Chat
from nip_ray.serving.shelf import ModelFolders, Shelf
from nip_ray.settings.providers import LocalProvider
from nip_ray.text.costs.budget import Budget
from nip_ray.text.dialogues.runner import AgentClient
from nip_ray.text.providers.interface import ChatClient, Connection, chat_client
from nip_ray.text.providers.local import LocalChat


class OwnChat(LocalChat):
    """A run's local models, by an engine of this process."""

    def __init__(self, folders: ModelFolders, settings: LocalProvider) -> None:
        """Models are loaded on first use."""
        import torch

        torch.set_num_threads(settings.threads)
        self._folders, self._shelf = folders, Shelf(settings.max_batch_size)

    async def close(self) -> None:
        """Stop all engines."""
        self._shelf.close()

    async def _generate(self, model: str, messages: Chat, wanted: Any) -> Any:
        return await self._shelf.generate(self._folders.locate(model), messages, wanted, "cut")


def own_clients(
    config: TextExperimentConfig, run_dir: Path, models: Mapping[str, str], agents: Iterable[str]
) -> dict[str, AgentClient]:
    """Agent -> its client, for these agents; the caller closes the clients (`clients_of`). models: group -> its model.

    Hosted providers are paid, within the config's budget. Raises UserError for a missing key or library.
    """
    settings, shapes = language_agents(config), chat_shapes(config)
    group_of = {agent: group for group, members in groups(config).items() for agent in members}
    budget, made = Budget(config.budget), dict[str, ChatClient]()
    for agent in agents:
        name = settings[agent].provider
        provider = config.providers[name]
        if name in made or not provider.has_model:
            continue
        if isinstance(provider, LocalProvider):
            made[name] = OwnChat(ModelFolders(run_dir / name, provider.default_model_seed), provider)
        else:
            made[name] = chat_client(
                Connection(provider, name, run_dir, None, config.seed, config.talk.max_in_flight, budget)
            )
    return {
        agent: AgentClient(
            made.get(settings[agent].provider), models[group_of[agent]], settings[agent], shape=shapes[agent]
        )
        for agent in agents
    }


def clients_of(agents: Mapping[str, AgentClient]) -> list[ChatClient]:
    """The clients behind agents, each once."""
    return list({id(agent.client): agent.client for agent in agents.values() if agent.client is not None}.values())
