"""The tokenizer of a tiny checkpoint, in the form Kimi is published with: ranks, special tokens, chat template."""

import base64
import json
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from kimi_adapters import tiktoken_file

RANKS = 1024

# Kimi-K2.5's special tokens by their distance from the first of them (163584 there).
SPECIALS = {
    0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 6: "<|start_header_id|>",
    7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>", 11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>", 14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>", 17: "<|im_middle|>", 18: "<|media_begin|>", 19: "<|media_content|>", 20: "<|media_end|>",
    21: "<|media_pad|>", 22: "<think>", 23: "</think>", 254: "[UNK]", 255: "[PAD]",
}  # fmt: skip

# What the ranks are learnt from: enough words of several scripts that 768 merges are found.
_TEXT = """\
The river was frozen, and the children walked across it to the school on the other side. Their teacher had lit the
stove and written the day's question on the board: how far does a stone fall in three seconds? They measured, argued,
measured again, and nobody wanted to go home before the answer was found. In the evening the wind turned; by morning
there was water on the ice, and the ferryman put out his boat. You are a helpful assistant. Please explain, step by
step, why the sum of two even numbers is always even, and give an example. I'm sure that you'll find it's not hard.
Let me think about this: first we need the current weather in Paris, then we compare it with yesterday's temperature.
What is the capital of Norway? The capital of Norway is Oslo. How do I sort a list in Python without changing it? Use
sorted(), which returns a new list. Here is a short summary of the article: the author describes three experiments.
def add(left, right):
    return left + right
class Point:
    def __init__(self, x: float, y: float) -> None:
        self.x, self.y = x, y
for index, value in enumerate(values):
    if value is None or value < 0:
        raise ValueError(f"wrong value at {index}: {value}")
print({"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}, "type": "function"})
SELECT name, count(*) FROM users WHERE created_at > '2024-01-01' GROUP BY name ORDER BY 2 DESC LIMIT 100;
今天天气很好，我们去公园散步吧。请用中文回答下面的问题：北京是中国的首都吗？是的，北京是中国的首都。
人工智能正在改变我们的生活方式，机器学习模型需要大量的数据和计算资源。谢谢你的帮助，再见。
Der Fluss war zugefroren, und die Kinder gingen über das Eis zur Schule. Größe, Straße, schön, für, können.
Le fleuve était gelé ; les élèves l'ont traversé à pied. Où êtes-vous né ? Ça va très bien, merci beaucoup.
Река замёрзла, и дети пошли в школу по льду. Какая сегодня погода? Спасибо за помощь, всё понятно.
今日はとても寒いですね。学校まで歩いて行きましょう。ありがとうございます。 오늘 날씨가 좋네요. 감사합니다.
"""

# Turns as Kimi-K2.5 takes them; written for this project after the published description: no reasoning up to the last answer
# that called no tool, and none at all with thinking off.
TEMPLATE = """\
{%- if tools %}<|im_system|>tool_declare<|im_middle|>{{- tools_ts_str or tools | tojson(separators=(',', ':')) -}}
<|im_end|>{% endif -%}
{%- set last = namespace(plain=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' and not m.tool_calls %}{% set last.plain = loop.index0 %}{% endif -%}
{%- endfor -%}
{%- set shown = thinking is not defined or thinking -%}
{%- for m in messages -%}
{%- if m.role == 'user' %}<|im_user|>{% elif m.role == 'assistant' %}<|im_assistant|>{% else %}<|im_system|>{% endif -%}
{{ m.name or m.role }}<|im_middle|>
{%- if m.role == 'assistant' -%}
<think>{% if shown and loop.index0 > last.plain %}{{ m.reasoning_content or '' }}{% endif %}</think>
{%- elif m.role == 'tool' %}## Return of {{ m.tool_call_id }}{{ '\\n' }}{% endif -%}
{%- if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif -%}
{%- if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls -%}
<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>
{%- if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif -%}
<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif -%}
<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|><think>
{%- if not shown %}</think>{% endif %}{% endif -%}
"""


def special_id(token: str) -> int:
    """The id of a special token in the tiny vocabulary."""
    return RANKS + next(offset for offset, name in SPECIALS.items() if name == token)


def learn_ranks(text: str = _TEXT, count: int = RANKS) -> dict[bytes, int]:
    """Ranks of a byte-level BPE over Kimi's split of `text`: the 256 bytes, then merges as they were learnt."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(tiktoken_file.SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=count, min_frequency=0, initial_alphabet=alphabet, show_progress=False)
    )
    letters = {letter: byte for byte, letter in tiktoken_file.byte_letters().items()}
    learnt = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    tokens = [bytes(letters[letter] for letter in token) for token, _ in learnt]
    ranks = {bytes([byte]): byte for byte in range(256)}
    for token in tokens:
        ranks.setdefault(token, len(ranks))
    if len(ranks) != count:
        raise ValueError(f"{len(ranks)} ranks were learnt where {count} were asked for")
    return ranks


def tokenizer_files(fast: bool) -> dict[str, bytes]:
    """File names and contents; with `fast` a tokenizer.json stands beside (the form that transformers converts to)."""
    ranks = learn_ranks()
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    files = {
        tiktoken_file.FILE: b"".join(lines),
        "tokenizer_config.json": (json.dumps(_config(), indent=2) + "\n").encode(),
        "chat_template.jinja": TEMPLATE.encode(),
    }
    if fast:
        names = {RANKS + offset: name for offset, name in SPECIALS.items()}
        files["tokenizer.json"] = tiktoken_file.backend(ranks, names).to_str(pretty=True).encode()
    return files


def _config() -> dict[str, Any]:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {
        "added_tokens_decoder": {
            str(RANKS + offset): {"content": name, **plain, "special": True} for offset, name in SPECIALS.items()
        },
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "model_max_length": 1000000000000000019884624838656,
        "tokenizer_class": "TikTokenTokenizer",
    }
