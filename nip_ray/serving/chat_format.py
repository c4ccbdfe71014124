"""From chats to tokens, by the template of a model's tokenizer: the same for inference and training.

Decisions that matter here:
- content cannot pose as structure: text that reads as a special token of the model is broken up by a space, so no agent
  can end its message and continue as another;
- a speaker's name is passed by the template if it supports names, else as `NAME: ` before the content;
- a chat is shaped as the template needs it (`nip_ray.play.dialogue`): the first shape of which it shows every word,
  before a reply and with it, and to which a reply only adds (some move the system prompt, or leave it out, depending on
  the last message). A template that accepts chats unchanged gets them so;
- most templates concatenate messages. If this one does (by trial chats), and its marks are separate tokens, so that no
  token spans the end of a message, a message is rendered once and its tokens are cached;
- a prompt that is too long loses its middle, and keeps a quarter from its beginning (instructions and question) and the
  rest from its end (the last messages). Callers that prefer to refuse compare lengths first.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.learning.token_rows import common_beginning
from nip_ray.play.dialogue import MARK, OPENED, SHAPES, Chat, Shape, shape_chat
from nip_ray.progress import say
from nip_ray.serving.extras import local_llm
from nip_ray.serving.generation import TooLong
from nip_ray.serving.model_folder import first_line, reply_ends

_TRIAL: Chat = [
    {"role": "system", "content": "sys0"},
    {"role": "assistant", "content": "ass1"},
    {"role": "user", "content": "use2"},
    {"role": "user", "name": "Expert_1", "content": "use3"},
    {"role": "system", "content": "sys4"},
]
"""All forms of scenarios that templates may refuse."""
_LONG_TRIAL: Chat = [
    {"role": "system", "content": "sys0"},
    *({"role": role, "content": f"{role[:3]}{turn}"} for turn in range(1, 4) for role in ("user", "assistant")),
    {"role": "user", "content": "use4"},
]
_MOST_RENDERED = 100_000
"""Maximum number of messages with cached tokens."""
_REPLY = {"role": "assistant", "content": "ass5"}
_KNOWS_NAMES = re.compile(r"""message(\.|\[["'])name\b|message\.get\(["']name""")


class ChatFormat:
    """A tokenizer with its settings. context: maximum tokens of a prompt and its reply together. ends: the tokens that
    end a reply, beside the tokenizer's own."""

    def __init__(self, tokenizer: Any, context: int, ends: Iterable[int] = ()) -> None:
        if tokenizer.chat_template is None:
            raise UserError(
                f"the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template; take a model that was"
                " made to chat"
            )
        self.tokenizer, self.context = tokenizer, context
        self.ends = frozenset({tokenizer.eos_token_id, *ends} - {None})
        self.prompts_cut = 0
        """Number of chats that have lost their middle in `prompt_before` or `cut_aloud`."""
        self._has_cut_replies = self._has_long_replies = False
        self._rendered: dict[tuple[Any, ...], list[int] | None] = {}
        self._beginnings: dict[int, list[int]] = {0: []}
        self._replies: dict[str, list[int]] = {}  # if `joins`: the most recent ones

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens of a chat, up to the beginning of the model's own message. Raises UserError if the template
        refuses the chat."""
        chat: Any = (
            messages if self._shape is None else shape_chat([dict(message) for message in messages], self._shape)
        )
        joined = self._joined(chat) if chat and self.joins else None
        return self._render(chat, True) if joined is None else joined

    def refuse_hopeless(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Raise TooLong for a chat that certainly exceeds the context: counting tokens of megabytes takes seconds,
        which would block all others."""
        size, most = sum(len(str(message.get("content") or "")) for message in messages), self.context * self._longest
        if size > most:
            raise TooLong(
                f"the prompt has {size} characters, more than the {self.context} tokens of this model's context;"
                " shorten it"
            )

    def completed(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens of a chat whose last message is the model's own, including its end."""
        *before, last = (dict(message) for message in messages)
        return self._render([*(before if self._shape is None else shape_chat(before, self._shape)), last], False)

    def reply(self, messages: Sequence[Mapping[str, Any]], said: str) -> list[int]:
        """The tokens of the reply `said` after a chat, with the one that ends it. Loses its end, with a warning at the
        first, if it has no room in the context after the chat, nor in half of the context."""
        # the same after any chat
        alike = self.joins and not any(MARK.search(message["content"] or "") for message in messages)
        made = list(self._replies.get(said, ())) if alike else []
        if not made:
            prompt = self.prompt(messages)
            whole = self.completed([*messages, {"role": "assistant", "content": said}])
            made = [*self.closing, *self.up_to_end(whole[common_beginning(prompt, whole) :])]
            if alike:
                if len(self._replies) >= _MOST_RENDERED:
                    self._replies.clear()
                self._replies[said] = list(made)
        half = self.context // 2
        if len(made) <= half or len(made) <= (room := max(self.context - len(self.prompt(messages)), half)):
            return made
        if not self._has_cut_replies:
            self._has_cut_replies = True
            say(
                f"warning: an example of a reply of {len(made)} tokens loses its end, the context of {self.context} has"
                f" room for {room}, as may others after it; shorten replies, or take a model with a longer context"
            )
        return made[:room]

    def example(
        self, messages: Sequence[Mapping[str, Any]], said: str, max_tokens: int | None = None
    ) -> tuple[list[int], list[int]]:
        """The tokens of a chat, by `cut_aloud`, and of the reply `said`, in one context together. max_tokens: of
        replies in play; warns of the first reply that is longer."""
        reply = self.reply(messages, said)
        size = len(reply) - (reply[-1] in self.ends)
        if max_tokens is not None and size > max_tokens and not self._has_long_replies:
            self._has_long_replies = True
            say(
                f"warning: an example of a reply has {size} tokens, as may others after it, but replies in play"
                f" end after {max_tokens}; raise max_tokens of its agent, or shorten the examples"
            )
        return self.cut_aloud(self.prompt(messages), self.context - len(reply)), reply

    def refuse_without_embedding(self, count: int) -> None:
        """Raise UserError if a chat's form has tokens beyond the first `count`, which are those that a model knows."""
        ask = [{"role": "user", "content": "?"}]
        if (most := max((*self.prompt(ask), *self.reply(ask, "?"), *self.ends))) >= count:
            word = self.tokenizer.convert_ids_to_tokens(most)
            raise UserError(
                f"{self.tokenizer.name_or_path}: its tokenizer writes {word!r} as token {most}, but the model has"
                f" embeddings of {count} tokens; take the tokenizer that belongs to it"
            )

    def up_to_end(self, tokens: list[int]) -> list[int]:
        """`tokens` up to the first that ends a reply; one is added if the template has none."""
        for index, token in enumerate(tokens):
            if token in self.ends:
                return tokens[: index + 1]
        own = self.tokenizer.eos_token_id
        return [*tokens, *([own] if own is not None else sorted(self.ends)[:1])]

    def prompt_before(self, messages: Sequence[Mapping[str, Any]], reply_tokens: int = 0) -> list[int]:
        """`prompt`, without its middle if that would leave no room in the context for `reply_tokens` tokens."""
        tokens, room = self.prompt(messages), self.context - reply_tokens
        self.prompts_cut += len(tokens) > room
        return self.cut(tokens, room)

    def cut_aloud(self, tokens: list[int], room: int) -> list[int]:
        """`cut` of a prompt, with a warning at the first that loses its middle."""
        if len(tokens) > room and not self.prompts_cut:
            say(
                f"warning: a prompt of {len(tokens)} tokens loses its middle, the context of {self.context} has room"
                f" for {room}, as may others after it; shorten items, replies or rounds, or take a model with a longer"
                " context"
            )
        self.prompts_cut += len(tokens) > room
        return self.cut(tokens, room)

    def cut(self, tokens: list[int], room: int) -> list[int]:
        """At most `room` tokens; see the module for the omitted part."""
        if len(tokens) <= room:
            return tokens
        head = room // 4
        return tokens[:head] + tokens[len(tokens) - (room - head) :]

    def text(self, tokens: Sequence[int]) -> str:
        """Text of a reply of these tokens, without special tokens except marks of reasoning. See `opened` for one at
        its beginning."""
        return self.tokenizer.decode(
            [token for token in tokens if token not in self._hidden], skip_special_tokens=False
        )

    @cached_property
    def pieces(self) -> list[str]:
        """The text that each token adds, by number. "" for special tokens, for marks of reasoning, and for parts of a
        character's bytes, whose text is undetermined."""
        # some tokenizers drop a space at the beginning of a text
        before = self.tokenizer.encode("x", add_special_tokens=False)
        start = self.text(before)
        whole = [self.text([*before, token]) for token in range(len(self.tokenizer))]
        return [
            text[len(start) :] if text.startswith(start) and "\ufffd" not in text and not MARK.search(text) else ""
            for text in whole
        ]

    @cached_property
    def _longest(self) -> int:
        """Characters that a token may represent: of the longest, or as many as a word may have that becomes one unknown
        token."""
        return max(256, *map(len, self.tokenizer.get_vocab()))

    @cached_property
    def opened(self) -> str:
        """The mark of reasoning that the template adds before every reply, else ""."""
        found = OPENED.search(self.tokenizer.decode(self.prompt([{"role": "user", "content": "?"}])))
        return found[0] if found else ""

    @cached_property
    def closing(self) -> list[int]:
        """The tokens that end reasoning begun by the template, for replies without any; [] if it begins none."""
        return (
            self.tokenizer.encode(f"{self.opened[0]}/{self.opened[1:]}\n\n", add_special_tokens=False)
            if self.opened
            else []
        )

    @cached_property
    def _shape(self) -> Shape | None:
        """The first shape that the template accepts without leaving anything out; None: it accepts any chat."""
        trials = (_TRIAL[:1], _TRIAL)
        if all(map(self._shows, trials)):
            return None
        for shape in SHAPES:
            if all(self._shows(shape_chat(trial, shape)) for trial in trials):
                return shape
        return SHAPES[-1]

    def _shows(self, chat: Chat) -> bool:
        """True if the template accepts a chat, shows every word, and also with a reply, which follows all that."""
        words = {word for message in chat for word in message["content"].split()}
        plain = [self._plain(message) for message in chat]
        try:
            text = self.tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=False)
            whole = self.tokenizer.apply_chat_template([*plain, _REPLY], add_generation_prompt=False, tokenize=False)
        except Exception:  # templates are programs: they refuse in any way
            return False
        return (
            all(word in text for word in words)
            and whole.startswith(OPENED.sub("", text).rstrip())
            and _REPLY["content"] in whole
        )

    @cached_property
    def joins(self) -> bool:
        """True if the tokens of any chat are those of its messages concatenated, and of the reply header, and a reply
        is rendered alike after any chat."""
        shape, shown = self._shape, set()
        for trial in (*(_TRIAL[:size] for size in range(1, len(_TRIAL) + 1)), _LONG_TRIAL):
            chat = trial if shape is None else shape_chat(trial, shape)
            try:
                prompt, whole = self._joined(chat, check=True), self._render([*chat, _REPLY], False)
                if prompt is None or prompt != self._render(chat, True):
                    return False
                size = len(prompt) - len(self._rendered[()] or ())
                shown.add((whole[:size] == prompt[:size], *whole[size:]))
            except UserError:  # refused alone, but not as a part of a chat
                return False
        return len(shown) == 1 and next(iter(shown))[0] is True

    def _joined(self, chat: Sequence[Mapping[str, Any]], check: bool = False) -> list[int] | None:
        """The tokens of a chat from those of its messages; None if they cannot be separated. check: also check that
        ends are marked."""
        tokens: list[int] = []
        for place, message in enumerate([*chat, None]):
            key = (not place, *map(message.get, ("role", "name", "content"))) if message else ()
            if key not in self._rendered:
                if len(self._rendered) >= _MOST_RENDERED:
                    self._rendered.clear()
                self._rendered[key] = self._piece(message, not place)
            piece = self._rendered.get(key)
            if piece is None or (check and tokens and not (self._marks.intersection((*tokens[-1:], *piece[:1])))):
                return None
            tokens += piece
        return tokens

    def _piece(self, message: Mapping[str, Any] | None, first: bool) -> list[int] | None:
        """Tokens that a message adds to a chat, as its first or later; without a message, those of the reply header.

        None if they cannot be determined: templates show reasoning depending on later messages.
        """
        if message and MARK.search(message.get("content") or ""):
            return None
        talk = _LONG_TRIAL[1:4]
        size = 0 if first else 1 if message and message["role"] == "assistant" else 2 if message else 3
        try:
            if size not in self._beginnings:
                self._beginnings[size] = self._render(talk[:size], False)
            before = self._beginnings[size]
            whole = self._render([*talk[:size], message] if message else talk, not message)
        except UserError:
            return None
        return whole[len(before) :] if whole[: len(before)] == before else None

    @cached_property
    def _marks(self) -> frozenset[int]:
        """Tokens that are matched in a text before all others, and absorb nothing beside them."""
        added = self.tokenizer.added_tokens_decoder.items()
        return frozenset(n for n, token in added if not (token.lstrip or token.rstrip or token.single_word))

    @cached_property
    def _hidden(self) -> frozenset[int]:
        tokenizer = self.tokenizer
        special = {n for n, added in tokenizer.added_tokens_decoder.items() if added.special} | set(
            tokenizer.all_special_ids
        )
        return frozenset(n for n in special if not MARK.search(tokenizer.convert_ids_to_tokens(n)))

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        words = {*self.tokenizer.all_special_tokens, *self.tokenizer.get_added_vocab()}
        words = {word for word in words if len(word) > 1 and word.strip()}
        return re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))) if words else None

    def _render(self, messages: Sequence[Mapping[str, Any]], prompt: bool) -> list[int]:
        plain = [self._plain(message) for message in messages]
        try:
            return list(
                self.tokenizer.apply_chat_template(
                    plain, add_generation_prompt=prompt, tokenize=True, return_dict=False
                )
            )
        except Exception as error:  # templates are programs of the model's makers: jinja passes on any error
            raise UserError(
                f"the model's chat template refuses these messages ({type(error).__name__}: {error})"
            ) from None

    def _plain(self, message: Mapping[str, Any]) -> dict[str, str]:
        content, name = self._harmless(message.get("content") or ""), self._harmless(message.get("name") or "")
        if not name:
            return {"role": message["role"], "content": content}
        if _KNOWS_NAMES.search(str(self.tokenizer.chat_template)):
            return {"role": message["role"], "content": content, "name": name}
        return {"role": message["role"], "content": f"{name}: {content}"}

    def _harmless(self, text: str) -> str:
        if self._special is None:
            return text
        return self._special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


def load_format(folder: Path, context: int) -> ChatFormat:
    """The format of the model in `folder`, or of its base. Raises UserError if there is no usable tokenizer."""
    transformers = local_llm("transformers")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # libraries pass on errors of all kinds
        raise UserError(f"{folder}: no tokenizer can be loaded from here ({first_line(error)})") from None
    return ChatFormat(tokenizer, context, reply_ends(folder))
