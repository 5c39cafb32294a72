"""Makes tests/goldens/chat: what transformers' apply_chat_template prints.

    ~/goldens-env/bin/python tools/goldens/make_chat_templates.py

families.json    the templates of tests/goldens/chat on the conversations of chat_conversations.py
torture.json     the snippets of chat_snippets.py on one input
masks.json       ids and masks of assistant tokens with tokenizers of tests/goldens/tokenizer, for templates of chat_blocks.py
                 too; wants transformers 5.24.0, which changed these masks

A text comes with the ranges of bytes of its generation blocks; where transformers raises, the file holds the exception.
The clock stands at 2023-11-14 22:13:20 UTC.
"""

import datetime
import json
import os
import pathlib
import re
import sys
import time

os.environ["TZ"] = "UTC"
time.tzset()

import tokenizers
import transformers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from chat_blocks import EDGES, random_blocks
from chat_conversations import CONVERSATIONS, MASKED, TALKS
from chat_snippets import INPUT, SNIPPETS

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(1_700_000_000)


chat_template_utils.datetime = Clock
bare = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), **TOKENS)


def without_nulls(messages):
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def byte_range(text, span):
    return [len(text[:at].encode()) for at in span]


def render(template, chat):
    """Text and generation ranges, or the exception."""
    options = dict(add_generation_prompt=chat.get("add_generation_prompt", False), **chat.get("variables", {}))
    try:
        text = bare.apply_chat_template(
            chat["messages"], tools=chat.get("tools"), documents=chat.get("documents"), chat_template=template,
            tokenize=False, **options)
        text.encode()
        if " object at 0x" in text or re.search(r"<.* at 0x", text):
            raise ValueError("prints an address in memory, which is another one each time")
    except Exception as error:
        return {"raises": re.sub(r" at 0x[0-9a-f]+", "", f"{type(error).__name__}: {error}")}
    texts, spans = chat_template_utils.render_jinja_template(
        [without_nulls(chat["messages"])], tools=chat.get("tools"), documents=chat.get("documents"),
        chat_template=template, return_assistant_tokens_mask=True, **{**bare.special_tokens_map, **options})
    assert texts[0] == text, "a rendering is not the same twice"
    result = {"text": text}
    if spans[0]:
        result["generation"] = [byte_range(text, span) for span in spans[0]]
    return result


def save(name, value):
    (ROOT / "chat" / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def make_families():
    families = {}
    for path in sorted((ROOT / "chat").glob("*.jinja")):
        template = path.read_text()
        families[path.stem] = {name: render(template, chat) for name, chat in CONVERSATIONS.items()}
        raised = sum("raises" in result for result in families[path.stem].values())
        print(f"{path.stem:20} {len(families[path.stem])} conversations, {raised} refused")
    save("families.json", {"conversations": CONVERSATIONS, "families": families})


def make_torture():
    snippets = []
    for template in SNIPPETS:
        result = render(template, INPUT)
        snippets.append({"template": template, **result})
    raised = sum("raises" in snippet for snippet in snippets)
    print(f"{len(snippets)} snippets, {raised} of them raise")
    save("torture.json", {"input": INPUT, "snippets": snippets})


def load_tokenizer(name):
    """With the special tokens that the file has: others would get ids."""
    file = ROOT / "tokenizer" / name / "tokenizer.json"
    known = {token["content"] for token in json.loads(file.read_text())["added_tokens"]}
    tokens = {variable: token for variable, token in TOKENS.items() if token in known}
    return PreTrainedTokenizerFast(tokenizer_file=str(file), **tokens)


def make_masks():
    """Of the tokenizers, gpt2 takes spaces out of the ranges of tokens."""
    talks = [(template, chat) for template, chats in MASKED.items() for chat in chats]
    edges = [(template, chat) for template in EDGES for chat in TALKS[:2]]
    tokenizers_of = {"gpt2": talks + edges + list(random_blocks(80, 1)), "split": talks + edges + list(random_blocks(80, 2)),
                     "fallback": edges + list(random_blocks(40, 3)), "flags": list(random_blocks(40, 4)),
                     "legacy": list(random_blocks(20, 5))}
    cases = []
    for name, conversations in tokenizers_of.items():
        tokenizer = load_tokenizer(name)
        for template, chat in conversations:
            out = tokenizer.apply_chat_template(
                chat["messages"], tools=chat.get("tools"), chat_template=template, tokenize=True, return_dict=True,
                return_assistant_tokens_mask=True)
            if name == "fallback" and 0 in out["input_ids"]:
                continue  # the library misplaces bytes that follow an unknown character
            cases.append({"tokenizer": name, "template": template, "chat": chat, "ids": out["input_ids"],
                          "mask": out["assistant_masks"]})
    print(f"{len(cases)} masks")
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (ROOT / "chat" / "masks.json").write_text(f'{{"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    print("transformers", transformers.__version__, "Python", sys.version.split()[0])
    make_families()
    make_torture()
    make_masks()
