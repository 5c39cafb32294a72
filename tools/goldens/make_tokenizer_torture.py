#!/usr/bin/env python3
"""Writes tests/goldens/tokenizer: small tokenizers and what the `tokenizers` library makes of awkward texts.

    python3 -m venv VENV && VENV/bin/pip install tokenizers==0.23.3
    VENV/bin/python tools/goldens/make_tokenizer_torture.py

texts.json           the texts, shared by all models (the last ones are random, seeded)
<model>/tokenizer.json, expected.json
    ids              of each text, without special tokens
    ids_special      of the first texts, with special tokens
    offsets          of the first texts, in characters (models that do not trim)
    decoded, decoded_skip   {text index: decoded ids_special or ids}, where that is not the text itself
    long             FNV-1a hashes of the ids of a generated 1 MB line (tokenizer_speed_test.cpp repeats it)
pre_tokenizers.json  [{spec, cases: [[text, pieces]]}]
regex_refused.json   expressions that must be refused
decoded.json
    ids              {model: [[random ids, their text, their text without special tokens]]}
    decoders         [{spec, cases: [[tokens, text]]}]
"""
import itertools
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "tokenizer"
SPLIT = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEP = 40  # texts with offsets and special tokens

CORPUS = """
The model reads a page of text and writes the next word. Training repeats this step many times, and each time the
weights move a little towards what the text really said. Nothing else happens: no rules, no grammar, no dictionary.
A tokenizer cuts the text into pieces before the model sees it. Pieces that occur often become tokens of their own;
rare words are spelled out. It's a compression scheme, and it doesn't know what a word is. They've tried; we'll see.
In the year 2023 the price was $3.50, in 1999 it was $2.75 / 100%. See https://example.org/path?query=1&other=two#top
def encode(text: str, add_special: bool = False) -> list[int]:
    pieces = [piece for piece in split(text) if piece]
    for index, piece in enumerate(pieces):
        if piece in self.vocab and not self.merges:
            return self.vocab[piece]
        else:
            self.merge(piece)  # lowest rank first
    return sum((self.encode(piece) for piece in pieces), [])
#include <vector>
int main(int argc, char** argv) { std::vector<int> x{1, 2, 3}; for (auto& v : x) v *= 2; return x.size() == 3 ? 0 : 1; }
SELECT name, COUNT(*) FROM users WHERE age >= 18 AND country IN ('DE', 'FR') GROUP BY name ORDER BY 2 DESC;
{"key": "value", "list": [1, 2.5, -3e10, true, null], "nested": {"a": {"b": "c"}}}
Das Wetter ist heute schön, aber morgen soll es regnen. Übermorgen fahren wir über die Straße nach Köln.
Il était une fois un garçon qui aimait les œufs à la coque; sa mère préférait le café noir, où qu'elle fût.
El niño pequeño comió una manzana en el jardín mientras su hermana leía un libro. ¿Qué hora es? ¡Mañana!
Сегодня хорошая погода, и мы идём гулять в парк. Завтра будет дождь, поэтому останемся дома и будем читать книги.
Η γλώσσα είναι ένα σύστημα επικοινωνίας που χρησιμοποιούν οι άνθρωποι για να εκφράζουν σκέψεις.
השפה היא מערכת תקשורת שבני אדם משתמשים בה כדי להביע מחשבות ורגשות.
اللغة نظام للتواصل يستخدمه البشر للتعبير عن أفكارهم ومشاعرهم. الكتاب على الطاولة في البيت.
भाषा संचार की एक प्रणाली है जिसका उपयोग मनुष्य अपने विचार व्यक्त करने के लिए करते हैं।
ภาษาเป็นระบบการสื่อสารที่มนุษย์ใช้ในการแสดงความคิดและความรู้สึก
日本語の文章を短く切って、次の言葉を当てる練習をします。テストのデータは小さいです。今日は天気がいいですね。
今天天气很好，我们去公园散步。明天会下雨，所以我们留在家里看书。语言是人类交流的工具。
오늘은 날씨가 좋아서 공원에 산책하러 갑니다. 내일은 비가 올 것입니다. 언어는 의사소통의 도구입니다.
Tiếng Việt có nhiều dấu thanh; người ta viết bằng chữ cái La-tinh. Türkçe'de ı ve i farklı harflerdir: İstanbul, ışık.
"""

