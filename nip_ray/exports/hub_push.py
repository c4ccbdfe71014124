"""Push an export to the Hugging Face Hub, or a server with its protocol ($HF_ENDPOINT): private, and only with a token.

Models go to OWNER/NAME, transcripts to the data set OWNER/NAME-transcripts. An existing repository gets one more
commit.
"""

import os
import re
import sys
from pathlib import Path

from nip_ray.errors import UserError, require
from nip_ray.secrets import Redactor, secret

TOKEN = "HF_TOKEN"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_KINDS = {"model": "", "dataset": "-transcripts"}


def check_push(name: str) -> None:
    """Raise UserError if no push is possible: an invalid name, no token, no library, or offline mode."""
    if not _NAME.fullmatch(name) or ".." in name or "--" in name or name.endswith((".", "-", ".git")):
        raise UserError(f"--push {name}: expected OWNER/NAME, of letters, digits, - _ .")
    secret(TOKEN, "the Hugging Face Hub (a token with write access, of https://huggingface.co/settings/tokens)")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        raise UserError("--push: HF_HUB_OFFLINE is set, unset it")
    require("huggingface_hub", "hf")


def push_export(folder: Path, name: str) -> list[str]:
    """Upload the folder of `export_hf` to the server; returns the addresses. Raises UserError if it refuses, or is
    unreachable."""
    check_push(name)
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=secret(TOKEN, "the Hugging Face Hub"))
    made = []
    for kind, suffix in _KINDS.items():
        if not (folder / kind).is_dir():
            continue
        where = f"{name}{suffix}"
        try:
            address = api.create_repo(where, repo_type=kind, private=True, exist_ok=True)
            api.upload_folder(
                repo_id=where, folder_path=folder / kind, repo_type=kind, commit_message="Exported by nip_ray"
            )
        except Exception as error:  # of the library and of its HTTP client, a dozen kinds
            if isinstance(error, KeyboardInterrupt | MemoryError):
                raise
            told = " ".join(str(error).split())[:300] or type(error).__name__
            raise UserError(
                Redactor([TOKEN])(
                    f"--push {name}: {where} ({kind}) was not written ({told}); the export is in {folder}"
                )
            ) from None
        made.append(str(address))
    return made
