"""The answers that an endpoint gives to one chunk of prompts: kept as they come, checked, and written in the prompts' order."""

import json
from collections import Counter
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes
from errors import UserError
from kimi_adapters.chat import chat_format, prompt_ids
from kimi_adapters.engine_answers import Answer
from kimi_adapters.engine_client import EngineClient
from kimi_adapters.engine_requests import RequestFailed
from kimi_adapters.tokenizer import Tokenizer
from running.job import Job
from tasks.formats import CONVERSATIONS, REJECTS
from tasks.prompts import read_prompts
from tasks.slices import normalised

CUT = "cut at synthesis.max_new_tokens, and the endpoint gives no token ids that say so"


class ChunkAnswers:
    """One chunk. ``max_errors``: the share of its prompts that may stay without an answer."""

    def __init__(self, job: Job, max_errors: float) -> None:
        self._job, self._max_errors = job, max_errors
        self._rows = read_prompts(str(job.input("prompts")))[job.knobs["start"] : job.knobs["stop"]]
        if digest_bytes(canonical_json(self._rows)) != job.digests["prompts"]:
            raise UserError(f"{job.input('prompts')} changed while the run was going on: start the run again")
        self._tokenizer, self._form = Tokenizer(job.input("tokenizer")), chat_format(job.settings["chat_format"])
        self._seed = int.from_bytes(bytes.fromhex(job.digests["prompts"][:12])) + job.settings["seed"]
        self._kept = job.scratch / "answers.jsonl"
        self._lines: dict[int, dict[str, Any]] = self._kept_lines()
        self._errors: dict[int, str] = {}
        self._finished = False

    def _kept_lines(self) -> dict[int, dict[str, Any]]:
        """What an earlier child of this chunk was given; a line that it did not end is asked for again."""
        if not self._kept.exists():
            return {}
        whole, _, torn = self._kept.read_bytes().rpartition(b"\n")
        if torn:
            self._kept.write_bytes(whole + b"\n" if whole else b"")
        return {one["number"]: one["line"] for one in map(json.loads, whole.splitlines())}

    def missing(self) -> list[int]:
        """Places of the prompts that have no answer yet."""
        return [number for number in range(len(self._rows)) if number not in self._lines]

    @property
    def failed(self) -> bool:
        """Whether more prompts stay without an answer than may."""
        return len(self._errors) > self._max_errors * len(self._rows)

    def ask(self, client: EngineClient, number: int) -> dict[str, Any]:
        """The conversation of one prompt with its answer, as a line of the artifact."""
        row, chosen = self._rows[number], self._job.settings
        prompt = prompt_ids(row["messages"], self._tokenizer, self._form)
        answer = client.chat(
            row["messages"],
            fits=lambda answer: self._fits(row, prompt, answer),
            max_tokens=chosen["max_new_tokens"],
            temperature=chosen["temperature"],
            seed=self._seed + number,
        )
        said = {"role": "assistant", "content": answer.text}
        if answer.reasoning:
            said["reasoning_content"] = answer.reasoning
        line: dict[str, Any] = {"id": row["id"], "messages": [*row["messages"], said]}
        if answer.ids is not None:
            line |= {"prompt_ids": answer.prompt_ids, "answer_ids": answer.ids}
            line["greedy"] = chosen["temperature"] == 0
        elif answer.finish == "length":
            raise RequestFailed(CUT)
        return line

    def _fits(self, row: dict[str, Any], prompt: list[int], answer: Answer) -> bool:
        """Whether the engine answered this prompt: its tokens are ours, or (a template may differ) hold the turns' texts."""
        if answer.prompt_ids is None or answer.prompt_ids == prompt:
            return True
        read = normalised(self._tokenizer.decode(answer.prompt_ids, keep_special=True))
        return all(normalised(turn["content"]) in read for turn in row["messages"])

    def take(self, number: int, found: dict[str, Any] | RequestFailed) -> None:
        """Keep an answer, or the reason why there is none."""
        if isinstance(found, RequestFailed):
            self._errors[number] = str(found)
        else:
            self._lines[number] = found
            with open(self._kept, "ab") as file:
                file.write(json.dumps({"number": number, "line": found}).encode() + b"\n")
        self._job.progress(len(self._lines), len(self._rows), "prompts")

    def finish_if_whole(self) -> None:
        """Hand the artifact over when every prompt was asked and enough are answered."""
        whole = len(self._lines) + len(self._errors) == len(self._rows)
        if self._finished or not whole or self.failed or not self._lines:
            return
        writer = self._job.writer("conversations")
        with writer.open(CONVERSATIONS) as file:
            for number in sorted(self._lines):
                file.write(json.dumps(self._lines[number], ensure_ascii=False).encode() + b"\n")
        with writer.open(REJECTS) as file:
            for number in sorted(self._errors):
                file.write(json.dumps({"line": number + 1, "reason": self._errors[number]}).encode() + b"\n")
        lines = self._lines.values()
        tokens = sum(len(line.get("answer_ids", ())) for line in lines)
        sealed = writer.seal(
            conversations=len(lines),
            tokens=tokens,
            errors=len(self._errors),
            reasons=dict(sorted(Counter(self._errors.values()).items())),
            text_only=sum("answer_ids" not in line for line in lines),
        )
        self._job.finish({"conversations": sealed}, tokens=tokens)
        self._finished = True

    def require_answers(self) -> None:
        """``UserError`` where too many prompts stayed without an answer."""
        if self._finished:
            return
        reason, _ = Counter(self._errors.values()).most_common(1)[0] if self._errors else ("the endpoint was given up", 0)
        raise UserError(
            f"{self._job.label}: {len(self._errors)} of {len(self._rows)} prompts have no answer (most often: {reason}), more "
            "than endpoint.max_errors allows: mend the endpoint or raise the limit; what it answered is kept"
        )
