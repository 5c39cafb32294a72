#!/usr/bin/env python3
"""Build the bundled question-answering samples (SQuAD v1.1 form) from the passage files.

    python3 tools/samples/make_samples.py            write data/samples/{train,validation}.json
    python3 tools/samples/make_samples.py --check    change nothing; fail if the JSON differs from the sources

Sources: tools/samples/passages/{train,validation}/*.txt. A file is one article:

    # Title of the article                 first line
    @ slug                                 starts a passage; the slug is part of its question ids
    The passage, on one or more lines.
    Q: A question? | A: a span             the first place where the span stands in the passage
    Q: Another question? | A: a span @2    the second place

The id of a question is nc-<slug>-<two digits, counted from 01>, so append new questions at the end of a passage.
`answer_start` counts Unicode code points. Needs Python 3.9 or newer and nothing else.
"""

import argparse
import json
import re
import sys
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PASSAGES = Path(__file__).resolve().parent / "passages"
SPLITS = {  # split -> least number of passages, least number of questions
    "train": (58, 400),
    "validation": (6, 40),
}
CONTEXT_WORDS = (30, 55)
QUESTIONS_PER_PASSAGE = (5, 8)
MAX_ANSWER_WORDS = 4
QUESTION_LINE = re.compile(r"Q: (?P<question>.+\?) \| A: (?P<answer>.+?)(?: @(?P<nth>[1-9]))?")


class SourceError(Exception):
    """A passage file breaks a rule; the text says where and which."""


@dataclass
class Question:
    text: str
    answer: str
    nth: int
    where: str


@dataclass
class Passage:
    slug: str
    where: str
    lines: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)

    @property
    def context(self) -> str:
        return " ".join(self.lines)


def require(condition: bool, where: str, message: str) -> None:
    if not condition:
        raise SourceError(f"{where}: {message}")


def read_article(path: Path) -> tuple[str, list[Passage]]:
    title = ""
    passages: list[Passage] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        where = f"{path.relative_to(PASSAGES)}:{number}"
        require(line == line.strip() and "  " not in line and "\t" not in line, where, "stray white space")
        require(unicodedata.is_normalized("NFC", line), where, "text is not in Unicode form NFC")
        if not line:
            continue
        if line.startswith("# "):
            require(not title and not passages, where, "a file has one title, on its first line")
            title = line[2:]
        elif line.startswith("@ "):
            require(re.fullmatch(r"[a-z]+", line[2:]) is not None, where, "a slug is lower-case letters only")
            passages.append(Passage(line[2:], where))
        elif line.startswith("Q:"):
            match = QUESTION_LINE.fullmatch(line)
            require(bool(passages) and match is not None, where, "expected `Q: question? | A: span [@n]` in a passage")
            passages[-1].questions.append(
                Question(match["question"], match["answer"], int(match["nth"] or 1), where))
        else:
            require(bool(passages) and not passages[-1].questions, where, "text outside a passage")
            passages[-1].lines.append(line)
    require(bool(title) and bool(passages), str(path.relative_to(PASSAGES)), "needs a title and a passage")
    return title, passages


def whole_word_starts(context: str, span: str) -> list[int]:
    """Code-point offsets at which `span` stands and neither end cuts a word or number in two."""
    return [m.start() for m in re.finditer(rf"(?<!\w){re.escape(span)}(?!\w)", context)]


def build_paragraph(passage: Passage) -> dict:
    context = passage.context
    words = len(context.split())
    require(CONTEXT_WORDS[0] <= words <= CONTEXT_WORDS[1], passage.where,
            f"{words} words; a passage has {CONTEXT_WORDS[0]} to {CONTEXT_WORDS[1]}")
    count = len(passage.questions)
    require(QUESTIONS_PER_PASSAGE[0] <= count <= QUESTIONS_PER_PASSAGE[1], passage.where,
            f"{count} questions; a passage has {QUESTIONS_PER_PASSAGE[0]} to {QUESTIONS_PER_PASSAGE[1]}")
    qas = []
    for index, q in enumerate(passage.questions, 1):
        require(len(q.answer.split()) <= MAX_ANSWER_WORDS, q.where, f"answer has more than {MAX_ANSWER_WORDS} words")
        require(q.text[0].isupper(), q.where, "a question starts with a capital letter")
        starts = whole_word_starts(context, q.answer)
        require(len(starts) >= q.nth, q.where,
                f"answer {q.answer!r} stands {len(starts)} time(s) in the passage, place {q.nth} was asked for")
        start = starts[q.nth - 1]
        require(context[start:start + len(q.answer)] == q.answer, q.where, "span does not match its offset")
        qas.append({
            "id": f"nc-{passage.slug}-{index:02d}",
            "question": q.text,
            "answers": [{"text": q.answer, "answer_start": start}],
        })
    return {"context": context, "qas": qas}


def build() -> dict[str, dict]:
    """All splits in SQuAD v1.1 form, checked one by one and against each other."""
    slugs: dict[str, str] = {}
    questions: dict[str, str] = {}
    contexts: dict[str, str] = {}
    result = {}
    for split, (least_passages, least_questions) in SPLITS.items():
        data = []
        for path in sorted((PASSAGES / split).glob("*.txt")):
            title, passages = read_article(path)
            for p in passages:
                require(p.slug not in slugs, p.where, f"slug already used at {slugs.get(p.slug)}")
                slugs[p.slug] = p.where
                require(p.context not in contexts, p.where, f"same passage as {contexts.get(p.context)}")
                contexts[p.context] = p.where
                for q in p.questions:
                    key = " ".join(re.findall(r"\w+", q.text.casefold()))
                    require(key not in questions, q.where, f"same question as {questions.get(key)}")
                    questions[key] = q.where
            data.append({"title": title, "paragraphs": [build_paragraph(p) for p in passages]})
        n_passages, n_questions = count_split(data)
        require(n_passages >= least_passages and n_questions >= least_questions, split,
                f"{n_passages} passages and {n_questions} questions; "
                f"at least {least_passages} and {least_questions} are wanted")
        result[split] = {"version": "1.1", "data": data}
    return result


def count_split(data: list[dict]) -> tuple[int, int]:
    paragraphs = [p for article in data for p in article["paragraphs"]]
    return len(paragraphs), sum(len(p["qas"]) for p in paragraphs)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build or check the bundled question-answering samples.")
    parser.add_argument("--check", action="store_true", help="fail if the committed JSON differs from the sources")
    parser.add_argument("--output", type=Path, default=ROOT / "data" / "samples", help="folder of the JSON files")
    args = parser.parse_args()
    try:
        splits = build()
    except SourceError as error:
        print(f"make_samples: {error}", file=sys.stderr)
        return 1
    failed = False
    for split, value in splits.items():
        text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
        path = args.output / f"{split}.json"
        if args.check:
            if not path.is_file() or path.read_bytes() != text.encode("utf-8"):
                print(f"make_samples: {path.name} differs from its sources; run make_samples.py", file=sys.stderr)
                failed = True
                continue
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8"))
        n_passages, n_questions = count_split(value["data"])
        print(f"{path.name}: {n_passages} passages, {n_questions} questions, {len(text.encode('utf-8'))} bytes")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
