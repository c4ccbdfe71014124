"""Settings of providers of language models: services, prices and budgets."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from nip_ray.settings.options import FORBID_UNKNOWN, OF_THE_WEIGHTS, option


def address_fault(address: str) -> str | None:
    """The fault of a service's address, with what would be right; None if there is none."""
    text = address.strip()
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return "is no address, write one such as https://host:8000/v1"
    if parts.scheme not in ("http", "https") or not host:
        return "has no http:// or https:// and a host behind it, write an address such as https://host:8000/v1"
    if not text.isprintable() or " " in text:
        return "holds a blank or a character that cannot be sent, leave it out"
    for ending in ("/chat/completions", "/completions", "/responses", "/models"):
        if parts.path.rstrip("/").endswith(ending):
            return f"ends in {ending}, which is added to it, leave that out"
    return None


@dataclass(frozen=True)
class PriceSettings:
    """Prices of one model in US dollars per million tokens."""

    __pydantic_config__ = FORBID_UNKNOWN

    input: float = option(0.0, "Tokens of prompts.", ge=0)
    output: float = option(0.0, "Tokens of replies.", ge=0)
    training: float = option(0.0, "Tokens trained on, once for each epoch.", ge=0)
    cached_input: float | None = option(None, "Prompt tokens reported as cached (none: as `input`).", ge=0)


@dataclass(frozen=True)
class ProviderSettings:
    """Base of the settings of every provider. Class attributes state what a provider can do.

    Options with these names mean the same in every provider that has them: `base_url`, `api_key_variable`, `prices`,
    `requests_per_minute`, `tokens_per_minute` (see `OpenAIProvider`). The client of your own provider can ignore the
    last three.
    """

    __pydantic_config__ = FORBID_UNKNOWN

    has_model: ClassVar[bool] = True
    """False if replies are random and no model is queried."""
    hosted: ClassVar[bool] = True
    """A remote service, whose replies may cost money; unusable ones end a stage early."""
    local_models: ClassVar[bool] = False
    """Models are folders on this cluster, or `default`."""
    fine_tunes: ClassVar[bool] = False
    """It has a `FineTuneBackend`."""
    tuning_keys: ClassVar[frozenset[str]] = frozenset({"learning_rate"})
    """Those of `learning_rate` (else a multiplier on the provider's own) and `nll_coefficient` that its fine-tuning
    jobs use."""
    gives_gradients: ClassVar[bool] = False
    """Its models can learn from a loss on their tokens, step by step."""
    sees_whole_distribution: ClassVar[bool] = True
    """Under such a loss: it computes entropies, and log-probabilities at any temperature."""
    takes_extra_body: ClassVar[bool] = False
    """`ChatRequest.extra` is supported."""
    holds_schemas: ClassVar[bool] = False
    """`ChatRequest.schema` is enforced."""
    dpo_passes: ClassVar[int] = 1
    """Maximum number of times that a token of a fine-tuning file is billed in an epoch of DPO."""
    base_url_variable: ClassVar[str | None] = None
    """Environment variable with the address, if `base_url` is not set."""
    default_base_url: ClassVar[str | None] = None
    """The address if neither is set."""

    @property
    def can_fine_tune(self) -> bool:
        """True if this provider, with these options, fine-tunes."""
        return self.fine_tunes

    @property
    def address(self) -> str | None:
        """The service's address."""
        named: Any = getattr(self, "base_url", None)
        return named or os.environ.get(self.base_url_variable or "") or self.default_base_url

    @property
    def limits(self) -> tuple[float | None, float | None] | None:
        """Maximum calls and tokens per minute; None for a kind without such options."""
        keys = ("requests_per_minute", "tokens_per_minute")
        return (
            (getattr(self, keys[0], None), getattr(self, keys[1], None))
            if any(hasattr(self, key) for key in keys)
            else None
        )

    @property
    def actors(self) -> list[dict[str, float]]:
        """CPUs and GPUs of each Ray actor that it starts."""
        return []

    def passes(self, ppo: bool, kl: bool) -> int:
        """Billed passes of a token through the model in a step of a loss on tokens. ppo: the loss is PPO's. kl: with a
        start model."""
        return 1

    @property
    def training_workers(self) -> int:
        """Additional processes of fine-tuning, of one CPU each. Trials of sweeps have no room for them."""
        return 0

    def faults(self, batch_sizes: set[int]) -> Iterator[str]:
        """Faults of its options together, each "key: what, what would be right". batch_sizes: of fine-tuning."""
        yield from ()


