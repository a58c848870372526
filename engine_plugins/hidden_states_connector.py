"""vLLM's connector for hidden states with a copy that needs no CUDA.

It runs inside vLLM's environment and imports nothing of this project; `eyas engine-command --cpu` names it to the server.
"""

import os

from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
)


class _Done:
    """Stands for the event of a copy that is over."""

    def query(self) -> bool:
        return True


class HiddenStatesConnector(ExampleHiddenStatesConnector):
    """Writes `<shared_storage_path>/<request>.safetensors` at once, in the engine's thread: `hidden_states` [T, S, H] in the
    engine's dtype, `token_ids` I64 [T].

    vLLM's own copies through pinned memory and a stream of CUDA's, which a CPU has not. The lock beside the file, which vLLM
    takes before it answers, is let go once the file is whole.
    """

    def _submit_async_write(self, pending: PendingSave) -> None:
        if not self._is_tp_rank_zero:
            return
        blocks = self._kv_cache[pending.block_ids]  # [blocks, S, block size, H]
        states = blocks.transpose(1, 2).flatten(0, 1)[: len(pending.token_ids)]
        lock = self._lock_fds.pop(pending.req_id, None)
        os.makedirs(os.path.dirname(pending.filename), exist_ok=True)
        try:
            save_file({"hidden_states": states.contiguous().cpu(), "token_ids": pending.token_ids}, pending.filename)
        finally:
            if lock is not None:
                os.close(lock)
        self._req_copy_events[pending.req_id] = _Done()