TEXTS = [
    "", " ", "a", "Hello, world!", "Context: The year 2023's end.", "HelloWorld ABCdef iPhone", "a  b   c",
    "x\n\n  y", "price: $3.50 / 100%", "naïve café", "日本語 テスト", "foo_bar://x", "can't I'LL we've IT'S you'Re 'tis",
    "tab\there  ", "  leading", "trailing  ", "\n", "\r\n", "\r\n\r\n  \r\n", "\n\n\nx\r\ry\r\n\tz", "a\r\n b\n\r c \r d",
    "    four\n        eight\n\tone tab\n\t\ttwo", "0123456789 1,234,567.89 ½ ² ٣٤٥ Ⅷ 一二三 ७८ 𝟘𝟙",
    "The model reads a page of text and writes the next word.", "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<s>not bos</s>", "a<s>b <s> c  </s>  d", "<|im_end|><|im_end|> <|im_end|>", "<|im_en|im_end|>d|>", "<|im_end", "<unk>",
    "e\u0301 cafe\u0301 n\u0303o \u0301lone a\u0300\u0301\u0302\u0303 Å A\u030a", "👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ ❤ ☺\ufe0f #️⃣ 🏴\U000e0067\U000e0062\U000e007f",
    "עברית abc עברית 123", "\u202bالعربية\u202c \u200fمختلط\u200e English", "हिन्दी क्षत्रिय ज़िंदगी", "ภาษาไทยไม่มีช่องว่าง",
    "\x00", "a\x00b\x00\x00c", "\x01\x02\x03\x1b[31mred\x1b[0m\x7f", "a\u0085b\u0085\u0085 c",
    "a\u00a0b \u00a0 c\u00a0\u00a0", "a\u2028b\u2029c \u2028 d", "a\u200bb \u200b c\u200b\u200b", "a\u180eb \u180e c\u180e\u180e",
    "\ufeffBOM a\ufeffb \ufeff", "a\u3000b\u3000\u3000c \u3000", "a\u1680b\u2000c\u2001\u2002d\u202fe\u205ff \u200a", "a\u2060b\u00adc\u034fd",
    "\u200c\u200d a\u200cb a\u200db", "\uffff\ufffe\ufffd", "\U0010ffff\U0010fffe", "\ue000\uf8ff\U000f0000", "\U00020000\U0002a6df𠮷野家",
    "\u0378\u0379 \u0530", "ǅ ǆ Ǆ ǅungla ʰʷ ªº ﬁ ﬀ ﬆ ß ẞ ŉ ĸ ſ K Å", "ΑΒΓ αβγ Σίσυφος ΆΈ", "Привет МИР Ёлка ѕ",
    "Ⓐⓑ ㊀ ㍿ ｆｕｌｌ ＷＩＤＴＨ ﾊﾝｶｸ", "ꙮ ᚠᚢᚦ ᏣᎳᎩ ᐃᓄᒃ 𐌰𐌱 𓀀𓀁 𒀀", "İstanbul ıI iİ ışık", "ÀÉÎÕÜ àéîõü ÀàÉé AbÇdE",
    "''s 's'S 'T '' ' s don''t rock'n'roll o'clock ’s it’s", "a'b'c'd'm're've'll", "!!!???...---___***", "/* c */ // d\n/path/to/\nfile///\n\n",
    "x=1;y=2;\nif(x<y){\n\treturn x+y;\n}\n", "a+b=c a-b a_b a.b a,b a;b a:b a@b a#b a$b a%b a^b a&b a|b a~b a`b",
    " " * 7 + "x" + " " * 8, "\n" * 9, "\t" * 5 + " " * 5 + "\n" * 3 + " ", " \n \n  \n   x", "x" * 100, "ab" * 60, "9" * 77, "é" * 50, "日" * 40, "🙂" * 30,
    "The the THE tHe Thé THÉ", "SHOUTING WORDS IN CAPS then lower mixedCase PascalCase snake_case SCREAMING_CASE kebab-case",
    "Qa0Qa1 Qa2,Qa3. Qa4x Qa5_ xQa6 _Qa7 Qa8é éQa9", " Qb0  Qb1 \tQb2\n Qb3\u00a0Qb4\u3000 Qb5 ", "Qc0Qc0 Qc0  Qc0\nQc0", "Qd0-Qd1-Qd2 Qd3 -Qd4- 5Qd5 Qd65",
    "QaQbQcQd Qe0 Qe1", "(Qa4)(Qa5) (Qa6) [Qa7]", "Qa4 Qa4 Qa4Qa4 Qa4", "Qb4\u0301 Qb4\u200d Qb4\u203f \u203fQb4", "  Qa1  Qa2  Qa3  Qb1  Qb2  ",
    "<t><t>><tt><t>>> <tt>> <<t>", "a sp b  sp  sp", "é!é! \n! x\n!", "xx yy<pad>zz <pad> <pad>", "▁ ▁▁ a▁b ▁", "<0x41><0x0A> <0xE9>", "Ġ Ċ ĠĠ Ħ Ń ł",
    "the end of the text", " the\nthe\tthe", "100%\n200%\r\n", "Mr. O'Neill's £5,000 e-mail@example.com — “quoted” ‘single’ … •",
    "Zażółć gęślą jaźń", "Þórr ðæt œuvre æther", "ñandú Ñ", "ＡＢＣ１２３", "①②③ ⅓ ⅷ 〇", "𝒜𝓫𝔠 𝕏", "ෆ ශ්‍රී ක්‍ෂ", "မြန်မာ ខ្មែរ ລາວ བོད་", "ⵜⴰⵎⴰⵣⵉⵖⵜ ꦗꦮ ᬩᬮᬶ",
    "क\u093c\u0902 \u0902x", "\u20dd\u20e0 a\u20dd", "a\ufe0e\ufe0f \ufe0f", "\U0001f1e6 \U0001f1e6\U0001f1e7\U0001f1e8",
]