@dataclass(frozen=True)
class OpenAIProvider(ProviderSettings):
    """Any service that speaks the OpenAI protocol: chat completions, and where it has them files and fine-tuning
    jobs."""

    fine_tunes = True
    tuning_keys = frozenset()
    takes_extra_body = True
    holds_schemas = True
    base_url_variable = "OPENAI_BASE_URL"
    default_base_url = "https://api.openai.com/v1"

    name: Literal["openai"] = option("openai", "The OpenAI protocol over HTTP.")
    base_url: str | None = option(None, "Address of the service (none: $OPENAI_BASE_URL, else OpenAI's).")
    api_key_variable: str = option(
        "OPENAI_API_KEY", "The environment variable that holds the key.", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"
    )
    requests_per_minute: float | None = option(None, "Most calls in a minute over all workers (none: no limit).", gt=0)
    tokens_per_minute: float | None = option(None, "Most tokens in a minute over all workers (none: no limit).", gt=0)
    timeout_s: float = option(120.0, "Seconds after which a call counts as lost.", gt=0)
    max_retries: int = option(8, "Further attempts after a provider's failure (429, 5xx, lost connection).", ge=0)
    fine_tuning: bool = option(True, "The service has files and fine-tuning jobs.")
    poll_interval_s: float = option(30.0, "Seconds between two looks at a fine-tuning job.", gt=0)
    doubt_s: float = option(
        30.0,
        "Seconds to search for a job whose creation was not answered, before another request.",
        ge=0,
    )
    prices: dict[str, PriceSettings] = option(
        dict, "Model, or the longest matching start of its name -> prices; `_default` for others."
    )

    @property
    def can_fine_tune(self) -> bool:
        """See `ProviderSettings`."""
        return self.fine_tuning

    def faults(self, batch_sizes: set[int]) -> Iterator[str]:
        """The address is one."""
        if self.base_url and (fault := address_fault(self.base_url)):
            yield f"base_url: {fault}"


@dataclass(frozen=True)
class WordModelSettings:
    """The model `words`: an untrained decoder over the words of the scenario."""

    __pydantic_config__ = FORBID_UNKNOWN

    hidden_size: int = option(64, "Width.", ge=8)
    num_layers: int = option(2, "Layers.", ge=1)
    num_heads: int = option(4, "Attention heads; they divide the width into even parts.", ge=1)
    context: int = option(256, "The most tokens of a prompt and its reply together.", ge=16)
    similar_words: bool = option(
        False, "Start words near each other that have the same characters in the same places, as d1:3 and d2:3."
    )


