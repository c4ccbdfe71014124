"""Code validation: where the programs come from, how agents are addressed, and which model speaks for each."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from nip_ray.settings.options import FILE, FORBID_UNKNOWN, option

Difficulty = Literal["introductory", "interview", "competition"]


@dataclass(frozen=True)
class CodeDataSettings:
    """Problems with correct and wrong solutions: made here, or read from files or from the Hugging Face hub."""

    __pydantic_config__ = FORBID_UNKNOWN

    source: Literal["built_in", "apps", "buggy_apps"] = option(
        "built_in", "Made offline by this package, or APPS (correct solutions only) or buggy-APPS (columns of the published data sets)."
    )
    train: str | None = option(None, "A .jsonl or .parquet file of training items (none: made, or read from the hub).", meaning=FILE)
    test: str | None = option(None, "A .jsonl or .parquet file of held-out items (none: made, or read from the hub).", meaning=FILE)
    num_train: int = option(1000, "Training items to make, or the most to take.", ge=2)
    num_test: int = option(200, "Held-out items to make, or the most to take.", ge=2)
    difficulties: tuple[Difficulty, ...] = option(("introductory",), "Difficulties to take items of.", min_length=1)
    exclude_flagged: bool = option(True, "Leave out items that a moderation flag marks (buggy_apps).")
    solution_number: int = option(0, "Which of a problem's correct solutions to take (apps).", ge=0)


@dataclass(frozen=True)
class LanguageAgentSettings:
    """The language model that speaks for one agent. Agents of one group share a model, and what it learns."""

    __pydantic_config__ = FORBID_UNKNOWN

    provider: str = option("local", "Who answers for the model: a name in `providers`.")
    model: str = option(
        "default",
        "The provider's name of the base model (local: a folder, or `default` for the small one built here).",
        meaning={"path": "model"},
    )
    group: str | None = option(None, "Agents that name the same group share one model (none: a group of its own).")
    frozen: bool = option(False, "Never fine-tuned.")
    fine_tune_from_scratch: bool = option(True, "Each fine-tuning starts from the base model, not from the last fine-tuned one.")
    temperature: float | None = option(None, "Sampling temperature (none: the provider's default).", ge=0, le=2)
    top_p: float | None = option(None, "Nucleus of sampling (none: the provider's default).", gt=0, le=1)
    max_response_words: int = option(150, "Words that an answer may have, as the agent is told.", ge=1)
    max_tokens: int | None = option(None, "Tokens that an answer may have (none: one and a half times max_response_words).", ge=1)
    max_reasoning_tokens: int = option(0, "Tokens that reasoning may take besides, before the answer.", ge=0)
    reasoning_effort: str | None = option(None, "How much to reason, in the provider's words (openai; none: its default).")
    extra_body: str = option(
        "", 'Further members of each request\'s body, as JSON (openai), such as {"chat_template_kwargs": {"enable_thinking": false}}.'
    )
    chat_shape: Literal["auto", "openai", "alternating", "no_system"] = option(
        "auto",
        "Form of chats: separate messages with names, user and assistant in turn, or so and without a system role "
        "(auto: what a local model's template accepts; alternating for all others).",
    )
    max_invalid_replies: int = option(20, "Replies that cannot be used, in a turn, after which an empty message stands for it.", ge=1)

    @property
    def reply_tokens(self) -> int:
        """The most tokens of a reply, reasoning included."""
        answer = int(1.5 * self.max_response_words) if self.max_tokens is None else self.max_tokens
        return answer + self.max_reasoning_tokens

    @property
    def extra_members(self) -> dict[str, Any]:
        """What a request's body holds besides. Raises ValueError where `extra_body` is no JSON object."""
        extra = json.loads(self.extra_body or "{}")
        if not isinstance(extra, dict):
            raise ValueError("expected a JSON object")
        return {**({} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}), **extra}


@dataclass(frozen=True)
class CodeValidationSettings:
    """Is this program correct? Language models as verifier and provers."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["code_validation"] = option("code_validation", "Code validation.")
    data: CodeDataSettings = option(CodeDataSettings, "Where the items come from.")
    prompts: str | None = option(None, "A folder of prompt templates laid over those of the package (none: the package's).", meaning=FILE)
    prompt_version: int = option(1, "Version of the package's prompts.", ge=1)
    verdict_scale: Literal["accept_reject", "one_to_seven", "percent"] = option(
        "accept_reject", "How the verifier states its verdict: accept or reject, 1 to 7, or 0 to 100; rewards are linear in its confidence."
    )
    decision_format: Literal["text", "json"] = option(
        "text", "How the verifier replies: in lines of text, or in JSON that the provider holds to a schema (openai and local)."
    )
    randomize_prover_stance: bool = option(False, "Each item has its own stance for a single prover (and those of mnip), by a hash.")
    randomize_channel_order: bool = option(True, "The verifier reads two provers' channels in a seeded random order.")
    agents: dict[str, LanguageAgentSettings] = option(dict, "Settings by agent name; `_default` stands for all that are not named.")
