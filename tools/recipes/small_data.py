"""Small data sets, made of data/samples, in the places that AutoModel's recipes name."""

import json
import re
import shutil

from small_models import snapshot

SPLITS = ("train", "validation")


def passages(file):
    """Context and questions with their first answers, of a file in SQuAD's form."""
    for article in json.loads(file.read_text())["data"]:
        for paragraph in article["paragraphs"]:
            yield paragraph["context"], [(q["question"], q["answers"][0]["text"]) for q in paragraph["qas"]]


def hellaswag_rows(file):
    """What a passage says up to a sentence, and four sentences of which one follows."""
    texts = [re.split(r"(?<=[.!?]) ", context) for context, _ in passages(file)]
    rows = []
    for i, sentences in enumerate(texts):
        for k in range(1, len(sentences)):
            right = len(rows) % 4
            endings = [texts[(i + j) % len(texts)][-1] for j in range(1, 4)]
            endings.insert(right, sentences[k])
            rows.append({"ind": len(rows), "activity_label": "", "ctx": " ".join(sentences[:k]), "endings": endings,
                         "split": file.stem, "label": str(right)})
    return rows


def instruction_rows(file):
    return [{"definition": f"Answer from this passage: {context}", "inputs": question, "targets": answer}
            for context, questions in passages(file) for question, answer in questions]


def completion_rows(file):
    return [{"prompt": f"{context} {question}", "completion": answer}
            for context, questions in passages(file) for question, answer in questions]


def chat_rows(file):
    """Conversations of two turns; every third has a tool, its call and reasoning."""
    tool = {"type": "function", "function": {"name": "look_up", "description": "Finds a passage.", "parameters": {
        "type": "object", "required": ["words"],
        "properties": {"words": {"type": "string", "description": "What to look for."}}}}}
    rows = []
    for i, (context, ((first, answer), (second, reply), *_)) in enumerate(passages(file)):
        ask, say = (lambda text: {"role": "user", "content": text}), (lambda text: {"role": "assistant", "content": text})
        row = {"messages": [{"role": "system", "content": "Answer in few words."}, ask(f"{context} {first}"), say(answer),
                            ask(second), say(reply)]}
        if i % 3 == 0:
            call = {"id": "call_0", "type": "function", "function": {"name": "look_up", "arguments": {"words": first}}}
            row["tools"] = [tool]
            row["messages"] = [ask(first), {"role": "assistant", "content": "", "tool_calls": [call]},
                               {"role": "tool", "tool_call_id": "call_0", "content": context},
                               {**say(answer), "reasoning_content": "The passage says so."}]
        rows.append(row)
    return rows


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_data(hub, work, samples):
    """`work` becomes the folder in which recipes find the files that they name by a path."""
    hellaswags = [snapshot(hub, "datasets", name) for name in ("rowan/hellaswag", "Rowan/hellaswag")]
    squad = snapshot(hub, "datasets", "rajpurkar/squad")
    for split in SPLITS:
        file = samples / f"{split}.json"
        for hellaswag in hellaswags:
            write_lines(hellaswag / f"{split}.jsonl", hellaswag_rows(file))
        shutil.copyfile(file, squad / f"{split}.json")
        write_lines(work / "sample-datasets" / "prompt_completion" / f"{split}.jsonl", completion_rows(file))
        write_lines(work / "sample-datasets" / "chat" / f"{split}.jsonl", chat_rows(file))
    train = samples / "train.json"
    write_lines(snapshot(hub, "datasets", "Muennighoff/natural-instructions") / "train.jsonl", instruction_rows(train))
    # Recipes cut these two by numbers of rows.
    proofs, tulu = snapshot(hub, "datasets", "lm-provers/FineProofs-SFT"), snapshot(hub, "datasets", "allenai/tulu-3-sft-mixture")
    rows = [row for row in chat_rows(train) if "tools" not in row] * 20
    write_lines(proofs / "train.jsonl", rows)
    write_lines(tulu / "train.jsonl", rows[:160])
    # Recipes have these two paths, the first of which its reader is to replace.
    (work / "your" / "path").mkdir(parents=True)
    (work / "your" / "path" / "to").symlink_to(work / "sample-datasets" / "chat")
    cached = work / "data" / "cached" / "togethercomputer_CoderForge-Preview_filtered_reward1_seq131072"
    write_lines(cached / "data.jsonl", rows[:32])
    write_lines(cached / "val.jsonl", rows[:4])
