"""Code validation: where the programs come from, and how agents are addressed."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.options import FILE, FORBID_UNKNOWN, option

Difficulty = Literal["introductory", "interview", "competition"]


@dataclass(frozen=True)
class CodeDataSettings:
    """Problems with correct and wrong solutions: built-in ones, or read from files or from the Hugging Face hub."""

    __pydantic_config__ = FORBID_UNKNOWN

    source: Literal["built_in", "apps", "buggy_apps"] = option(
        "built_in",
        "Programs of this package, APPS (correct solutions only), or buggy-APPS.",
    )
    train: str | None = option(None, "A .jsonl or .parquet file of training items (none: from source).", meaning=FILE)
    test: str | None = option(None, "A .jsonl or .parquet file of held-out items (none: from source).", meaning=FILE)
    num_train: int = option(1000, "Training items; of files and the hub the most to take.", ge=2)
    num_test: int = option(200, "Held-out items, in the same way.", ge=2)
    difficulties: tuple[Difficulty, ...] = option(("introductory",), "Difficulties to take items of.", min_length=1)
    exclude_flagged: bool = option(True, "Leave out items that a moderation flag marks (buggy_apps).")
    solution_number: int = option(0, "Index of the correct solution to take (apps).", ge=0)

    def faults(self) -> Iterator[str]:
        """Files that are missing, of another kind, or the same for both splits."""
        for split in ("train", "test"):
            path = getattr(self, split)
            if path is None:
                continue
            if not Path(path).is_file():
                hint = (
                    "put it there, or in a new run leave the key out for built-in items or write them with `nip-ray"
                    " data code-validation`"
                )
                yield f"{split}: {path}: no such file, {hint}"
            elif Path(path).suffix not in (".jsonl", ".parquet"):
                yield f"{split}: {path}: expected a .jsonl or .parquet file"
        if self.train is not None and self.test is not None and Path(self.train).resolve() == Path(self.test).resolve():
            yield f"test: {self.test}: this is the training file, hold other items out"
        if len(set(self.difficulties)) != len(self.difficulties):
            yield f"difficulties: got {list(self.difficulties)}, expected each once"


@dataclass(frozen=True)
class CodeValidationSettings:
    """Is this program correct? Language models as verifier and provers."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["code_validation"] = option("code_validation", "Code validation.")
    data: CodeDataSettings = option(CodeDataSettings, "Source of the items.")
    prompts: str | None = option(
        None, "Folder of prompt templates that replace the package's (none: the package's).", meaning=FILE
    )
    prompt_version: int = option(2, "Version of the package's prompts.", ge=1)
    verdict_scale: Literal["accept_reject", "one_to_seven", "percent"] = option(
        "accept_reject",
        "Verdict: accept or reject, 1 to 7, or 0 to 100 (protocol.verifier_scoring).",
    )
    decision_format: Literal["text", "json"] = option(
        "text",
        "Verifier's replies: lines of text, or schema-enforced JSON (openai, local).",
    )
    randomize_prover_stance: bool = option(
        False, "Derive the stance of mnip's or a single prover from a hash of the item."
    )
    randomize_channel_order: bool = option(True, "The verifier reads two provers' channels in a seeded random order.")
    agents: dict[str, LanguageAgentSettings] = option(dict, "Settings by agent; `_default` for agents not named.")

    def faults(self) -> Iterator[str]:
        """A folder of prompts that is not there."""
        if self.prompts is not None and not Path(self.prompts).is_dir():
            yield f"prompts: {self.prompts}: no such folder, name one with prompt templates"
