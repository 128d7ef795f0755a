"""A vLLM in this process, and what it says of its own cache: arrays, groups, block tables, lengths."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before vLLM is imported: everything in this process, on two threads, and nothing over the network.
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

import torch
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.model_executor.models.utils import extract_layer_index

BLOCK_SIZE = 32


def sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, detokenize=False, ignore_eos=True)


@dataclass
class Engine:
    llm: LLM

    @property
    def core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def runner(self) -> Any:
        return self.core.model_executor.driver_worker.worker.model_runner

    @property
    def manager(self) -> Any:
        return self.core.scheduler.kv_cache_manager

    @property
    def groups(self) -> list[Any]:
        return list(self.runner.kv_cache_config.kv_cache_groups)

    @property
    def arrays(self) -> dict[str, torch.Tensor]:
        layers = self.runner.compilation_config.static_forward_context
        names = [name for group in self.groups for name in group.layer_names]
        return {name: layers[name].kv_cache for name in sorted(names, key=extract_layer_index)}

    def add(self, request_id: str, token_ids: list[int], max_tokens: int) -> None:
        self.llm.llm_engine.add_request(request_id, {"prompt_token_ids": token_ids}, sampling(max_tokens))

    def running(self) -> dict[str, Any]:
        """The scheduler's requests by the ids that callers gave them."""
        return {name.rsplit("-", 1)[0]: request for name, request in self.core.scheduler.requests.items()}

    def finish(self) -> dict[str, list[int]]:
        """Step until every request is done; the tokens of each."""
        done: dict[str, list[int]] = {}
        while self.llm.llm_engine.has_unfinished_requests():
            for output in self.llm.llm_engine.step():
                if output.finished:
                    done[output.request_id] = list(output.outputs[0].token_ids)
        return done

    def generate(self, token_ids: list[int], max_tokens: int, **more: Any) -> Any:
        [output] = self.llm.generate([{"prompt_token_ids": token_ids, **more}], sampling(max_tokens), use_tqdm=False)
        return output


@contextlib.contextmanager
def engine(folder: Path, **options: Any) -> Iterator[Engine]:
    llm = LLM(
        str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=512,
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=64,
        async_scheduling=False,
        disable_log_stats=False,
        **options,
    )
    try:
        yield Engine(llm)
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()
