"""Keep the values of secret environment variables out of logs, files and messages.

Decisions that matter here:
- a secret is the value of a variable with a telling name, or one that was registered or read as a key; values are
  looked up when needed, so that a variable set later counts too. Values shorter than 8 characters are not hidden: they
  would blot out ordinary words;
- the filter formats a record before it cleans it, tracebacks included, so that nothing slips through an argument or a
  cause.
"""

import logging
import os
import re
import traceback
from collections.abc import Iterable
from urllib.parse import quote

HIDDEN = "[secret]"
MIN_LENGTH = 8

_SECRET_NAME = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:$|_)", re.IGNORECASE)
_plain = logging.Formatter()
_read: set[str] = set()


def is_key(variable: str) -> None:
    """Treat the value of this environment variable as a secret from now on."""
    _read.add(variable)


class Redactor(logging.Filter):
    """Replaces secrets by `HIDDEN`: a function of texts, and a filter of log records. variables: more secret ones."""

    def __init__(self, variables: Iterable[str] = ()) -> None:
        super().__init__()
        self._named = set(variables)

    def secrets(self) -> list[str]:
        """The values to hide, plain and as in addresses; the longest first, so that none is replaced in part."""
        named = self._named | _read
        values = [value.strip() for name, value in os.environ.items() if name in named or _SECRET_NAME.search(name)]
        forms = {
            form
            for value in values
            if len(value) >= MIN_LENGTH
            for form in (value, quote(value, safe="", errors="surrogateescape"))
        }
        return sorted(forms, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """`text` without secrets."""
        for secret in self.secrets():
            text = text.replace(secret, HIDDEN)
        return text

    def traceback(self, error: BaseException) -> str:
        """The traceback of `error` and of all its causes, without secrets."""
        return self("".join(traceback.format_exception(error)))

    def filter(self, record: logging.LogRecord) -> bool:
        """Clean a record in place; passes every one."""
        record.msg, record.args = self(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = _plain.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text, record.exc_info = self(record.exc_text), None
        if record.stack_info:
            record.stack_info = self(record.stack_info)
        return True

    def install(self) -> None:
        """Filter all present handlers of every logger. Call it again after adding handlers; it is never added twice."""
        loggers = [
            logging.getLogger(),
            *(entry for entry in logging.root.manager.loggerDict.values() if isinstance(entry, logging.Logger)),
        ]
        handlers = {handler for logger in loggers for handler in logger.handlers}
        for handler in [*handlers, *([logging.lastResort] if logging.lastResort else [])]:
            if not any(isinstance(there, Redactor) and there._named >= self._named for there in handler.filters):
                handler.addFilter(self)
