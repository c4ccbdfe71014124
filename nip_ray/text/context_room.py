"""Check before a run, by some dialogues of random replies, that chats and replies fit the contexts of local models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import DEFAULT_MODEL, WORDS, language_agents
from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat, LanguageScenario
from nip_ray.play.dialogues import Answer, Question, play_in_step, start_dialogue
from nip_ray.settings.providers import LocalProvider
from nip_ray.storage.model_files import gguf_in, is_model

_DIALOGUES = 8


@dataclass
class _Room:
    """An agent's room. context: tokens that its model has room for; told: the source of that number; remedy: what to
    change if it is too little. reply: the most tokens of its own. size: of a prompt. said: of a reply, without its end
    token. strict: all prompts must fit, else half of them."""

    told: str
    remedy: str
    context: int
    reply: int
    size: Callable[[Chat], int]
    said: Callable[[str], int]
    strict: bool
    prompts: list[int] = field(default_factory=list)

    def refuse(self, agent: str) -> None:
        """Raise UserError if too many of the counted prompts do not fit."""
        long = [size for size in self.prompts if size + self.reply > self.context]
        if len(long) > (0 if self.strict else len(self.prompts) / 2):
            needs = f"chats of {agent} take {max(long)} tokens and its reply up to {self.reply} (max_tokens)"
            raise UserError(f"{self.told}, but {needs}, {self.remedy} or lower that")


def check_room(
    config: TextExperimentConfig, scenario: LanguageScenario, items: Sequence[Any], run_dir: Path | None = None
) -> None:
    """Raise UserError if a model of words has no room for a chat as it is, another local model has none for more than
    half of an agent's chats, or a reply from a fixed set cannot fit in `max_tokens`.

    Chats that are too long lose their middle. run_dir: of a run that has converted its GGUF files. Without it, since
    their vocabularies are slow to read, only `max_tokens` is compared with their context. Raises UserError also for a
    model that cannot be read.
    """
    rooms = _rooms(config, run_dir)

    def answer(asked: list[Question]) -> list[Answer]:
        made = []
        for one in asked:
            said = scenario.invent(one.dialogue, one.agent, one.attempt)
            if (room := rooms.get(one.agent)) is not None:
                room.prompts.append(room.size(one.chat))
                if scenario.words and room.said(said) > room.reply:
                    raise UserError(
                        f"scenario.agents.{one.agent}.max_tokens: got {room.reply}, but the reply {said!r} takes"
                        f" {room.said(said)} tokens of its model, raise it"
                    )
            made.append(Answer(said))
        return made

    if rooms:
        play_in_step(scenario, [start_dialogue(item, number) for number, item in enumerate(items[:_DIALOGUES])], answer)
    for agent, room in rooms.items():
        room.refuse(agent)


def _rooms(config: TextExperimentConfig, run_dir: Path | None) -> dict[str, _Room]:
    rooms, formats = dict[str, _Room](), dict[tuple[str, int | None], Any]()
    for agent, own in language_agents(config).items():
        provider = config.providers[own.provider]
        if not isinstance(provider, LocalProvider):
            continue
        limit, key = provider.max_length, f"providers.{own.provider}.max_length"
        if own.model == WORDS:
            context = provider.word_model.context
            if limit is None or limit >= context:
                limit, key = context, f"providers.{own.provider}.word_model.context"
            rooms[agent] = _Room(
                f"{key}: got {limit}", "raise it", limit, own.reply_tokens, _words_of_chat, _words, strict=True
            )
        elif own.model == DEFAULT_MODEL or is_model(Path(own.model)):  # else, in an export, one that the run made
            model = own.model
            if (file := gguf_in(Path(model))) is not None:
                if run_dir is None:
                    _refuse_long_reply(agent, own.reply_tokens, file, limit)
                    continue
                model = _conversion(file, run_dir / own.provider)
            if (model, limit) not in formats:
                formats[model, limit] = _format(model, limit)
            chat, how = formats[model, limit], (f"{key}: got {limit}", "raise it")
            if chat.context != limit:
                how = (f"scenario.agents.{agent}.model: its context is {chat.context}", "name one with a longer one")
            rooms[agent] = _Room(*how, chat.context, own.reply_tokens, *_counts(chat), strict=False)
    return rooms


def _conversion(file: Path, home: Path) -> str:
    """The folder that a provider converted `file` to. home: the provider's folder."""
    from nip_ray.serving.shelf import ModelFolders

    return str(ModelFolders(home).conversion(file))


def _refuse_long_reply(agent: str, reply: int, file: Path, limit: int | None) -> None:
    """Raise UserError if the context of the model in a GGUF file has no room for a prompt beside a reply."""
    from nip_ray.serving.model_folder import check_architecture
    from nip_ray.storage.gguf_header import gguf_header

    check_architecture(file)
    header = gguf_header(file)
    own = header.get(f"{header.get('general.architecture')}.context_length")
    context = min((size for size in (own, limit) if isinstance(size, int)), default=None)
    if context is not None and reply >= context:
        raise UserError(
            f"scenario.agents.{agent}.max_tokens: got {reply}, but the context of its model is {context} tokens, for"
            " the prompt and the reply; lower it"
        )


def _format(model: str, limit: int | None) -> Any:
    """The `ChatFormat` of the default model, or of a model's folder."""
    from nip_ray.serving.chat_format import ChatFormat, load_format
    from nip_ray.serving.default_model import CONTEXT, default_tokenizer
    from nip_ray.serving.model_folder import check_architecture, context_of

    if model == DEFAULT_MODEL:
        return ChatFormat(default_tokenizer(), min(CONTEXT, limit or CONTEXT))
    return load_format(Path(model), context_of(check_architecture(Path(model)), limit))


def _counts(chat: Any) -> tuple[Callable[[Chat], int], Callable[[str], int]]:
    def said(text: str) -> int:
        return len(chat.reply([{"role": "user", "content": "?"}], text)) - 1

    return lambda messages: len(chat.prompt(messages)), said


def _words_of_chat(chat: Chat) -> int:
    return sum(1 + _words(message["content"]) for message in chat)


def _words(text: str) -> int:
    return len(text.split())
