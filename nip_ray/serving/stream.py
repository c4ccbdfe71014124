"""Turn the tokens of a reply into text piece by piece.

Decisions that matter here: an incomplete character is held back, and so is a possible beginning of a stop text. So no
text is ever taken back, and all pieces together are the whole text.
"""

from collections.abc import Callable, Sequence

_PARTIAL = "�"


class TextStream:
    """The text of one reply so far. stopped: a stop text occurred; the text ends before it."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: tuple[str, ...] = ()) -> None:
        self.text, self.stopped = "", False
        self._decode, self._stop = decode, stop

    def advance(self, tokens: Sequence[int], final: bool = False) -> str:
        """The new text to pass on now that the reply has these tokens. final: none will follow."""
        whole = self._decode(tokens)
        found = [at for text in self._stop if (at := whole.find(text)) >= 0]
        if found:
            self.stopped, safe = True, whole[: min(found)]
        else:
            safe = whole
            if not final:  # the end may still change: incomplete characters, and beginnings of stop texts
                safe = whole.rstrip(_PARTIAL)
                held = [size for text in self._stop for size in range(1, len(text)) if safe.endswith(text[:size])]
                safe = safe[: len(safe) - max(held, default=0)]
        piece, self.text = safe[len(self.text) :], safe
        return piece
