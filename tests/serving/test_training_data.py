"""Fine-tuning data: which tokens are learned, and what is refused."""

import json

import pytest

from nip_ray.errors import UserError
from nip_ray.serving.chat_format import ChatFormat
from nip_ray.serving.default_model import default_tokenizer
from nip_ray.serving.fine_tuning_job import Method
from nip_ray.serving.training_data import IGNORED, parse_examples, preference_rows, supervised_rows

ASK = {"role": "user", "content": "Is it right?"}


def said(content: str, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **more}


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode()


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(default_tokenizer(), 8192)


def learned(messages: list, chat: ChatFormat) -> str:
    row = supervised_rows(parse_examples(line(messages=messages), "supervised"), chat)[0]
    assert len(row["input_ids"]) == len(row["labels"])
    assert all(label in (IGNORED, token) for token, label in zip(row["input_ids"], row["labels"]))
    return chat.tokenizer.decode([label for label in row["labels"] if label != IGNORED])


def test_only_what_assistants_say_is_learned(chat: ChatFormat) -> None:
    talk = [{"role": "system", "content": "Judge."}, ASK, said("Why not?"), ASK, said("accept")]
    assert learned(talk, chat) == "Why not?<|end|>accept<|end|>"
    assert learned([*talk[:2], said("Why not?", weight=0), *talk[3:]], chat) == "accept<|end|>"
    assert learned([*talk, ASK], chat) == "Why not?<|end|>accept<|end|>"


def test_the_model_learns_in_the_form_in_which_it_is_asked(chat: ChatFormat) -> None:
    row = supervised_rows(parse_examples(line(messages=[ASK, said("accept")]), "supervised"), chat)[0]
    prompt = chat.prompt([ASK])
    assert row["input_ids"][: len(prompt)] == prompt
    assert set(row["labels"][: len(prompt)]) == {IGNORED}
    pair = line(input={"messages": [ASK]}, preferred_output=[said("accept")], non_preferred_output=[said("reject")])
    both = preference_rows(parse_examples(pair, "dpo"), chat)[0]
    assert both["prompt_ids"] == prompt
    assert chat.tokenizer.decode(both["chosen_ids"]) == "accept<|end|>"
    assert chat.tokenizer.decode(both["rejected_ids"]) == "reject<|end|>"


def test_templates_that_end_messages_by_more_than_one_token() -> None:
    """What follows the token that ends a reply is not learned; where the template has no such token it is added."""
    tokenizer = default_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("'<|end|>'", "'<|end|>\n\n'")
    assert learned([ASK, said("accept")], ChatFormat(tokenizer, 100)) == "accept<|end|>"
    pair = line(input={"messages": [ASK]}, preferred_output=[said("accept")], non_preferred_output=[said("reject")])
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    row = preference_rows(parse_examples(pair, "dpo"), ChatFormat(tokenizer, 100))[0]
    assert row["chosen_ids"][-1] == tokenizer.eos_token_id
    tokenizer.chat_template = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "<|assistant|>", "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    assert learned([ASK, said("Why?"), ASK, said("accept")], ChatFormat(tokenizer, 100)) == "Why?accept<|end|>"


def test_templates_that_begin_replies_with_reasoning() -> None:
    """What is learned follows the prompt as it is asked: the reasoning ends, and the reply, not inside it, is there."""
    tokenizer = default_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("'<|assistant|>' }}", "'<|assistant|><think>\n' }}")
    chat, talk = ChatFormat(tokenizer, 100), [ASK, said("Why?"), ASK]
    assert learned([*talk, said("accept")], chat) == "</think>\n\naccept<|end|>"
    row = supervised_rows(parse_examples(line(messages=[*talk, said("accept")]), "supervised"), chat)[0]
    pair = line(input={"messages": talk}, preferred_output=[said("accept")], non_preferred_output=[said("reject")])
    both = preference_rows(parse_examples(pair, "dpo"), chat)[0]
    assert both["prompt_ids"] == chat.prompt(talk)
    assert [*both["prompt_ids"], *both["chosen_ids"]] == row["input_ids"]


def test_long_chats_keep_their_end(chat: ChatFormat) -> None:
    short = ChatFormat(chat.tokenizer, 64)
    talk, brief = (
        [{"role": "user", "content": "word " * 300}, said("accept")],
        [{"role": "user", "content": "?"}, said("accept")],
    )
    row = supervised_rows(parse_examples(line(messages=talk) + b"\n" + line(messages=brief), "supervised"), short)[0]
    assert len(row["input_ids"]) == len(row["labels"]) == 64
    assert chat.tokenizer.decode([label for label in row["labels"] if label != IGNORED]) == "accept<|end|>"
    pairs = [
        line(input={"messages": chat[:1]}, preferred_output=[said("accept")], non_preferred_output=[said(other)])
        for chat, other in ((talk, "no " * 200), (brief, "no"))
    ]
    both = preference_rows(parse_examples(b"\n".join(pairs), "dpo"), short)[0]
    assert len(both["prompt_ids"]) + len(both["rejected_ids"]) == 64


def test_examples_that_lose_their_middle_are_told_of(chat: ChatFormat, capsys: pytest.CaptureFixture[str]) -> None:
    short = ChatFormat(chat.tokenizer, 64)
    long, brief = (line(messages=[{"role": "user", "content": text}, said("accept")]) for text in ("word " * 300, "?"))
    supervised_rows(parse_examples(b"\n".join([long, brief]), "supervised"), short)
    assert "1 of 2 examples are longer than the context of 64 tokens" in capsys.readouterr().err


def test_pairs_that_are_equal_once_cut_are_left_out(chat: ChatFormat, capsys: pytest.CaptureFixture[str]) -> None:
    short = ChatFormat(chat.tokenizer, 64)

    def pair(preferred: str, rejected: str) -> bytes:
        talk = [{"role": "user", "content": "?"}]
        return line(input={"messages": talk}, preferred_output=[said(preferred)], non_preferred_output=[said(rejected)])

    cut, equal, kept = (
        pair("word " * 60 + "accept", "word " * 60 + "reject"),
        pair("no", "no"),
        pair("accept", "reject"),
    )
    assert len(preference_rows(parse_examples(b"\n".join([cut, equal, kept]), "dpo"), short)) == 1
    assert "2 of 3 pairs are left out" in capsys.readouterr().err
    with pytest.raises(UserError, match="both outputs of every pair are the same"):
        preference_rows(parse_examples(b"\n".join([cut, equal]), "dpo"), short)


@pytest.mark.parametrize(
    ("data", "method", "message"),
    [
        (b"", "supervised", "no example"),
        (b"\n{", "supervised", "line 2"),
        (line(message=[]), "supervised", "'messages' is missing"),
        (line(messages=[ASK]), "supervised", "by an assistant"),
        (line(messages=[ASK, said("x", weight=0)]), "supervised", "by an assistant"),
        (line(messages=[{"role": "judge", "content": "x"}]), "supervised", "'judge'"),
        (line(messages=[{"role": "user", "content": 3}, said("x")]), "supervised", "are text"),
        (line(messages=[ASK, said("x")]), "dpo", "'input' is missing"),
        (line(input={"messages": [ASK]}, preferred_output=[said("x")], non_preferred_output=[]), "dpo", "one message"),
        (b"[" * 100_000, "supervised", "line 1"),
        (line(messages=[ASK, said("\ud83d")]), "supervised", r"line 1 holds \\ud83d, half of a surrogate pair"),
    ],
)
def test_wrong_data_is_refused_with_its_line(data: bytes, method: Method, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_examples(data, method)
