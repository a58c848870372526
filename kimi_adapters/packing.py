"""Packs of fixed length from shard files: what one forward of the draft's training reads.

A sample of T tokens gives T - 1 indices, aligned as speculators' `shift_batch` has it: index j holds the embedding's
token j + 1, the auxiliary states of token j, the last state, the mask and the position of token j + 1.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from errors import UserError
from kimi_adapters.tensor_file import TensorFile, read_array

OPEN_PACKS = 32
STATES = ("hidden_states", "verifier_last_hidden_states")
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class ShardFiles:
    """The four files of a shard (see the artifacts' formats): tokens, masks, samples.jsonl, states."""

    tokens: Path
    masks: Path
    samples: Path
    states: Path


@dataclass(frozen=True)
class Piece:
    """Indices `start` to `stop` (of T - 1) of one sample; the first `unsupervised` carry no loss, `supervised` others do."""

    shard: int
    sample: int
    first_token: int
    start: int
    stop: int
    unsupervised: int
    supervised: int

    def __len__(self) -> int:
        return self.stop - self.start


class Shard:
    """One shard's arrays, mapped. UserError when its files do not belong together or lack a layer."""

    def __init__(self, files: ShardFiles, layer_ids: Sequence[int]):
        tokens, masks, self.states = (TensorFile(path) for path in (files.tokens, files.masks, files.states))
        self.path = files.states
        self.input_ids = read_array(tokens, "input_ids")
        self.offsets = read_array(tokens, "offsets")
        self.loss_mask = read_array(masks, "loss_mask").astype(bool)
        self.state_names = [*(f"layer.{k}" for k in layer_ids), "last"]
        with open(files.samples, encoding="utf-8") as file:
            self.sides = [json.loads(line)["side"] for line in file]
        lengths = {len(self.input_ids), len(self.loss_mask), int(self.offsets[-1])}
        lengths |= {self.states.entry(name).shape[0] for name in self.state_names}
        if len(lengths) > 1 or len(self.sides) != len(self.offsets) - 1:
            raise UserError(
                f"{files.states} does not belong to {files.tokens}, {files.masks} and {files.samples}: their tokens "
                f"number {sorted(lengths)}; extract the states of this shard again."
            )

    def state(self, name: str, start: int, stop: int) -> Tensor:
        """Rows of a state in float32, [stop - start, H]."""
        entry = self.states.entry(name)
        if entry.dtype == "BF16":
            return torch.from_numpy(self._bits(name)[start:stop].copy()).view(torch.bfloat16).float()
        return torch.from_numpy(read_array(self.states, name)[start:stop].astype(np.float32))

    def copy_state(self, name: str, start: int, stop: int, target: Tensor) -> None:
        """Copies rows of a state to `target`, bfloat16 to bfloat16 in one pass without the interpreter's lock."""
        if target.dtype == torch.bfloat16 and self.states.entry(name).dtype == "BF16":
            np.copyto(target.view(torch.int16).numpy(), self._bits(name)[start:stop])
        else:
            target.copy_(self.state(name, start, stop))

    def _bits(self, name: str) -> np.ndarray:
        """A bfloat16 state as it is mapped, [T, H] of 16 bits."""
        return np.frombuffer(self.states.bytes(name), dtype="<i2").reshape(-1, self.states.entry(name).shape[1])


class PackedShards:
    """The supervised samples of one side, cut and packed.

    Parameters: `quarantine` names samples to leave out, {shard: sample numbers}; `ttt_steps` is the chain length,
    `noise` the half-width of the uniform noise on the auxiliary states (0 for anything but training). `supervised` all
    takes every token of a sample for supervised, not only those of its mask.
    UserError: nothing to train on.

    A sample longer than a pack is cut into documents that overlap by `ttt_steps` - 1 indices. The first that many
    indices of EVERY document carry no loss: a chain that ends there would begin in the neighbouring document. The
    overlap gives them back, so that each supervised token after a sample's first few is trained once at every step.
    """

    def __init__(
        self,
        shards: Sequence[ShardFiles],
        layer_ids: Sequence[int],
        pack_tokens: int,
        ttt_steps: int,
        seed: int = 0,
        quarantine: Mapping[int, Collection[int]] | None = None,
        side: str = "train",
        noise: float = 0.0,
        supervised: str = "answers",
    ):
        self.pack_tokens, self.ttt_steps = pack_tokens, ttt_steps
        self.seed, self.noise = seed, noise
        self._all = supervised == "all"
        self.layer_ids = list(layer_ids)
        self.shards = [Shard(files, layer_ids) for files in shards]
        self.left_out = excluded = quarantine or {}
        self.pieces = [
            piece
            for number, shard in enumerate(self.shards)
            for sample, its_side in enumerate(shard.sides)
            if its_side == side and sample not in excluded.get(number, ())
            for piece in self._cut(number, sample)
        ]
        if not self.pieces:
            samples = sum(len(shard.sides) for shard in self.shards)
            left_out = sum(len(numbers) for numbers in excluded.values())
            raise UserError(
                f"None of the {samples} samples in {len(shards)} shards ({left_out} quarantined) is on the {side} "
                "side with a supervised token; check the corpus, its masks and the held-out share."
            )
        self.hidden_size = self.shards[0].states.entry("last").shape[1]

    @property
    def cut_samples(self) -> int:
        """How many samples have supervised tokens that see less than all before them, for a pack is shorter."""
        return len({(piece.shard, piece.sample) for piece in self.pieces if piece.start > 0})

    def packs(self, epoch: int) -> list[list[Piece]]:
        """The packs of an epoch: the same for the same seed, epoch and data. First fit over shuffled pieces."""
        order = np.random.Generator(np.random.PCG64([self.seed, epoch])).permutation(len(self.pieces))
        shortest = min(len(piece) for piece in self.pieces)
        packs: list[list[Piece]] = []
        unfilled: list[tuple[int, list[Piece]]] = []
        for piece in (self.pieces[i] for i in order):
            slot = next((i for i, (room, _) in enumerate(unfilled) if room >= len(piece)), None)
            if slot is None:
                packs.append([])
                unfilled.append((self.pack_tokens, packs[-1]))
                slot = len(unfilled) - 1
            room, pack = unfilled.pop(slot)
            pack.append(piece)
            if room - len(piece) >= shortest:
                unfilled.insert(slot, (room - len(piece), pack))
            del unfilled[:-OPEN_PACKS]
        return packs

    def load(self, pack: Sequence[Piece], noise_seed: Sequence[int] = ()) -> Batch:
        """The arguments of Eagle3DraftModel.forward, each [1, pack_tokens, …]; document_ids is -1 on padding.

        States are float32 whatever their file's dtype. UserError: a state that is not finite, with its sample.
        """
        batch = self.read(pack)
        begin = 0
        for piece in pack:
            rows = slice(begin, begin := begin + len(piece))
            for name in STATES:
                if not torch.isfinite(batch[name][0, rows]).all():
                    raise UserError(
                        f"{self.shards[piece.shard].path} has hidden states that are not finite in sample {piece.sample}; "
                        "run validation, which quarantines it, or extract the shard again."
                    )
        return self.finished(batch, noise_seed)

    def read(self, pack: Sequence[Piece], dtype: torch.dtype = torch.float32, pinned: bool = False) -> Batch:
        """What `load` gives before its check and its noise, states in `dtype`, in pinned memory on request."""
        size, width = self.pack_tokens, len(self.layer_ids) * self.hidden_size
        batch = {
            "input_ids": torch.empty(1, size, dtype=torch.int64, pin_memory=pinned),
            "hidden_states": torch.empty(1, size, width, dtype=dtype, pin_memory=pinned),
            "verifier_last_hidden_states": torch.empty(1, size, self.hidden_size, dtype=dtype, pin_memory=pinned),
            "loss_mask": torch.empty(1, size, dtype=torch.bool, pin_memory=pinned),
            "position_ids": torch.empty(1, size, dtype=torch.int64, pin_memory=pinned),
            "document_ids": torch.empty(1, size, dtype=torch.int64, pin_memory=pinned),
        }
        begin = 0
        for document, piece in enumerate(pack):
            self._fill({name: value[0, begin : begin + len(piece)] for name, value in batch.items()}, document, piece)
            begin += len(piece)
        for name, value in batch.items():
            value[0, begin:] = -1 if name == "document_ids" else 0
        return batch

    def finished(self, batch: Batch, noise_seed: Sequence[int]) -> Batch:
        """A batch that was `read`, on whatever device it is, in float32 and with the noise of this seed."""
        states = {name: batch[name].float() for name in STATES}
        if self.noise:
            number = np.random.SeedSequence([self.seed, *noise_seed]).generate_state(1, np.uint64)[0]
            noisy = states["hidden_states"]
            generator = torch.Generator(noisy.device).manual_seed(int(number))
            noise = torch.rand(noisy.shape, generator=generator, device=noisy.device)
            noisy += noise.mul_(2).sub_(1).mul_(self.noise)
        return batch | states

    @property
    def stored_dtype(self) -> torch.dtype:
        """That of the states' files: bfloat16 where all are, else float32."""
        stored = {shard.states.entry("last").dtype for shard in self.shards}
        return torch.bfloat16 if stored == {"BF16"} else torch.float32

    def _fill(self, rows: Batch, document: int, piece: Piece) -> None:
        shard = self.shards[piece.shard]
        start, stop = piece.first_token + piece.start, piece.first_token + piece.stop
        rows["input_ids"].copy_(torch.from_numpy(shard.input_ids[start + 1 : stop + 1].astype(np.int64)))
        for i, name in enumerate(shard.state_names[:-1]):
            columns = slice(i * self.hidden_size, (i + 1) * self.hidden_size)
            shard.copy_state(name, start, stop, rows["hidden_states"][:, columns])
        shard.copy_state("last", start + 1, stop + 1, rows["verifier_last_hidden_states"])
        rows["loss_mask"].copy_(torch.from_numpy(self._mask(shard, start + 1, stop + 1)))
        rows["loss_mask"][: piece.unsupervised] = False
        rows["position_ids"].copy_(torch.arange(piece.start + 1, piece.stop + 1))
        rows["document_ids"].fill_(document)

    def _mask(self, shard: Shard, start: int, stop: int) -> np.ndarray:
        """BOOL: which of these tokens are supervised."""
        mask = shard.loss_mask[start:stop]
        return np.ones_like(mask) if self._all else mask

    def _cut(self, number: int, sample: int) -> Iterator[Piece]:
        """A sample's documents that have a supervised token."""
        shard = self.shards[number]
        first_token = int(shard.offsets[sample])
        length = int(shard.offsets[sample + 1]) - first_token - 1
        overlap = self.ttt_steps - 1
        for start in range(0, max(length - overlap, 1), self.pack_tokens - overlap):
            stop = min(start + self.pack_tokens, length)
            supervised = self._mask(shard, first_token + 1 + start + overlap, first_token + 1 + stop)
            if supervised.any():
                yield Piece(number, sample, first_token, start, stop, overlap, int(supervised.sum()))