def random_texts(count, seed):
    rng = random.Random(seed)
    alphabet = (list("aabcdeeilnorstuABCST") + list("0019") + list("  \n\r\t''.,-_/") +
                list("éßΩжאع日本語한ไ") + ["\u0301", "\u00a0", "\u0085", "\u180e", "\u200b", "\u2028", "\u3000", "🙂", "\U0001f469\u200d", "ǅ", "ʰ", "²", "\x00",
                 "'s", "'LL", "Qa4", "Qb4", "Qd5", "<t>", "<t>>", "<pad>", "<s>", "<|im_end|>", " sp", "the", " the", "▁"])
    return ["".join(rng.choices(alphabet, k=rng.randint(1, 24))) for _ in range(count)]


def byte_level_trainer(size, specials=()):
    return trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), min_frequency=1, show_progress=False,
                               initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def corpus_lines():
    return [line + "\n" for line in CORPUS.strip().split("\n")]


def split_byte_level():
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])


def make_split():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split_byte_level()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus_lines(), byte_level_trainer(1500, ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    return json.loads(tokenizer.to_str())


def make_gpt2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus_lines(), byte_level_trainer(700, ["<s>", "<pad>", "</s>"]))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return json.loads(tokenizer.to_str())


def make_flags():
    """ignore_merges, and added tokens with every combination of flags."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CL100K), behavior="isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus_lines(), byte_level_trainer(600))
    spec = json.loads(tokenizer.to_str())
    # Entries that merging cannot reach, as in vocabularies made by other tools.
    for token in ["ĠABCdef", "PascalCase", "æĹ¥æľ¬èªŀ", "ĠĠĠĠĠĠ", "xxxxxxxx"]:
        spec["model"]["vocab"].setdefault(token, len(spec["model"]["vocab"]))
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    flags = itertools.product([False, True], repeat=4)  # single_word, lstrip, rstrip, normalized
    names = [f"Q{group}{i}" for group in "abcd" for i in range(10)]
    tokens = []
    for name, (single, left, right, normalized) in zip(itertools.cycle(["plain", "special"]), flags):
        tokens.append((name, single, left, right, normalized))
    rng = random.Random(5)
    for i, name in enumerate(names):
        _, single, left, right, normalized = tokens[i % 16] if i < 32 else tokens[rng.randrange(16)]
        token = AddedToken(name, single_word=single, lstrip=left, rstrip=right, normalized=normalized, special=i >= 16 and i < 32)
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    for name in ["<t>", "<t>>", "<tt>", " sp", "é!", "\n!"]:
        tokenizer.add_tokens([AddedToken(name, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False, special=True), AddedToken("</s>", normalized=False, special=True),
                                  AddedToken("<pad>", rstrip=True, lstrip=True, normalized=False, special=True)])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B </s>",
                                      special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")])])
    return json.loads(tokenizer.to_str())


def make_legacy():
    """Merges as strings with a header line and repeated pairs; digits apart."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=True, trim_offsets=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus_lines(), byte_level_trainer(600))
    spec = json.loads(tokenizer.to_str())
    merges = [" ".join(pair) for pair in spec["model"]["merges"]]
    spec["model"]["merges"] = ["#version: 0.2"] + merges + merges[3:40:4]
    del spec["model"]["ignore_merges"]
    spec["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    return spec


def make_fallback():
    """Characters with byte fallback, unknown characters fused; some bytes have no token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    metaspace = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(metaspace)
    lines = [line for line in corpus_lines() if line.isascii() or "ü" in line]
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")  # for the training only
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))
    spec = json.loads(tokenizer.to_str())
    spec["pre_tokenizer"] = None
    vocab = spec["model"]["vocab"]
    for byte in range(256):
        if byte not in (0xF0, 0xE3, 0x85):
            vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    spec["model"]["byte_fallback"] = True
    spec["normalizer"]["normalizers"].append({"type": "Strip", "strip_left": False, "strip_right": True})
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_tokens([AddedToken("Qa4", normalized=True, single_word=True), AddedToken("the end", normalized=True, rstrip=True)])
    tokenizer.add_special_tokens([AddedToken("Qb4", normalized=True, special=True), AddedToken("<t>", normalized=False, lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="$A $B", special_tokens=[("<s>", 1), ("</s>", 2)])
    return json.loads(tokenizer.to_str())


def long_line(kind):
    """A line of 2**20 bytes; tokenizer_speed_test.cpp makes the same."""
    unit = {"words": "The model reads a page of text, and the next word is 42; ", "spaces": " ", "letters": "abcde", "caps": "A", "dashes": "-"}[kind]
    return (unit * (2**20 // len(unit) + 1))[:2**20]


def fnv1a(ids):
    state = 0xCBF29CE484222325
    for value in ids:
        state = ((state ^ value) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{state:016x}"


def expected(spec, texts, with_offsets, with_long):
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    plain = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    special = [tokenizer.encode(text, add_special_tokens=True) for text in texts[:DEEP]]
    out = {"ids": [e.ids for e in plain], "ids_special": [e.ids for e in special], "decoded": {}, "decoded_skip": {}}
    for i, text in enumerate(texts):
        ids = special[i].ids if i < DEEP else plain[i].ids
        for key, skip in (("decoded", False), ("decoded_skip", True)):
            decoded = tokenizer.decode(ids, skip_special_tokens=skip)
            if decoded != text:
                out[key][str(i)] = decoded
    if with_offsets:
        out["offsets"] = [e.offsets for e in plain[:DEEP]]
    if with_long:
        out["long"] = {kind: fnv1a(tokenizer.encode(long_line(kind), add_special_tokens=False).ids)
                       for kind in ("words", "spaces", "letters", "caps", "dashes")}
    return out


def pre_tokenizer_cases(texts):
    behaviors = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    specs = [pre_tokenizers.Split(pattern, behavior=behavior, invert=invert)
             for pattern in (" ", "--", Regex(r"\s+"), Regex(r"[aeiou]{2}|x*")) for behavior in behaviors for invert in (False, True)]
    expressions = [SPLIT, CL100K, r"\w+|[^\w\s]+", r"\b", r"\B'", r"\d{2}?", r"\d{1,2}+", r"\d{1,3}?", r"x{,3}y", r"[\s]+$", r"^\S+", r"a|ab",
                   r"(?i)[A-C]+", r"(?i:the)\b", r"(?<=a)b", r"(?<!a)b", r"(a|b)+?c", r"(?>a+)b", r"\p{Han}+", r"\p{Hiragana}|\p{Katakana}",
                   r"[^\S\r\n]+", r"\p{^L}+", r"\P{L}+", r"[\p{Sc}\p{Sm}]", r"[\x09\u00a0\x{3000}]", r"\h+", r"[\h-]+", r".{3}", r"\A.", r".\z", r".\Z",
                   r"[\-\]\[]", r"\W\w", r"[-a]", r"[a-]", r"a{", r"{1", r"\p{Alpha}+", r"\p{lu}\p{LL}*", r"[^\n]+\n?", r"\D+", r"[^\D5]+", r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)", r"x*", r"(?=b)", r"é|日", r"[一-龥぀-ヿ]+"]
    specs += [pre_tokenizers.Split(Regex(e), behavior="isolated") for e in expressions]
    specs += [pre_tokenizers.Digits(False), pre_tokenizers.Digits(True),
              pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.Split(" ", behavior="merged_with_next"),
                                       pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{Lu}"), behavior="isolated")])])]
    out = []
    for spec in specs:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = spec
        cases = [[i, [piece for piece, _ in spec.pre_tokenize_str(text)]] for i, text in enumerate(texts)]
        # A text that stays whole is not worth its bytes.
        out.append({"spec": json.loads(tokenizer.to_str())["pre_tokenizer"], "cases": [[i, p] for i, p in cases if p != [texts[i]]]})
    return out


REFUSED = [r"(a)\1", r"(?<n>a)", r"[a&&b]", r"[a[bc]]", r"[[:alpha:]]", r"(?m:a)", r"(?x:a)", r"a**", r"a+{2}", r"\Ga", r"\R", r"\X", r"\K", r"\xff",
           r"(?i:ß)", r"(?i:ss)", r"(?i:\p{Lu})", r"\p{Nonsense}", r"(", r")", r"[", r"a\\(", r"\q", r"[b-a]", r"(?<=a+)b", r"*", r"\p{L", r"[\W]", r"\x{110000}"]


def decoded_random_ids(spec, rng, count=60):
    """Ids in any order, with runs of those that spell single bytes: text that no encoder would give."""
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    every = [i for _, i in vocab]
    short = [i for token, i in vocab if len(token) == 1 or token.startswith("<0x")]
    added = sorted(tokenizer.get_added_tokens_decoder())
    out = []
    for _ in range(count):
        ids = []
        while len(ids) < 3 or rng.random() < 0.8:
            pool = rng.choice([every, short, short, added or every])
            ids += [rng.choice(pool) for _ in range(rng.randint(1, 4))]
        out.append([ids, *(tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True))])
    return out


def decoder_cases(rng):
    """Decoders whose steps see one fused text, which a streaming decoder gets in parts."""
    d = decoders
    chains = [
        [d.Replace("\u2581", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)],
        [d.Fuse(), d.Replace("\u2581\u2581", "="), d.Strip(" ", 0, 2)],
        [d.Fuse(), d.Replace("aba", ""), d.Strip("a", 2, 1)],
        [d.Replace("a", "ab"), d.Fuse(), d.Replace("bb", "b"), d.Replace("ba", "a\u2581")],
        [d.Fuse(), d.ByteFallback()],
        [d.ByteFallback(), d.Strip("a", 1, 1), d.Strip("\u00e9", 1, 0)],
        [d.ByteFallback(), d.ByteLevel(), d.Strip(" ", 1, 1), d.Fuse()],
        [d.Fuse(), d.ByteLevel()],
        [d.Fuse(), d.Replace(Regex("a+b?"), "-"), d.Replace("--", "~")],
        [d.Replace(Regex("^."), "<"), d.ByteLevel(), d.Replace(Regex("[^a-z]{2}$"), ">")],
        [d.Strip("a", 3, 3)],
    ]
    pieces = ["a", "b", "ab", "aab", "ba", " ", "  ", "\u2581", "\u2581\u2581a", "\u00e9", "\u00e9a", "<0x61>", "<0xC3>",
              "<0xA9>", "<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "<0x6", "1>", "<0x", "\u0120a", "\u00c3\u00a9", "\u00a9", "\u00e4\u00bd",
              "\u0142", "\u65e5", "", "aa", "--"]
    out = []
    for chain in chains:
        decoder = d.Sequence(chain)
        cases = []
        while len(cases) < 40:
            tokens = [rng.choice(pieces) for _ in range(rng.randint(0, 9))]
            try:
                cases.append([tokens, decoder.decode(tokens)])
            except BaseException as panic:  # the library's Strip indexes outside tokens that are shorter than `stop`
                if type(panic).__name__ != "PanicException":
                    raise
        out.append({"spec": json.loads(decoder.__getstate__()), "cases": cases})
    return out


def write(path, value, indent=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=indent, separators=(",", ":") if indent is None else None) + "\n")


def main():
    texts = TEXTS + random_texts(300, 20240607)
    write(ROOT / "texts.json", texts)
    models_ = {"split": make_split(), "gpt2": make_gpt2(), "flags": make_flags(), "legacy": make_legacy(), "fallback": make_fallback()}
    for name, spec in models_.items():
        write(ROOT / name / "tokenizer.json", spec)
        write(ROOT / name / "expected.json", expected(spec, texts, name in ("split", "flags", "fallback"), name in ("split", "legacy")))
    some = [t for t in TEXTS if 2 < len(t) <= 60][:48:3] + ["x\n", "\nx\n\n", "aab xxxxyy 1234567 the THE bbb", "a]b[c-d h{1 a{ ee--ff---", "αβ日本語カナ"] + random_texts(15, 7)
    write(ROOT / "pre_tokenizers.json", {"texts": some, "cases": pre_tokenizer_cases(some)})
    write(ROOT / "regex_refused.json", REFUSED, indent=0)
    rng = random.Random(11)
    decoded = {"ids": {name: decoded_random_ids(spec, rng) for name, spec in models_.items()}, "decoders": decoder_cases(rng)}
    decoded["ids"]["fallback"].append([[509, 33533, 542], *(Tokenizer.from_str(json.dumps(models_["fallback"])).decode([509, 33533, 542], skip_special_tokens=skip) for skip in (False, True))])
    write(ROOT / "decoded.json", decoded)
    # What a directory of a published tokenizer also holds.
    write(ROOT / "split" / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": {"content": "<|im_end|>", "lstrip": False}, "pad_token": None, "unk_token": "<unk>"}, indent=2)
    write(ROOT / "split" / "special_tokens_map.json", {"bos_token": "</s>", "pad_token": "<unk>"}, indent=2)


if __name__ == "__main__":
    main()
