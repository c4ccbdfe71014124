"""What is said where the extra is not installed."""

import importlib.util
import sys

import pytest

from nip_ray.errors import UserError
from nip_ray.serving.extras import check_installed, local_llm


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    with monkeypatch.context() as blocked:
        blocked.setitem(sys.modules, "trl", None)
        with pytest.raises(UserError, match=r"nip_ray\[local-llm\]"):
            local_llm("trl")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else find(name))
    with pytest.raises(UserError, match=r"there is no peft.*nip_ray\[local-llm\]"):
        check_installed()
