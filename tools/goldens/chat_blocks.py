"""Templates whose {% generation %} blocks lie at odd places, for make_chat_templates.py."""

import json
import random

# A block at the beginning that is the first token, or ends within it; empty blocks; blocks side by side; blocks that begin or
# end inside a token; a block at the end; one inside another; one in a captured block, whose place transformers counts wrongly.
EDGES = [
    "{% generation %}I{% endgeneration %} am asked: {{ messages[0].content }}",
    "{% generation %}h{% endgeneration %}ello {{ messages[0].content }}",
    "{% generation %}{% endgeneration %}{% for m in messages %}{{ m.content }} {% endfor %}",
    "{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %} {% endfor %}",
    "{% for m in messages %}wor{% generation %}{% endgeneration %}ld {{ m.content }}{% endfor %}",
    "{{ messages[0].content }}{% generation %}{% endgeneration %}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% generation %}!{% endgeneration %}{% endfor %}",
    "{% for m in messages %}The capi{% generation %}tal of Fra{% endgeneration %}nce{% endfor %}",
    "{% for m in messages %}a {% generation %} {% endgeneration %} b{% endfor %}",
    "{% for m in messages %}\n\n{% generation %}\n{% endgeneration %}\n\n{% endfor %}",
    "{% for m in messages %}日{% generation %}本{% endgeneration %}語👋{% generation %}🏽{% endgeneration %}{% endfor %}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}",
    "x{% generation %}a{% generation %}b{% endgeneration %}c{% endgeneration %}d",
    "{% set kept %}{% generation %}kept{% endgeneration %}{% endset %}<{{ kept }}>{% generation %}new{% endgeneration %}",
]

PIECES = ["hello", " world", " ", "  ", "\n", "\n\n", "é", "日本", "👋🏽", "</s>", "<s>", "<|im_start|>", "a", "bc",
          "The capital of", " Paris", ".", "12", " 7", "", "'s", "\t", "\u00a0", "ab cd  ef", "▁", "\u2028x"]


def random_blocks(count, seed):
    """Templates with random blocks, each with a conversation."""
    rng = random.Random(seed)

    def text():
        return "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 3)))

    def printed():
        return "{{ " + json.dumps(text(), ensure_ascii=False) + " }}"

    def block(inside):
        dashes = [rng.choice(["", "-"]) for _ in range(4)]
        return "{%%%s generation %s%%}%s{%%%s endgeneration %s%%}" % (dashes[0], dashes[1], inside, dashes[2], dashes[3])

    def part(message, inner=False):
        kind = rng.random()
        if kind < 0.4:
            return printed()
        if kind < 0.75:
            nested = not inner and rng.random() < 0.2
            return block("".join(part(message, True) if nested else printed() for _ in range(rng.randint(0, 2))))
        if kind < 0.85:
            return "{{ %s.content }}" % message
        if kind < 0.9:
            return block("{{ %s.content }}" % message)
        if kind < 0.95:
            return "{{ say(%r) }}" % rng.choice(["x", " yes", ""])
        return "\n" + text()

    def template():
        body = "".join(part("m") for _ in range(rng.randint(1, 4)))
        source = "{% for m in messages %}" + body + "{% endfor %}"
        if rng.random() < 0.5:
            source = part("messages[0]") + source
        if rng.random() < 0.5:
            source += part("messages[-1]")
        if "say(" in source:
            said = rng.choice(["<{% generation %}{{ t }}{% endgeneration %}>", "{{ t }}"])
            source = "{% macro say(t) %}" + said + "{% endmacro %}" + source
        return source if " generation " in source else source + block("")

    for _ in range(count):
        messages = [{"role": rng.choice(["user", "assistant"]), "content": text()} for _ in range(rng.randint(1, 3))]
        yield template(), {"messages": messages}
