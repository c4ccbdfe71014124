"""The form of chats, against templates with the guards of current open-weight models; and reasoning in replies."""

from types import MappingProxyType, SimpleNamespace

import pytest
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nip_ray.play.dialogue import GO_ON, SHAPES, START, Chat, Shape, shape_chat, split_reasoning
from nip_ray.serving.chat_format import ChatFormat

BODY = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<assistant>{%"
    " endif %}"
)
TURNS = """{% set ns = namespace(turn='user') %}{% for m in messages %}{% if m['role'] != 'system' %}
{% if m['role'] != ns.turn %}{{ raise_exception('roles must alternate') }}{% endif %}
{% set ns.turn = 'assistant' if ns.turn == 'user' else 'user' %}{% endif %}{% endfor %}"""
NO_USER = """{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}
{{ raise_exception('No user query found in messages.') }}{% endif %}"""
SYSTEM_FIRST = """{% for m in messages %}{% if m['role'] == 'system' and not loop.first %}
{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"""
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
MOVES_SYSTEM = """{% set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}{%
for m in messages %}
{% if m['role'] != 'system' %}<{{ m['role'] }}>{{ system if loop.last and m['role'] == 'user' }}{{
m['content'] }}{% endif %}{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}"""
DROPS_SYSTEM = BODY.replace("in messages", "in messages if m['role'] != 'system'")
TEMPLATES: dict[str, tuple[str, Shape]] = {
    "no user": (NO_USER + BODY, "openai"),
    "system first": (SYSTEM_FIRST + NO_USER + BODY, "openai"),
    "alternate": (SYSTEM_FIRST + TURNS + BODY, "alternating"),
    "no system": (NO_SYSTEM + TURNS + BODY, "no_system"),
    "drops system": (DROPS_SYSTEM, "no_system"),
    "moves system": (MOVES_SYSTEM, "no_system"),
}
SYSTEM, NOTICE = {"role": "system", "content": "You judge."}, {"role": "system", "content": "Last turn."}
ONE, TWO = ({"role": "user", "name": f"Expert_{n}", "content": f"say {n}"} for n in (1, 2))
OWN = {"role": "assistant", "content": "Why?"}
CHATS: list[Chat] = [
    [SYSTEM],
    [SYSTEM, NOTICE],
    [SYSTEM, OWN],
    [SYSTEM, OWN, ONE, TWO, OWN, OWN, ONE, NOTICE],
    [SYSTEM, ONE],
    [ONE, OWN],
]


class Tokenizer(SimpleNamespace):
    """A template as transformers runs it, a token for each character."""

    name_or_path, all_special_tokens, eos_token_id, added_tokens_decoder = "trial", (), 0, MappingProxyType({})
    get_added_vocab = staticmethod(dict)

    def apply_chat_template(
        self, messages: Chat, add_generation_prompt: bool, tokenize: bool, **_: object
    ) -> str | list[int]:
        def refuse(message: str) -> None:
            raise TemplateError(message)

        template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(self.chat_template)
        text = template.render(messages=messages, add_generation_prompt=add_generation_prompt, raise_exception=refuse)
        return [ord(letter) for letter in text] if tokenize else text

    def decode(self, tokens: list[int], **_: object) -> str:
        return "".join(map(chr, tokens))


def text_of(chat: ChatFormat, messages: Chat) -> str:
    return "".join(map(chr, chat.prompt(messages)))


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_gets_what_it_accepts(name: str) -> None:
    template, needed = TEMPLATES[name]
    chat = ChatFormat(Tokenizer(chat_template=template), 1000)
    for messages in CHATS:
        prompt = text_of(chat, messages)
        assert all(message["content"] in prompt for message in messages)
        assert prompt.endswith("<assistant>")
        for end, message in enumerate(messages):
            if message["role"] == "assistant":  # what is learned begins as what is asked
                whole = "".join(map(chr, chat.completed(messages[: end + 1])))
                assert whole == text_of(chat, messages[:end]) + message["content"]
    assert all("Expert_1: say 1" in text_of(chat, messages) for messages in CHATS if ONE in messages)
    weaker = SHAPES[: SHAPES.index(needed)]
    assert all(not chat._shows(shape_chat(CHATS[3], shape)) for shape in weaker)


def test_shapes() -> None:
    chat = [SYSTEM, OWN, ONE, TWO, NOTICE, OWN]
    user = [{"role": "user", "content": text} for text in (START, "Last turn.", GO_ON)]
    assert shape_chat(chat) == [SYSTEM, user[0], OWN, ONE, TWO, user[1], OWN, user[2]]
    assert shape_chat(shape_chat(chat)) == shape_chat(chat)
    merged = {"role": "user", "content": "Expert_1: say 1\n\nExpert_2: say 2\n\nLast turn."}
    assert shape_chat(chat, "alternating") == [SYSTEM, user[0], OWN, merged, OWN, user[2]]
    assert shape_chat(chat, "no_system")[:2] == [{"role": "user", "content": f"You judge.\n\n{START}"}, OWN]


@pytest.mark.parametrize(
    ("reply", "reasoning", "rest"),
    [
        ("Decision: accept", "", "Decision: accept"),
        ("<think>\nDecision: reject?\n</think>\n\nDecision: accept", "Decision: reject?", "Decision: accept"),
        ("Let me see.</THINK>Why?", "Let me see.", "Why?"),
        ("<thought>a</thought>Why?<Reasoning>b</reasoning> So?", "a\nb", "Why? So?"),
        ("<think>never ends. Decision: accept", "never ends. Decision: accept", ""),
        ("if a <think: b>", "", "if a <think: b>"),
        ("<mm:think>plan</mm:think>So.", "plan", "So."),
        ("<seed:think>plan</seed:think>So.", "plan", "So."),
        ("<think >plan</think >So.", "plan", "So."),
        ("<reason>plan</reason>So.", "plan", "So."),
        ("<scratchpad>plan</scratchpad>So.", "plan", "So."),
        ("<|begin_of_thought|>plan<|end_of_thought|>\n<|begin_of_solution|>So.<|end_of_solution|>", "plan", "So."),
        (
            "<|channel|>analysis<|message|>plan<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>",
            "plan",
            "So.",
        ),
        ("<|channel|>analysis<|message|>plan<|channel|>final<|message|>So.", "plan", "So."),
        ("<|channel|>analysis<|message|>never ends", "never ends", ""),
        ("<|channel|>final<|message|>So.", "", "So."),
        ("analysisplan\nmoreassistantfinalSo.", "plan\nmore", "So."),
        ("analysisThe program never ends", "The program never ends", ""),
        ("assistantanalysis1. Decision: accept", "1. Decision: accept", ""),
        ("analysis of the case: final", "", "analysis of the case: final"),
        ("analysis: it loops", "", "analysis: it loops"),
        ("analysis_of = 3", "", "analysis_of = 3"),
        ("A reason is given.", "", "A reason is given."),
        ("[Reasoning] It loops.", "", "[Reasoning] It loops."),
    ],
)
def test_reasoning(reply: str, reasoning: str, rest: str) -> None:
    assert split_reasoning(reply) == (reasoning, rest)
