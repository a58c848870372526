"""Prompts of several kinds for `benchmarks.draft_quality`: the project's own, and many made of what Python carries.

Nouns are the names of Unicode's pictures, functions those of the standard library with the first line of their
documentation: thousands of prompts without a download. What is held out of a kind is never trained on: whole modules, tasks.
"""

import importlib
import inspect
import json
import random
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

PROMPTS = Path(__file__).parents[1] / "deployments" / "prompts"
_TALK = ["Give three facts about this: {}.", "Write a very short story about a {}.", "What comes to mind when you see a {}?"]
_CODE = "Write a Python function that {}. Give the code and one sentence that explains it."
_LIKE = "Write your own version of Python's {}. {} Give the code and one sentence that explains it."
_EXPLAIN = "What does {} do in Python? Its documentation begins: {} Show a short example."
_CALL = "You may call get_weather(city), convert(amount, unit, into) or search(query). Answer with one call as JSON.\n{}"
_OFFER = "You may call {}. Answer with one call as JSON.\nI need this: {}"
_TASKS = [
    "reverses the words of a sentence", "counts the vowels in a string", "merges two sorted lists", "sums a number's digits",
    "finds the second largest number", "checks whether a year is a leap year", "removes duplicates from a list", "sorts words",
    "finds the longest common prefix", "converts seconds to hours and minutes", "transposes a matrix", "checks a palindrome",
]  # fmt: skip
_REQUESTS = [
    "Is it raining in Lisbon?", "How many miles are 30 kilometres?", "Who invented the zip fastener?", "What is 5 kg in stone?",
    "Do I need a coat in Oslo now?", "When was the first bicycle sold?", "How many cups are 2 litres?", "Is it warm in Cairo?",
    "Find a recipe for lentil soup.", "Turn 80 degrees Fahrenheit into Celsius.", "How windy is Chicago?", "Who wrote Emma?",
]  # fmt: skip
_HELD_OUT = 4  # of the tasks and of the requests
_MODULES = [
    "argparse", "ast", "asyncio", "base64", "binascii", "bz2", "calendar", "cmath", "codecs", "collections",
    "colorsys", "concurrent.futures", "configparser", "contextlib", "copy", "csv", "ctypes", "dataclasses",
    "datetime", "decimal", "difflib", "dis", "email.message", "email.utils", "enum", "filecmp", "fnmatch",
    "fractions", "functools", "gc", "getpass", "gettext", "glob", "gzip", "hashlib", "hmac", "html", "http.client",
    "http.cookies", "imaplib", "inspect", "io", "ipaddress", "itertools", "json", "keyword", "linecache", "locale",
    "logging", "lzma", "mailbox", "mimetypes", "mmap", "multiprocessing", "numbers", "operator", "os", "os.path",
    "pathlib", "pickle", "pkgutil", "platform", "plistlib", "pprint", "queue", "quopri", "random", "re", "reprlib",
    "sched", "secrets", "select", "selectors", "shelve", "shlex", "signal", "smtplib", "socket", "sqlite3", "ssl",
    "stat", "string", "struct", "subprocess", "symtable", "sys", "tarfile", "tempfile", "threading", "time", "timeit",
    "tokenize", "traceback", "types", "typing", "unicodedata", "unittest", "urllib.parse", "urllib.request", "uuid",
    "warnings", "wave", "weakref", "xml.dom", "xml.etree.ElementTree", "xml.sax", "zipapp", "zipfile", "zlib",
]  # fmt: skip
_HELD_OUT_MODULES = ["heapq", "math", "shutil", "statistics", "textwrap", "bisect"]
_SEEN = 24  # held-out prompts of a kind


def training_prompts(seed: int = 0) -> list[str]:
    """All prompts that answers to train on come from, in an order that mixes the kinds."""
    nouns = [text.format(noun) for noun in _nouns() for text in _TALK]
    own = read_prompts(PROMPTS / "train.jsonl")
    tasks = [*(_CODE.format(t) for t in _TASKS[:-_HELD_OUT]), *(_CALL.format(r) for r in _REQUESTS[:-_HELD_OUT])]
    functions = [text for name, line in _functions(_MODULES) for text in (*_code(name, line), _call(name, line))]
    prompts = [*own, *tasks, *nouns, *functions]
    random.Random(seed).shuffle(prompts)
    return prompts


def held_out_prompts(more: Sequence[str]) -> dict[str, list[str]]:
    """Held-out prompts by kind. `more` adds kinds, "NAME=FILE" each, FILE of JSON lines with `prompt` or `messages`."""
    functions = list(_functions(_HELD_OUT_MODULES))
    random.Random(1).shuffle(functions)
    kinds = {
        "own": read_prompts(PROMPTS / "held_out.jsonl"),
        "code": [*(_CODE.format(t) for t in _TASKS[-_HELD_OUT:]), *(_code(*f)[0] for f in functions)][:_SEEN],
        "calls": [*(_CALL.format(r) for r in _REQUESTS[-_HELD_OUT:]), *(_call(*f) for f in functions)][:_SEEN],
    }
    return kinds | {name: read_prompts(Path(file)) for name, _, file in (one.partition("=") for one in more)}


def read_prompts(path: Path) -> list[str]:
    """The prompts of a JSONL file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return [row["prompt"] if "prompt" in row else row["messages"][-1]["content"] for row in rows]


def _code(name: str, line: str) -> tuple[str, str]:
    return _LIKE.format(name, line), _EXPLAIN.format(name, line)


def _call(name: str, line: str) -> str:
    return _OFFER.format(name, line)


def _nouns() -> Iterator[str]:
    for code in range(0x1F300, 0x1F700):
        name = unicodedata.name(chr(code), "").lower()
        if name and len(name.split()) <= 2 and name.replace(" ", "").isalpha():
            yield name


def _functions(modules: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(module.function, the first line of its documentation) of all that have one."""
    for module in modules:
        found = importlib.import_module(module)
        for name, value in sorted(inspect.getmembers(found, inspect.isroutine)):
            line = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
            if not name.startswith("_") and line.endswith(".") and 20 < len(line) < 160:
                yield f"{module}.{name}", line
