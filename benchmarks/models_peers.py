#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A peer of models.py: runs what heed_models runs, by another engine.

    models_peers.py ENGINE PATH THREADS FORMAT      PATH: what models_files.py wrote

Answers the same lines as heed_models with the same numbers; see models.cpp.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from models_files import CONTEXT, word
from turns import answer_lines, throughput

DECODED, PROMPT_IN_BATCH = 64, 64  # those of models.cpp, too
Prompts = list[list[int]]  # of one length


class Engine:
    """Reads prompts, and then decodes one token of each sequence at a time, by argmax."""

    module: str  # what it imports
    vocabulary: int

    def begin(self, prompts: Prompts, room: int = 1) -> list[int]:
        """Forgets everything, reads the prompts and returns the tokens that follow, with room for so many."""
        raise NotImplementedError

    def decode(self) -> None:
        """One more token of each sequence."""
        raise NotImplementedError

    def decode_seconds(self, prompts: Prompts) -> float:
        self.begin(prompts, 1 + DECODED)
        start = time.perf_counter()
        for _ in range(DECODED):
            self.decode()
        return time.perf_counter() - start

    def prompt(self, length: int, sequence: int = 0) -> list[int]:
        return [(7919 * i + 13 + 104729 * sequence) % self.vocabulary for i in range(length)]

    def answer(self, work: str, count: int) -> float:
        if work == "batch":
            prompts = [self.prompt(PROMPT_IN_BATCH, n) for n in range(count)]
            return count * DECODED / self.decode_seconds(prompts)
        prompts = [self.prompt(count)]
        if work == "decode":
            return DECODED / self.decode_seconds(prompts)
        if work == "token":
            return self.begin(prompts)[0]

        def step() -> int:
            self.begin(prompts)
            return count

        return throughput(step)


class OpenVINO(Engine):
    """Its pipeline for servers, whose steps can be timed: a step reads all new prompts."""

    module = "openvino_genai"

    def __init__(self, path: str, threads: int, kind: str) -> None:
        import numpy
        import openvino
        import openvino_genai

        self.tensor = lambda tokens: openvino.Tensor(numpy.array([tokens], numpy.int64))
        self.config = openvino_genai.GenerationConfig
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        scheduler.max_num_batched_tokens = CONTEXT
        scheduler.enable_prefix_caching = False
        dtype = "f32" if kind == "float32" else "bf16"
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(path, scheduler, "CPU", {
            "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": dtype, "KV_CACHE_PRECISION": dtype})
        self.requests = 0

    def begin(self, prompts: Prompts, room: int = 1) -> list[int]:
        config = self.config()
        config.max_new_tokens, config.ignore_eos = room, True
        self.handles = []  # without which requests are dropped
        for prompt in prompts:
            self.handles.append(self.pipeline.add_request(self.requests, self.tensor(prompt), config))
            self.requests += 1
        self.pipeline.step()
        return [next(iter(handle.read().values())).generated_ids[-1] for handle in self.handles]

    def decode(self) -> None:
        self.pipeline.step()

    def decode_seconds(self, prompts: Prompts) -> float:
        seconds = super().decode_seconds(prompts)
        assert all(len(handle.read_all()[0].generated_ids) == DECODED for handle in self.handles)
        return seconds


class LlamaCpp(Engine):
    module = "llama_cpp"

    def __init__(self, path: str, threads: int, kind: str) -> None:
        import llama_cpp
        import numpy

        self.library, self.array, self.threads = llama_cpp, numpy.ctypeslib.as_array, threads
        self.cache_type = llama_cpp.GGML_TYPE_F32 if kind == "float32" else llama_cpp.GGML_TYPE_F16
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            sys.exit(f"llama.cpp could not load {path}")
        self.sizes, self.context = None, None

    def make_context(self, sequences: int, tokens: int) -> None:
        library = self.library
        if self.context:
            library.llama_free(self.context)
        params = library.llama_context_default_params()
        params.n_ctx = params.n_batch = sequences * tokens
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = self.threads
        params.type_k = params.type_v = self.cache_type
        self.context = library.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit("llama.cpp could not make a context")
        self.sizes = sequences, tokens

    def read(self, tokens: Prompts, position: int) -> None:
        """Reads tokens of each sequence from a position on."""
        count = sum(map(len, tokens))
        batch = self.library.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        lasts, row = [], 0
        for sequence, row_tokens in enumerate(tokens):
            for i, token in enumerate(row_tokens):
                batch.token[row], batch.pos[row], batch.n_seq_id[row] = token, position + i, 1
                batch.seq_id[row][0], batch.logits[row] = sequence, i == len(row_tokens) - 1
                row += 1
            lasts.append(row - 1)
        if self.library.llama_decode(self.context, batch) != 0:
            sys.exit("llama.cpp could not decode")
        vocabulary = (self.vocabulary,)
        self.next = [[int(self.array(self.library.llama_get_logits_ith(self.context, last), vocabulary).argmax())]
                     for last in lasts]
        self.library.llama_batch_free(batch)
        self.position = position + len(tokens[0])

    def begin(self, prompts: Prompts, room: int = 1) -> list[int]:
        sizes = len(prompts), len(prompts[0]) + 1 + DECODED
        if sizes != self.sizes:
            self.make_context(*sizes)
        self.library.llama_memory_clear(self.library.llama_get_memory(self.context), False)
        self.read(prompts, 0)
        return [tokens[0] for tokens in self.next]

    def decode(self) -> None:
        self.read(self.next, self.position)


