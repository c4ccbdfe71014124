"""Characters that a reader does not see, or that a page or terminal would obey, made visible."""

import re

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]")


def visible(text: str) -> str:
    """`text` with control characters and those that change the writing direction spelled out, as in ``<U+202E>``."""
    return _UNSEEN.sub(lambda found: f"<U+{ord(found[0]):04X}>", text)
