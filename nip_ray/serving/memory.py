"""The memory of a learning step, to refuse one that cannot fit: on a CPU the system would kill the process silently."""

from typing import Any

import psutil

from nip_ray.errors import UserError


def kept_bytes(config: Any, rank: int, item_size: int) -> int:
    """Bytes that a forward pass keeps per token for the backward pass, by the formula of docs/policy-gradient.md for
    weights of two bytes. config: of a transformers model. rank: of its adapters, 0 for none. item_size: bytes of a
    weight."""
    text = config.get_text_config()
    heads, width = getattr(text, "num_attention_heads", None) or 1, text.hidden_size
    one = getattr(text, "head_dim", None) or width // heads
    queries, keys = heads * one, (getattr(text, "num_key_value_heads", None) or heads) * one
    inner = getattr(text, "intermediate_size", None) or 4 * width
    return text.num_hidden_layers * (28 * width + 12 * queries + 8 * keys + 10 * inner + 28 * rank) * item_size // 2


def refuse_pass(tokens: int, bytes_per_token: int) -> None:
    """Raise UserError for a forward and backward pass that needs more than this machine has."""
    need, total = tokens * bytes_per_token, psutil.virtual_memory().total
    if need > total:
        raise UserError(
            f"algorithm.micro_batch_tokens: {tokens} tokens in one pass need about {need / 1e9:.0f} GB, and this"
            f" machine has {total / 1e9:.0f} GB; lower it"
        )
