"""Exact metrics of language agents: a scenario computes them from the probabilities of replies.

Decisions that matter here:
- probabilities are read off a model's whole distribution at the agent's temperature. An agent that draws its replies
  otherwise plays another policy, so the metrics are left out then, with a warning before the first test;
- play ends a reply after the agent's limit of tokens, with or without an end token, so the end token counts only if
  there is room for it, and a longer reply is impossible.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.players import source_of
from nip_ray.config.text_rules import groups, language_agents
from nip_ray.learning.token_rows import Turn
from nip_ray.play.dialogue import Chat, LanguageScenario
from nip_ray.progress import say
from nip_ray.text.costs.token_bills import TokenBills, Use
from nip_ray.text.training.policies import Policy


class ExactMetrics:
    """Of a run's agents. models: by group. max_tokens: in one forward pass."""

    def __init__(
        self,
        config: TextExperimentConfig,
        scenario: LanguageScenario,
        models: Mapping[str, Policy],
        bills: TokenBills,
        max_tokens: int,
    ) -> None:
        self._models, self._bills, self._max_tokens = models, bills, max_tokens
        self._agents, self._providers = language_agents(config), config.providers
        self._group_of = {agent: group for group, members in groups(config).items() for agent in members}
        self._left_out = type(scenario).exact_figures is LanguageScenario.exact_figures
        if not self._left_out and (key := drawn_otherwise(config)):
            self._left_out = True
            say(f"warning: exact metrics are left out: {key}, so replies have other probabilities than the model's")

    def of(self, scenario: LanguageScenario, items: Sequence[Any]) -> dict[str, float]:
        """The metrics of these items; {} if the scenario has none, or they are left out."""
        return {} if self._left_out else scenario.exact_figures(items, self.probabilities)

    def probabilities(self, agent: str, chats: Sequence[Chat], replies: Sequence[str]) -> list[list[float]]:
        """For each chat, the probability of exactly each of these replies, at the agent's own temperature."""
        group, own = self._group_of[agent], self._agents[agent]
        model, temperature = self._models[group], 1.0 if own.temperature is None else own.temperature
        turns, possible = [], []
        for chat in chats:
            prompt = model.chat.prompt_before(chat, own.reply_tokens)
            for reply in replies:
                tokens = model.chat.reply(chat, reply)
                possible.append(len(tokens) - (tokens[-1] in model.chat.ends) <= own.reply_tokens)
                turns.append(Turn(prompt, tokens[: own.reply_tokens], temperature=temperature))
        hosted = self._providers[own.provider].hosted  # else nothing is billed
        read = sum(len(turn.prompt) + len(turn.reply) for turn in turns) if hosted else 0
        bill = self._bills.ask(group, Use(len(turns) if hosted else 0, read))
        log_probs = [sum(found) for found in model.logprobs(turns, self._max_tokens)]
        self._bills.book(bill)
        given = torch.tensor(log_probs, dtype=torch.float64).exp() * torch.tensor(possible)
        return given.view(len(chats), len(replies)).tolist()


def drawn_otherwise(config: TextExperimentConfig) -> str:
    """The first setting by which an agent does not draw from its model's whole distribution, at a temperature at which
    that can be read, with its value; "" if there is none."""
    for agent, own in language_agents(config).items():
        place = f"scenario.agents.{source_of(config, agent)}"
        if own.temperature == 0:
            return f"{place}.temperature is 0"
        if not config.providers[own.provider].sees_whole_distribution and own.temperature not in (None, 1):
            return f"{place}.temperature is {own.temperature}, and {own.provider} reads at 1 only"
        if own.top_p not in (None, 1):
            return f"{place}.top_p is {own.top_p}"
    return ""
