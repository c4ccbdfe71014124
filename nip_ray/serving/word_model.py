"""The model named `words`: a small untrained decoder with a token for each word of the scenario, to train from scratch.

Decisions that matter here:
- the scenario lists its words (`LanguageScenario.words`); text is split at spaces, and any other word is unknown;
- a chat costs one token per message in addition to its words: the mark of its role, or the end of a reply, which the
  model has to learn. A reply directly follows the last message, without a mark of its own: so small models learn to
  compare words much faster;
- it is a Llama in the Hugging Face form, like the default model, so all code that reads, serves or trains that one
  works with this one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_ray.seeding import generator, stable_seed
from nip_ray.serving.default_model import SPECIAL, chat_tokenizer, save_once, untrained_llama
from nip_ray.serving.extras import local_llm
from nip_ray.settings.providers import WordModelSettings

if TYPE_CHECKING:
    import torch

UNKNOWN = "<|unknown|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] + ' <|end|>' }}"
    "{% else %}{{ '<|' + message['role'] + '|> ' + message['content'] + ' ' }}{% endif %}"
    "{% endfor %}"
)


def word_tokenizer(words: Sequence[str], context: int) -> Any:
    """A transformers tokenizer with a token for each of `words`, after the special ones."""
    tokenizers = local_llm("tokenizers")
    numbers = {word: number for number, word in enumerate((*SPECIAL, UNKNOWN, *words))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token=UNKNOWN))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return chat_tokenizer(CHAT_TEMPLATE, context, tokenizer_object=made, unk_token=UNKNOWN)


def save_word_model(folder: Path, words: Sequence[str], settings: WordModelSettings, seed: int = 0) -> Path:
    """Write the model with these words, sizes and `seed` to `folder`, unless there is one; returns the folder.

    words: one that is listed twice has one token.
    """
    words = [*dict.fromkeys(words)]

    def make() -> tuple[Any, Any]:
        tokenizer = word_tokenizer(words, settings.context)
        model = untrained_llama(
            stable_seed(seed, "word model"),
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden_size,
            intermediate_size=4 * settings.hidden_size,
            num_hidden_layers=settings.num_layers,
            num_attention_heads=settings.num_heads,
            max_position_embeddings=settings.context,
            initializer_range=settings.hidden_size**-0.5,
        )
        if settings.similar_words:
            embedding_WD = model.get_input_embeddings().weight.data[-len(words) :]
            embedding_WD.copy_(spelled(words, settings.hidden_size, seed))
        return tokenizer, model

    return save_once(folder, make)


def spelled(words: Sequence[str], width: int, seed: int) -> "torch.Tensor":
    """Embeddings (W words, D width) of standard deviation 1/sqrt(D), each a sum of one vector for each character at its
    place in the word."""
    import torch

    drawn = generator(seed, "word model", "characters")
    vectors: dict[tuple[int, str], torch.Tensor] = {}
    for place, character in (one for word in words for one in enumerate(word)):
        if (place, character) not in vectors:
            vectors[place, character] = torch.randn(width, generator=drawn)
    rows = [sum(vectors[one] for one in enumerate(word)) / len(word) ** 0.5 for word in words]
    return torch.stack(rows) / width**0.5
