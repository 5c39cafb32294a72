"""The cases of make_datasets.py: files, templates, and for each case a class of AutoModel with its arguments.

`own` holds keys of recipes that AutoModel does not have, with the values that stand for what AutoModel does.
"""

CHATML = """{%- if tools %}<|im_start|>tools{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>
{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}

<tool_call>{{ call.id }} {{ call.type }} {{ call.function.name }}({{ call.function.arguments }})</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

BLOCKS = """{% for message in messages %}[{{ message.role }}] {% if message.role == 'assistant' %}{% generation %}\
{% if message.reasoning_content %}({{ message.reasoning_content }}) {% endif %}{{ message.content }}</s>\
{% endgeneration %}{% else %}{{ message.content }}{% endif %}
{% endfor %}"""

PLACES = "{{ bos_token }}{% for m in messages %}{{ m.role | upper }}: {{ m.content }}{{ eos_token }}{% endfor %}"

TALKS = [
    {"messages": [{"role": "user", "content": "What is the capital of France?"},
                  {"role": "assistant", "content": "Paris, on the Seine."}]},
    {"id": "long", "messages": [{"role": "system", "content": "Be brief."},
                                {"role": "user", "content": [{"type": "text", "text": "Two"}, {"type": "text", "text": "parts"}]},
                                {"role": "assistant", "content": "First answer."},
                                {"role": "user", "content": "Größe? Été 12 м²"},
                                {"role": "assistant", "content": "Second answer: 42."},
                                {"role": "user", "content": "Thanks"}]},
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"},
                       {"from": "human", "value": "Bye"}, {"from": "bot", "value": "Good bye."}]},
]
REASONED = [
    {"messages": [{"role": "user", "content": "2 + 2?"},
                  {"role": "assistant", "reasoning_content": "Two and two are four.", "content": "It is 4."},
                  {"role": "user", "content": "And 3 + 3?"},
                  {"role": "assistant", "reasoning_content": "Three twice.", "content": "It is 6."}]},
    {"messages": [{"role": "user", "content": "Say A."},
                  {"role": "assistant", "reasoning_content": None, "content": "A"}]},
]
TOOLS = [
    {"tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
     "messages": [{"role": "user", "content": "Weather in Zürich?"},
                  {"role": "assistant", "content": None, "tool_calls": [
                      {"function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "wet": True, "x": 1.5}}},
                      {"id": "w2", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Bern\"}"}}]},
                  {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
                  {"role": "assistant", "content": "Sunny."}]},
    {"tools": "[{\"type\": \"function\", \"function\": {\"name\": \"now\"}}]",
     "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi."}]},
    {"tools": [], "messages": [{"role": "user", "content": "No tools"}, {"role": "assistant", "content": "None."}]},
]
PROMPTS = [
    {"messages": [{"role": "user", "content": "What is the capital of France?"},
                  {"role": "assistant", "content": "Paris, on the Seine."}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"},
                  {"role": "assistant", "reasoning_content": "Two and two are four.", "content": "It is 4."}]},
    {"messages": [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "</think>"}]},
]
TURNS = [
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"},
                  {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "Good bye."}]},
    {"tools": [{"type": "function", "function": {"name": "weather", "description": "Of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}}}],
     "messages": [{"role": "user", "content": "Weather in Rome?"},
                  {"role": "assistant", "content": "", "tool_calls": [
                      {"id": "call_0", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]},
                  {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
                  {"role": "assistant", "content": "Sunny."}]},
]
ENDINGS = [
    {"ind": 4, "activity_label": "Removing ice", "ctx_a": "", "ctx_b": "", "ctx": "A man is standing on a roof. he",
     "endings": ["starts to sweep snow away.", "sings loudly.", "is a cat.", "falls asleep under it."],
     "source_id": "a~1", "split": "train", "split_type": "indomain", "label": "0"},
    {"ind": 9, "activity_label": "Cooking", "ctx_a": "", "ctx_b": "", "ctx": "She cuts the onions. She then",
     "endings": ["flies.", "puts them into a pan with butter and salt, and stirs for several minutes.", "x", "y"],
     "source_id": "a~2", "split": "train", "split_type": "indomain", "label": "1"},
    {"ind": 12, "activity_label": "Sport", "ctx_a": "", "ctx_b": "", "ctx": "The team", "endings": ["a", "b", "c", "wins."],
     "source_id": "a~3", "split": "train", "split_type": "indomain", "label": "3"},
]
QUESTIONS = [
    {"id": "q1", "title": "t", "context": "Berlin is the capital of Germany since 1990.", "question": "Since when?",
     "answers": {"text": [" 1990"], "answer_start": [38]}},
    {"id": "q2", "title": "t", "context": "Berlin is the capital of Germany since 1990.", "question": "Which city?",
     "answers": {"text": ["capital of Germany", "Berlin"], "answer_start": [14, 0]}},
]
PAIRS = [{"prompt": "Translate: good morning", "completion": "guten Morgen"},
         {"prompt": "Count to three.", "completion": "1, 2, 3"},
         {"prompt": "", "completion": "nothing was asked"}]
ALPACA = [{"instruction": "Add the numbers.", "input": "4 and 5", "output": "9"},
          {"instruction": "Name a colour.", "input": "", "output": "blue, or green"}]

FILES = {"talks.jsonl": TALKS, "reasoned.json": REASONED, "tools.jsonl": TOOLS, "endings.jsonl": ENDINGS,
         "questions.jsonl": QUESTIONS, "pairs.jsonl": PAIRS, "alpaca.json": ALPACA,
         "prompts.jsonl": PROMPTS, "turns.jsonl": TURNS}

PAIR_COLUMNS = {"question": "prompt", "answer": "completion"}
ALPACA_COLUMNS = {"context": "instruction", "question": "input", "answer": "output"}
PROMPT = {"answer_start": "prompt", "append_eos": False}
RIGHT = {"truncation_side": "right"}


def chat(file, template, own=None, **arguments):
    return {"class": "ChatDataset", "file": file, "arguments": {"chat_template": template, **arguments}, "own": own or {}}


def prompt(file, template_file, **arguments):
    """By a template of tests/goldens/chat. Those that write earlier turns in another way are refused on files of several turns."""
    return {"class": "ChatDataset", "file": file, "template_file": template_file + ".jinja",
            "arguments": {"mask_generation_prompt": True, **arguments}, "own": {}}


def columns(file, mapping, own=None, template=None, **arguments):
    return {"class": "ColumnMappedTextInstructionDataset", "file": file, "template": template,
            "arguments": {"column_mapping": mapping, **arguments}, "own": {**PROMPT, **(own or {})}}


def hellaswag(tokenizer="samples", **arguments):
    return {"class": "HellaSwag", "file": "endings.jsonl", "tokenizer": tokenizer, "arguments": arguments,
            "own": {"separator": "", "append_eos": False}}


def squad(own=None, **arguments):
    return {"class": "make_squad_dataset", "file": "questions.jsonl", "arguments": arguments, "own": own or {}}


CASES = [
    chat("talks.jsonl", CHATML),
    chat("talks.jsonl", BLOCKS),
    chat("talks.jsonl", PLACES),
    chat("talks.jsonl", CHATML, mask_history=True),
    chat("talks.jsonl", BLOCKS, mask_history=True),
    chat("talks.jsonl", CHATML, unshifted=True),
    chat("talks.jsonl", CHATML, unshifted=True, padding="max_length", seq_length=192),
    chat("talks.jsonl", CHATML, padding="max_length", seq_length=192),
    chat("talks.jsonl", CHATML, RIGHT, truncation=True, seq_length=100),
    chat("talks.jsonl", CHATML, RIGHT, truncation=True, padding="max_length", seq_length=100),
    chat("tools.jsonl", CHATML, {"tool_call_arguments": "text"}),
    chat("reasoned.json", CHATML),
    chat("reasoned.json", CHATML, mask_reasoning_content=True),
    chat("reasoned.json", BLOCKS, mask_reasoning_content=True),
    chat("reasoned.json", CHATML, {"mask_order": "reasoning_first"}, mask_reasoning_content=True, mask_history=True),
    chat("reasoned.json", CHATML, unshifted=True, mask_reasoning_content=True),
    chat("prompts.jsonl", CHATML, mask_generation_prompt=True),
    chat("turns.jsonl", CHATML, mask_generation_prompt=True),
    chat("turns.jsonl", CHATML, mask_generation_prompt=True, mask_history=True),
    chat("talks.jsonl", BLOCKS, mask_generation_prompt=True),
    *(prompt("prompts.jsonl", name) for name in (
        "deepseek_v3", "gemma", "glm", "gpt_oss", "kimi", "minimax", "nemotron_3", "nemotron_nano_v2", "qwen_3", "seed_oss")),
    *(prompt("turns.jsonl", name) for name in ("deepseek_v3", "glm", "kimi", "minimax", "nemotron_3", "qwen_3", "seed_oss")),
    prompt("prompts.jsonl", "nemotron_3", mask_reasoning_content=True),
    prompt("turns.jsonl", "nemotron_3", mask_history=True),
    prompt("prompts.jsonl", "glm", unshifted=True),
    hellaswag(),
    hellaswag(pad_to_max_length=False),
    hellaswag(num_samples_limit=2),
    hellaswag(tokenizer="fallback"),
    columns("pairs.jsonl", PAIR_COLUMNS, limit_dataset_samples=2),
    columns("pairs.jsonl", PAIR_COLUMNS, limit_dataset_samples=2, answer_only_loss_mask=False),
    columns("alpaca.json", ALPACA_COLUMNS),
    columns("alpaca.json", ALPACA_COLUMNS, padding="max_length", seq_length=64),
    columns("alpaca.json", ALPACA_COLUMNS, template=CHATML, use_hf_chat_template=True),
    columns("pairs.jsonl", PAIR_COLUMNS, template=CHATML, use_hf_chat_template=True),
    columns("alpaca.json", ALPACA_COLUMNS, template=BLOCKS, use_hf_chat_template=True),
    columns("alpaca.json", ALPACA_COLUMNS, template=CHATML, use_hf_chat_template=True, answer_only_loss_mask=False),
    squad(PROMPT),
    squad(chat_template=CHATML),
    squad(chat_template=BLOCKS),
    squad(RIGHT, chat_template=CHATML, truncation=True, padding="max_length", seq_length=96),
    squad(chat_template=PLACES, limit_dataset_samples=1),
]