@dataclass(frozen=True)
class LocalProvider(ProviderSettings):
    """A Hugging Face causal language model on this cluster: Ray actors that answer and that fine-tune."""

    hosted = False
    local_models = True
    fine_tunes = True
    tuning_keys = frozenset({"learning_rate", "nll_coefficient"})
    gives_gradients = True
    holds_schemas = True

    name: Literal["local"] = option("local", "A model on this cluster.")
    num_gpus: float = option(0, "GPUs, or a share, of each of the two actors.", ge=0)
    num_cpus: float = option(1, "CPUs that Ray reserves for each of the two actors.", ge=0)
    max_batch_size: int = option(32, "Replies generated at once.", ge=1)
    method: Literal["lora", "full"] = option(
        "lora", "Fine-tuned weights: low-rank adapters, or all.", meaning=OF_THE_WEIGHTS
    )
    lora_rank: int = option(16, "Rank of the adapters (lora).", meaning=OF_THE_WEIGHTS, ge=1)
    gradient_accumulation_steps: int = option(1, "Sequential parts of a step's examples: more saves memory.", ge=1)
    max_length: int | None = option(
        None, "Tokens of an example; longer ones lose their middle (none: the model's context).", ge=16
    )
    gradient_checkpointing: bool | None = option(
        None, "Compute activations again instead of keeping them (none: on a GPU)."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "Weights in fine-tuning (auto: float32; bfloat16 for lora's frozen base on a GPU)."
    )
    optimizer: Literal["adamw", "adamw_8bit"] = option(
        "adamw", "AdamW, or AdamW with 8-bit moments (CUDA, extra quantized)."
    )
    quantize_base: bool = option(False, "Hold the frozen base in 4 bits (lora; CUDA, extra quantized).")
    save_merged: bool = option(False, "Save merged models, not adapters alone (lora; needed by a served vLLM).")
    num_training_workers: int = option(1, "Workers of a fine-tuning; more than one through Ray Train.", ge=1)
    num_threads: int | None = option(None, "Torch threads of each actor (none: as many as its CPUs).", ge=1)
    default_model_seed: int = option(
        0, "Seed of the weights of the models called `default` and `words`.", meaning=OF_THE_WEIGHTS, ge=0
    )
    word_model: WordModelSettings = option(WordModelSettings, "The model called `words`.", meaning=OF_THE_WEIGHTS)

    @property
    def threads(self) -> int:
        """Torch threads of each process that computes."""
        return self.num_threads or max(1, int(self.num_cpus))

    @property
    def actors(self) -> list[dict[str, float]]:
        """One that answers, one that fine-tunes."""
        return [{"CPU": self.num_cpus, "GPU": self.num_gpus}] * 2

    @property
    def training_workers(self) -> int:
        """See `ProviderSettings`."""
        return self.num_training_workers if self.num_training_workers > 1 else 0

    def faults(self, batch_sizes: set[int]) -> Iterator[str]:
        """Steps that cannot be divided between workers, and options of adapters under `full`."""
        parts = self.num_training_workers * self.gradient_accumulation_steps
        for size in batch_sizes:
            if size % parts:
                key = "gradient_accumulation_steps" if self.gradient_accumulation_steps > 1 else "num_training_workers"
                yield f"{key}: {size} examples of a step cannot be shared out over {parts} parts, change either"
        for key, unset in (("quantize_base", False), ("save_merged", False), ("lora_rank", 16)):
            if self.method == "full" and getattr(self, key) != unset:
                yield f"{key}: for method lora only, leave it out"
        width, heads = self.word_model.hidden_size, self.word_model.num_heads
        if width % (2 * heads):
            yield (
                f"word_model.num_heads: got {heads}, which does not divide hidden_size {width} into even parts, change"
                " either"
            )


@dataclass(frozen=True)
class TrainingServiceProvider(ProviderSettings):
    """A service with the low-level training protocol: forward and backward, optimiser step, sample, save."""

    fine_tunes = True
    tuning_keys = frozenset({"learning_rate", "nll_coefficient"})
    gives_gradients = True
    sees_whole_distribution = False
    dpo_passes = 6  # three passes, and the prompt with each of two replies
    base_url_variable = "TINKER_BASE_URL"

    name: Literal["training_service"] = option("training_service", "The low-level training protocol.")
    base_url: str | None = option(None, "Address of the service (none: $TINKER_BASE_URL, else the client's own).")
    api_key_variable: str = option(
        "TINKER_API_KEY", "The environment variable that holds the key.", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"
    )
    lora_rank: int = option(16, "Rank of the adapters.", meaning=OF_THE_WEIGHTS, ge=1)
    max_length: int | None = option(
        None,
        "Tokens of prompt and reply under policy_gradient (none: the service's limit).",
        ge=16,
    )
    max_retries: int = option(8, "Further attempts after a provider's failure.", ge=0)
    prices: dict[str, PriceSettings] = option(
        dict, "Model, or the longest matching start of its name -> prices; `_default` for others."
    )

    def passes(self, ppo: bool, kl: bool) -> int:
        """See `ProviderSettings`: a custom loss takes one more forward pass, and a start model another."""
        return 1 + (not ppo) + kl

    def faults(self, batch_sizes: set[int]) -> Iterator[str]:
        """The address is one."""
        if self.base_url and (fault := address_fault(self.base_url)):
            yield f"base_url: {fault}"


@dataclass(frozen=True)
class DummyProvider(ProviderSettings):
    """Seeded random replies of the right form, and fine-tuning that changes nothing: for trying out a config without a
    model."""

    has_model = False
    hosted = False
    fine_tunes = True
    tuning_keys = frozenset({"learning_rate", "nll_coefficient"})
    holds_schemas = True

    name: Literal["dummy"] = option("dummy", "No model at all.")


@dataclass(frozen=True)
class BudgetSettings:
    """A hard limit on spending. What a call or a job can cost at most is set aside before it is made."""

    __pydantic_config__ = FORBID_UNKNOWN

    usd: float | None = option(None, "US dollars of the whole run (none: no limit).", gt=0)
    tokens: int | None = option(None, "Tokens of the whole run: prompts, replies, training (none: no limit).", ge=1)
