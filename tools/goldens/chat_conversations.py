"""Conversations that make_chat_templates.py renders."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Looks up the weather, e.g. for <Zürich> & 'around' \"it\".",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A town"},
                "days": {"type": "integer", "description": "How many", "default": 1},
                "units": {"type": "string", "enum": ["metric", "imperial"], "default": "metric"},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                          "required": ["lat"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "any_of": {"type": ["string", "null"]},
            },
            "required": ["place"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": " The time. ",
                                          "parameters": {"type": "object", "properties": {}}}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(name, arguments, identity="call_1234567890"):
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "  You are terse. /think \n"}
ARGUMENTS = {"place": "Zürich", "days": 3, "exact": True, "nothing": None, "where": {"lat": 47.4, "lon": 8.0},
             "tags": ["a", "b"], "tiny": 1e-07, "text": "line\nline \"quoted\" it's"}

CONVERSATIONS = {
    "one_question": {"messages": [user("Hello!")]},
    "question_and_prompt": {"messages": [user("Hello!")], "add_generation_prompt": True},
    "two_turns": {"messages": [user("Hi"), assistant("Hello."), user("And now?"), assistant("  Now this. \n")]},
    "system": {"messages": [SYSTEM, user("Hi"), assistant("Hello."), user("More")], "add_generation_prompt": True},
    "unicode": {"messages": [user("Grüße 👋🏽 你好 \u2028 – «ok»"), assistant("Naïve 🙂‍↔️ answer")]},
    "empty_content": {"messages": [SYSTEM | {"content": ""}, user(""), assistant("")]},
    "null_content": {"messages": [user("Call"), assistant(None, tool_calls=[call("clock", {})]),
                                  {"role": "tool", "content": "12:00", "tool_call_id": "call_1234567890", "name": None}]},
    "reasoning": {"messages": [user("Why?"), assistant("Because.", reasoning_content="First,\nthink.\n"),
                               user("Really?"), assistant("Yes.", reasoning_content="Again.")]},
    "thinking_key": {"messages": [user("Why?"), assistant("So.", thinking="Hmm.")], "add_generation_prompt": False},
    "reasoning_in_text": {"messages": [user("Why?"), assistant("<think>\nFirst.\n</think>\n\nBecause."), user("So?"),
                                       assistant("<think>Second.</think>It is so.")]},
    "no_thinking": {"messages": [user("Quick /no_think")], "add_generation_prompt": True,
                    "variables": {"enable_thinking": False}},
    "thinking": {"messages": [SYSTEM, user("Slow")], "add_generation_prompt": True,
                 "variables": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high",
                               "thinking_budget": 700}},
    "tools": {"messages": [SYSTEM, user("Weather?")], "tools": [WEATHER, CLOCK], "add_generation_prompt": True},
    "tools_without_system": {"messages": [user("Weather?")], "tools": [CLOCK, WEATHER]},
    "empty_tools": {"messages": [user("Weather?")], "tools": []},
    "tool_call": {"messages": [user("Weather?"), assistant("Let me look.", tool_calls=[call("get_weather", ARGUMENTS)]),
                               {"role": "tool", "name": "get_weather", "tool_call_id": "call_1234567890",
                                "content": "{\"sky\": \"grey\"}"},
                               assistant("Grey.")], "tools": [WEATHER]},
    "text_arguments": {"messages": [user("Weather?"),
                                    assistant(None, tool_calls=[call("get_weather", "{\"place\": \"Z\\u00fcrich\"}")]),
                                    {"role": "tool", "tool_call_id": "call_1234567890", "content": "grey"},
                                    assistant("Grey.")], "tools": [WEATHER], "add_generation_prompt": True},
    "two_calls": {"messages": [user("Both?"), assistant(None, reasoning="Two calls.", tool_calls=[
        call("clock", {}, "a23456789"), call("get_weather", {"place": "Bern"}, "b23456789")]),
        {"role": "tool", "tool_call_id": "a23456789", "content": "12:00"},
        {"role": "tool", "tool_call_id": "b23456789", "content": "sun"}, assistant("Noon, sun."), user("Thanks")],
        "tools": [CLOCK, WEATHER], "add_generation_prompt": True},
    "call_at_the_end": {"messages": [SYSTEM, user("Weather?"), assistant("", tool_calls=[call("clock", {"a": [1, 2.5]})])],
                        "tools": [CLOCK]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is"},
                                                        {"type": "text", "text": "this?"}]}, assistant("A test.")]},
    "image": {"messages": [{"role": "user", "content": [{"type": "image", "image": "x.png"},
                                                        {"type": "text", "text": "this?"}]}, assistant("A test.")]},
    "system_parts": {"messages": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, user("Hi")]},
    "documents": {"messages": [user("Find it.")], "add_generation_prompt": True,
                  "documents": [{"title": "One \"quoted\"", "text": "First text."}, {"text": "No title <here>"}]},
    "second_system": {"messages": [SYSTEM, user("Hi"), {"role": "system", "content": "Now be kind."}, user("Hm?"),
                                   assistant("Ok.")]},
    "two_questions": {"messages": [user("One"), user("Two")]},
    "answer_first": {"messages": [assistant("Welcome."), user("Hi"), assistant("Hello.")]},
    "developer": {"messages": [{"role": "developer", "content": "Rules."}, user("Hi")], "add_generation_prompt": True},
    "prefix": {"messages": [user("Count"), assistant("One, two", prefix=True)], "variables": {"thinking": True}},
    "variables": {"messages": [user("Hi"), assistant("Yes?"), user("So")], "add_generation_prompt": True, "variables": {
        "date_string": "1 Jan 2024", "builtin_tools": ["code_interpreter", "search"], "count_turns": True,
        "truncate_history_thinking": False, "custom_tools": [CLOCK],
        "bos_token": "<other bos>"}},
    "tool_first": {"messages": [{"role": "tool", "content": "odd"}, user("Hi")]},
    "unknown_role": {"messages": [user("Hi"), {"role": "narrator", "content": "Silence."}]},
}

PLAIN = ("{% for message in messages %}{{ '<' + message.role + '>' }}{% if message.role == 'assistant' %}"
         "{% generation %}{{ message.content }}</s>{% endgeneration %}{% else %}{{ message.content }}{% endif %}\n"
         "{% endfor %}")
WHOLE_LINE = ("{% for message in messages %}{% if message.role == 'assistant' %}{%- generation -%}\n  {{ message.content }}"
              "{%- endgeneration -%}{% else %}[{{ message.content }}]{% endif %}{% endfor %}")
FROM_MACRO = ("{% macro say(text) %}<{% generation %}{{ text }}{% endgeneration %}>{% endmacro %}"
              "{% for message in messages %}{{ 'é' }}{{ say(message.content) }}{% endfor %}")

TALKS = [CONVERSATIONS[name] for name in ["two_turns", "unicode", "answer_first"]]
MASKED = {PLAIN: TALKS, WHOLE_LINE: TALKS[:2], FROM_MACRO: TALKS[:2]}
