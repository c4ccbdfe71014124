"""A canary key goes through everything that can fail; nothing that is written or said may hold it."""

import asyncio
import io
import logging
import pickle
import traceback
from pathlib import Path

import pytest

from nip_ray.config.load import apply_overrides
from nip_ray.config.plugins import import_plugins
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.errors import TrainingError, UserError
from nip_ray.progress import say
from nip_ray.secrets import HIDDEN, Redactor, secret
from nip_ray.settings.providers import OpenAIProvider
from nip_ray.text.costs.budget import Budget, Limiter
from nip_ray.text.dialogues.records import RecordedChat
from nip_ray.text.providers.interface import ChatRequest
from nip_ray.text.providers.openai import OpenAIChat
from tests.text.chat_server import API_KEY, ChatServer

FAULTS = ("ok", "400", "401", "403", "500", "429", "quota", "policy", "drop_before", "malformed", "late")


async def call_under_every_fault(url: str, folder: Path) -> list[BaseException]:
    """What was raised. The server repeats a wrong key in its message, as real ones do."""
    provider = OpenAIProvider(base_url=url, api_key_variable="CANARY", max_retries=1, timeout_s=0.5)
    chat = OpenAIChat(provider, Limiter(), Budget())
    recorded = RecordedChat(chat, folder, 0)
    calls = [
        recorded.complete(ChatRequest(fault, "gpt-4o-mini", [{"role": "user", "content": "hello"}], 9))
        for fault in FAULTS
    ]
    raised = [
        outcome
        for outcome in await asyncio.gather(*calls, return_exceptions=True)
        if isinstance(outcome, BaseException)
    ]
    for name in ("gpt-4o-mini", "no-such-model"):
        try:
            await chat.check_models([name])
        except Exception as error:
            raised.append(error)
    await recorded.close()
    return raised


@pytest.mark.filterwarnings("ignore:provider.prices has no price")
@pytest.mark.parametrize("canary", [API_KEY, "sk-wrong-but-secret-0123456789"])
def test_the_canary_is_nowhere(
    canary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CANARY", canary)
    log, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(log), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    redactor = Redactor(["CANARY"])
    redactor.install()
    try:
        with ChatServer(late_s=2.0, plan=lambda attempt: attempt.key) as server:
            raised = asyncio.run(call_under_every_fault(server.url, tmp_path))
            assert server.authorizations[f"Bearer {canary}"] > 0
            logging.getLogger("test").debug("sent with %s", canary)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        for there in [*root.handlers, *([logging.lastResort] if logging.lastResort else [])]:
            there.removeFilter(redactor)
    texts = [log.getvalue(), *capfd.readouterr()]
    assert "HTTP" in texts[0]
    assert f"sent with {HIDDEN}" in texts[0]
    texts += [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(raised) >= 6
    for error in raised:
        texts += [str(error), repr(error), "".join(traceback.format_exception(error)), repr(pickle.dumps(error))]
        assert error.__context__ is None  # no exception of the SDK, with its request, hangs on ours
        assert error.__cause__ is None
    assert not [text for text in texts if canary in text]


def test_what_counts_as_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "key/with+odd=signs")
    monkeypatch.setenv("MY_TOKEN", "short")
    monkeypatch.setenv("ODDLY_NAMED", "another-secret-value")
    monkeypatch.setenv("KEYBOARD", "qwertyuiop")
    text = "key/with+odd=signs key%2Fwith%2Bodd%3Dsigns short another-secret-value qwertyuiop"
    assert Redactor()(text) == f"{HIDDEN} {HIDDEN} short another-secret-value qwertyuiop"
    assert Redactor(["ODDLY_NAMED"])(text) == f"{HIDDEN} {HIDDEN} short {HIDDEN} qwertyuiop"


def test_a_key_that_is_no_text_is_hidden_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abcdefg\udce9")
    assert Redactor()("x abcdefg\udce9 abcdefg%E9") == f"x {HIDDEN} {HIDDEN}"


def test_a_secret_within_another_is_hidden_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abcdefgh")
    monkeypatch.setenv("B_TOKEN", "abcdefgh-ijklmnop")
    assert Redactor()("x abcdefgh-ijklmnop y abcdefgh z") == f"x {HIDDEN} y {HIDDEN} z"


def test_records_are_cleaned_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", API_KEY)
    redactor, log = Redactor(["CANARY"]), io.StringIO()
    handler = logging.StreamHandler(log)
    handler.addFilter(redactor)
    logger = logging.getLogger("nip_ray.test.records")
    logger.addHandler(handler)
    error = RuntimeError("outer")
    error.__cause__ = ValueError(f"inner {API_KEY}")
    logger.error("it failed: %s", {"header": API_KEY}, exc_info=error, stack_info=True)
    assert API_KEY not in redactor.traceback(error)
    assert f"inner {HIDDEN}" in redactor.traceback(error)
    logger.removeHandler(handler)
    assert API_KEY not in log.getvalue()
    assert log.getvalue().count(HIDDEN) == 2
    assert "RuntimeError: outer" in log.getvalue()


def test_errors_that_quote_others_hide_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plugin, YAML, `--set`; and a variable of any name once it was read as a key."""
    key = "sk-plugin-4f81c2d9"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    (plugin := tmp_path / "own.py").write_text(
        "import os\nraise RuntimeError('boom ' + os.environ['OPENAI_API_KEY'])\n"
    )
    with pytest.raises(UserError) as caught:
        import_plugins([str(plugin)])
    assert f"RuntimeError: boom {HIDDEN}" in str(caught.value)
    for made in (lambda: parse_yaml(f"a: !{key} x", "c.yaml"), lambda: apply_overrides({}, [f"{key}"])):
        with pytest.raises(UserError) as caught:
            made()
        assert key not in str(caught.value)
        assert HIDDEN in str(caught.value)
    assert str(TrainingError(f"lost {key}")) == f"lost {HIDDEN}"
    say(f"warning: {key}")
    assert capsys.readouterr().err == f"warning: {HIDDEN}\n"
    monkeypatch.setenv("MINE", "a-plain-name-9d2")
    assert str(UserError("a-plain-name-9d2")) == "a-plain-name-9d2"
    secret("MINE", "a service")
    assert str(UserError("a-plain-name-9d2")) == HIDDEN