class ONNXRuntime(Engine):
    module = "onnxruntime_genai"

    def __init__(self, path: str, threads: int, kind: str) -> None:
        import numpy
        import onnxruntime_genai

        settings = Path(path, "genai_config.json")
        config = json.loads(settings.read_text())
        config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
        settings.write_text(json.dumps(config, indent=2))
        self.library, self.array = onnxruntime_genai, lambda prompts: numpy.array(prompts, numpy.int32)
        self.model = onnxruntime_genai.Model(path)

    def begin(self, prompts: Prompts, room: int = 1) -> list[int]:
        params = self.library.GeneratorParams(self.model)
        length = len(prompts[0]) + room
        params.set_search_options(batch_size=len(prompts), do_sample=False, min_length=length, max_length=length)
        self.generator = self.library.Generator(self.model, params)
        self.generator.append_tokens(self.array(prompts))
        self.decode()
        return list(self.generator.get_next_tokens())

    def decode(self) -> None:
        self.generator.generate_next_token()


class CTranslate2(Engine):
    module = "ctranslate2"

    def __init__(self, path: str, threads: int, kind: str) -> None:
        import ctranslate2

        self.generator = ctranslate2.Generator(path, "cpu", compute_type=kind, intra_threads=threads)

    def generate(self, prompts: Prompts, room: int, callback: Callable | None = None) -> list[int]:
        results = self.generator.generate_batch(
            [[word(token) for token in prompt] for prompt in prompts], max_length=room, min_length=room, end_token=[],
            sampling_topk=1, include_prompt_in_result=False, callback=callback)
        return [result.sequences_ids[0][0] for result in results]

    def begin(self, prompts: Prompts, room: int = 1) -> list[int]:
        return self.generate(prompts, 1)

    def decode_seconds(self, prompts: Prompts) -> float:
        """From the first tokens to the last ones, which it tells as it makes them."""
        times = []
        self.generate(prompts, 1 + DECODED, lambda _: times.append(time.perf_counter()))
        return times[-1] - times[len(prompts) - 1]


class VLLM(Engine):
    """In one process, and without scheduling ahead, so that its steps can be timed."""

    module = "vllm"

    def __init__(self, path: str, threads: int, kind: str) -> None:
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
                       "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}", "HF_HUB_OFFLINE": "1"}
        from vllm import LLM, SamplingParams

        self.parameters = SamplingParams
        self.engine = LLM(path, skip_tokenizer_init=True, dtype=kind, enable_prefix_caching=False,
                          max_num_batched_tokens=CONTEXT, max_num_seqs=64, async_scheduling=False).llm_engine
        self.requests = 0

    def begin(self, prompts: Prompts, room: int = 1) -> list[int]:
        params = self.parameters(temperature=0, max_tokens=room, ignore_eos=True, detokenize=False)
        for prompt in prompts:
            self.engine.add_request(str(self.requests), {"prompt_token_ids": prompt}, params)
            self.requests += 1
        return [output.outputs[0].token_ids[-1] for output in self.engine.step()]

    def decode(self) -> None:
        self.engine.step()

    def decode_seconds(self, prompts: Prompts) -> float:
        seconds = super().decode_seconds(prompts)
        assert not self.engine.has_unfinished_requests()
        return seconds


class Transformers(Engine):
    """LlamaForCausalLM with SDPA, eager."""

    module = "transformers.models.llama.modeling_llama"

    def __init__(self, path: str, threads: int, kind: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, DynamicCache

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, kind)).eval()
        self.make_cache, self.tensor = DynamicCache, torch.tensor

    def begin(self, prompts: Prompts, room: int = 1) -> list[int]:
        self.cache, self.tokens = self.make_cache(config=self.model.config), self.tensor(prompts)
        self.decode()
        return self.tokens[:, 0].tolist()

    def decode(self) -> None:
        scores = self.model(self.tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits
        self.tokens = scores.argmax(-1)


ENGINES = {"OpenVINO GenAI": OpenVINO, "llama.cpp": LlamaCpp, "ONNX Runtime GenAI": ONNXRuntime,
           "CTranslate2": CTranslate2, "vLLM": VLLM, "transformers": Transformers}


def main() -> None:
    engine, path, threads, kind = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = threads
    folder = Path(path).with_name(Path(path).name.partition(".")[0])

    def load() -> Callable[[str, int], float]:
        model = ENGINES[engine](path, int(threads), kind)
        model.vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        model.begin([model.prompt(1)])
        return model.answer

    answer_lines(ENGINES[engine].module, load)


if __name__ == "__main__":
    main()
