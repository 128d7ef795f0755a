"""From and to the memory of inference engines: vllm, flashinfer, sglang, transformers, tensorrt_llm, lmcache."""
