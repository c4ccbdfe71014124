"""From a config to the clients of its agents: one recorded client for each provider in use, in each process that plays dialogues.

A `ClientPool` is what such a process needs to reach the providers. It can be sent to another process: budgets and limits are then
handles of the actors that keep them.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import chat_shapes, groups, language_agents
from nip_ray.text.costs.budget import BudgetLike, Limiter, Throttle
from nip_ray.text.costs.prices import price_list
from nip_ray.text.dialogues.records import RecordedChat
from nip_ray.text.dialogues.talk import AgentClient
from nip_ray.text.providers.interface import ChatClient
from nip_ray.text.providers.registry import Connection, chat_client


@dataclass
class ClientPool:
    """config: of the run. run_dir: where calls are recorded. budget: what calls are paid from. hosts: of local providers, by name.

    throttles: of providers with limits, by name; made here for those that are missing. worker: "" in the main process.
    """

    config: TextExperimentConfig
    run_dir: Path
    budget: BudgetLike
    hosts: Mapping[str, Any] = field(default_factory=dict)
    throttles: dict[str, Throttle] = field(default_factory=dict)
    worker: str = ""

    @asynccontextmanager
    async def agent_clients(self, models: Mapping[str, str], iteration: int) -> AsyncIterator[dict[str, AgentClient]]:
        """Agent -> its client, while an iteration (from 0) lasts. models: group -> the model that speaks for it."""
        settings = language_agents(self.config)
        group_of = {agent: group for group, agents in groups(self.config).items() for agent in agents}
        shapes = chat_shapes(self.config)
        used = {agent.provider for agent in settings.values() if self.config.providers[agent.provider].has_model}
        clients = {name: self._recorded(name, iteration) for name in sorted(used)}
        try:
            yield {
                agent: AgentClient(
                    clients.get(found.provider),
                    models[group_of[agent]],
                    found,
                    self.config.seed,
                    hosted=self.config.providers[found.provider].hosted,
                    shape=shapes[agent],
                )
                for agent, found in settings.items()
            }
        finally:
            for client in clients.values():
                await client.close()

    def client(self, name: str) -> ChatClient:
        """A client of the provider `name`. Raises UserError for a missing key or library."""
        talk = self.config.talk
        return chat_client(
            Connection(
                self.config.providers[name],
                name,
                self.run_dir,
                self.hosts.get(name),
                self.config.seed,
                talk.max_in_flight,
                self.budget,
                self._throttle(name),
            )
        )

    def _recorded(self, name: str, iteration: int) -> RecordedChat:
        writer = re.sub(r"\W", "_", name) + (f"_{self.worker}" if self.worker else "")
        provider = self.config.providers[name]
        prices = price_list(provider, self.budget.in_usd)
        return RecordedChat(self.client(name), self.run_dir, iteration, writer, prices, provider.name)

    def _throttle(self, name: str) -> Throttle:
        if name not in self.throttles:
            self.throttles[name] = Limiter(*(self.config.providers[name].limits or (None, None)))
        return self.throttles[name]
