"""How does a running vLLM save its cache to snapshots, and go on from them?"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from typing import Any

import fsspec
from vllm import __version__
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

import hurray_arrow as ha
from hurray_arrow.engines import vllm
from hurray_arrow.identity import model_metadata

logger = logging.getLogger("vllm.hurray_arrow")
ERRORS = (ha.HurrayArrowError, OSError)


@dataclass
class Prefix:
    """Tokens ``start`` … ``stop`` of a request, in a snapshot and in blocks by group (0 where a block is gone)."""

    request_id: str
    whose: dict[str, Any]
    token_ids: list[int]
    url: str = ""
    sequence: int | None = 0
    start: int = 0
    stop: int = 0
    block_ids: tuple[list[int], ...] = ()


class Work(base.KVConnectorMetadata):
    """What the worker has to load and to save in one step."""

    def __init__(self) -> None:
        self.loads: list[Prefix] = []
        self.saves: list[Prefix] = []


class SnapshotConnector(base.KVConnectorBase_V1, base.SupportsHMA):
    """Save every prompt as a snapshot, and load the longest stored prefix of every prompt."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config = self._kv_transfer_config.kv_connector_extra_config
        self.layout, self.folder = config["layout"], config["folder"].rstrip("/")
        self.options = config.get("storage_options", {})
        self.model = model_metadata(vllm_config.model_config.hf_config, **config["model"])
        self.expect = {f"model.{name}": self.model[name] for name in ("name", "revision", "config_digest")}
        self.groups = kv_cache_config.kv_cache_groups
        self.specs = {name: group.kv_cache_spec for group in self.groups for name in group.layer_names}
        if vllm_config.parallel_config.world_size > 1:
            raise ValueError("every worker would have to save its own heads and layers")
        if any(type(spec) not in (FullAttentionSpec, SlidingWindowSpec) for spec in self.specs.values()):
            raise ValueError("only full attention and sliding windows")
        self.block_sizes = {number: group.kv_cache_spec.block_size for number, group in enumerate(self.groups)}
        self.snapshots: dict[str, ha.Snapshot | None] = {}
        self.prefixes: dict[str, Prefix] = {}
        self.unsaved: dict[str, Any] = {}
        self.work = Work()
        self.results = base.KVConnectorTransferResults()

    # In the scheduler: what is stored, and which blocks it goes into. -------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Find the longest stored prefix in whole blocks; the last token is left to be computed."""
        adapter = request.lora_request and request.lora_request.lora_name
        # Images have no token ids of their own: such a prompt is neither saved nor loaded.
        tokens = [] if request.mm_features else request.prompt_token_ids or []
        best = Prefix(request.request_id, {"tenant": request.cache_salt, "adapter": adapter}, tokens)
        block = max(self.block_sizes.values())
        for url, snapshot in self.open_snapshots():
            wanted = len(tokens) - 1
            # A shorter prefix is another question, because its own last window has to be stored.
            while (wanted := wanted // block * block) > best.stop:
                match = snapshot.match_prefix(tokens[:wanted], **best.whose)
                if match.num_tokens == wanted:
                    best.url, best.sequence, best.stop = url, match.sequence, wanted
                wanted = match.num_tokens
        self.prefixes[request.request_id] = best
        return max(best.stop - num_computed_tokens, 0), best.stop > num_computed_tokens

    def open_snapshots(self) -> list[tuple[str, ha.Snapshot]]:
        """List the folder and open what is new, of which only the ends are read."""
        files, path = fsspec.url_to_fs(self.folder, **self.options)
        for url in map(files.unstrip_protocol, files.glob(f"{path}/*.arrow")):
            if url not in self.snapshots:
                self.snapshots[url] = None
                try:
                    self.snapshots[url] = ha.open_snapshot(url, storage_options=self.options, expect=self.expect)
                except ERRORS as error:
                    logger.warning("%s is not used: %s", url, error)
        return [(url, snapshot) for url, snapshot in self.snapshots.items() if snapshot is not None]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Take the blocks that the prefix goes into."""
        prefix = self.prefixes[request.request_id]
        if num_external_tokens:
            prefix.start, prefix.block_ids = prefix.stop - num_external_tokens, blocks.get_block_ids()
            self.work.loads.append(prefix)
        # What was loaded need not be saved again.
        if prefix.stop + max(self.block_sizes.values()) < len(prefix.token_ids):
            self.unsaved[request.request_id] = request

    def build_connector_meta(self, scheduler_output: Any) -> Work:
        """Hand over what was found, and the prompts that this step completes."""
        work, self.work = self.work, Work()
        for name, count in scheduler_output.num_scheduled_tokens.items():
            request = self.unsaved.get(name)
            if request is not None and request.num_computed_tokens + count >= request.num_prompt_tokens:
                del self.unsaved[name]
                of = self.prefixes[name]
                key = json.dumps([self.model, of.whose, of.token_ids], sort_keys=True)
                url = f"{self.folder}/{hashlib.sha256(key.encode()).hexdigest()}.arrow"
                blocks = self._kv_cache_manager.get_block_ids(name)
                work.saves.append(Prefix(name, of.whose, of.token_ids, url, 0, 0, len(of.token_ids), blocks))
        return work

    def update_connector_output(self, connector_output: Any) -> None:
        """Never try a snapshot again that could not be loaded."""
        for name in connector_output.failed_recving & self.prefixes.keys():
            self.snapshots[self.prefixes[name].url] = None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Forget a request."""
        self.prefixes.pop(request.request_id, None)
        self.unsaved.pop(request.request_id, None)
        return False, None

    # In the worker: the pages. ----------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Take the engine's arrays, one per layer."""
        self.arrays = {name: kv_caches[name] for name in sorted(self.specs, key=extract_layer_index)}
        # A block of the tables may be several pages of the arrays.
        self.page_sizes = {n: kv_caches[group.layer_names[0]].shape[2] for n, group in enumerate(self.groups)}
        self.format = {"layout": self.layout, "head_dim": {name: spec.head_size for name, spec in self.specs.items()}}

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Write stored pages into the blocks; what cannot be loaded is reported, and computed or refused by vLLM."""
        for load in self._get_connector_metadata().loads:
            blocks = {
                number: ids[load.start // size : -(-load.stop // size)]
                for (number, size), ids in zip(self.block_sizes.items(), load.block_ids, strict=True)
            }
            try:
                with ha.open_snapshot(load.url, storage_options=self.options) as snapshot:
                    vllm.restore_into(
                        self.arrays,
                        snapshot.read_sequences(load.sequence, tokens=(0, load.stop)).tensors,
                        sequence=0,
                        tokens=range(load.start, load.stop),
                        block_ids=blocks,
                        page_size=self.page_sizes,
                        block_size=self.block_sizes,
                        null_block=0,
                        expect={**self.expect, **load.whose},
                        metadata=snapshot.metadata,
                        **self.format,
                    )
            except ERRORS as error:
                logger.warning("%s cannot be loaded: %s", load.url, error)
                self.results.failed_recving.add(load.request_id)
            self.results.finished_recving.add(load.request_id)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Tell the scheduler which requests are loaded, and which are not."""
        results, self.results = self.results, base.KVConnectorTransferResults()
        return results

    def wait_for_save(self) -> None:
        """Write the prompts that this step has completed; one that cannot be written is reported and lost."""
        for save in self._get_connector_metadata().saves:
            groups = []
            for number, (group, block_ids) in enumerate(zip(self.groups, save.block_ids, strict=True)):
                spec = group.kv_cache_spec
                window = spec.sliding_window if type(spec) is SlidingWindowSpec else None
                tables = vllm.cache_group(
                    group.layer_names,
                    block_tables=[block_ids],
                    seq_lens=[save.stop],
                    page_size=self.page_sizes[number],
                    block_size=spec.block_size,
                    kind="sliding_window" if window else "full",
                    window_tokens=window,
                    null_block=0 if window else None,
                )
                groups.append(tables)
            facts: dict[str, Any] = {name: [value] for name, value in save.whose.items()}
            try:
                tensors = vllm.export_cache(
                    self.arrays, groups=groups, token_ids=[save.token_ids], **self.format, **facts
                )
                about = vllm.metadata(tensors, layout=self.layout, version=__version__, groups=groups)
                about["model"] = self.model
                ha.write_snapshot(save.url, tensors, metadata=about, storage_options=self.options, overwrite=True)
            except ERRORS as error:
                logger.warning("%s cannot be saved: %s", save.url, error)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a request runs when all of its layers are loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to do: prompts are saved behind the step."""
