# SPDX-License-Identifier: BSD-3-Clause
# The guides and the comments of the headers show code that is compiled and runs, and links lead
# somewhere.
# Folders for runs of the guide, which save files.
set(guide_folder "${CMAKE_CURRENT_BINARY_DIR}/guide_run")
set(guide_files "${CMAKE_CURRENT_BINARY_DIR}/guide_files")
file(MAKE_DIRECTORY "${guide_folder}" "${guide_files}")
heed_test_example(NAME guide
  RUN $<TARGET_FILE:guide>
  PRINTS "attend is the five lines: true
.*MultiHeadAttention: x dim 2 \\(64\\) must equal emb_dim \\(128\\); x \\[3, 50, 64\\]
tokens in the cache: 12
a causal mask is causal\\(true\\): true
from_hidden: true
mask_from_additive: true
sees nothing: 0
a mask of some batches: true
BlockMask \\[1, 1, 128, 128\\]: 0 full, 3 partial and 1 hidden tiles of 64 x 64, sparsity 25.0 %
as by a tensor: true
.*top_left is is_causal: true
.*padded as alone: true
.*like nn::MultiheadAttention: true, averaged over heads: true
like scaled_dot_product_attention: true
top left: true
add_zero_attn: true
.*unexpected: fc_out.bias
7 loaded, 1 unexpected
of a part: 8
of each tensor: 13040 bytes
maps: \\[2, 4, 10, 10\\]
renamed: 8
packed: 2
\\[192, 64\\]
accuracy above 0.95: true
perplexity below 2: true
resumed: true
balanced: true
checkpointed: true
by hand: true
gradients: float
saved scale: true
a window: block
one query: decode
packed \\[10, 8, 64\\]
scores of a step \\[1, 2, 100\\]
pages of 50 answers: 60
answered 10 tokens
answered 50 tokens
answered 60 tokens
answered 20 tokens
with int8 \\[1, 5, 100\\]
kept [1-4] of 4 tokens
own pages \\[4, 8, 64\\]
packed on a device \\[10, 8, 64\\]
attend takes block
gated \\[2, 10, 64\\]
block
.*own layer: \\[2, 10, 64\\]
own norm: \\[64\\] \\[2, 10, 64\\]
experts: 8
.*8 loaded, 0 missing")
if(TARGET guide_distributed AND python)
  heed_test_example(NAME guide.distributed
    RUN "${python}" -m torch.distributed.run --no-python --standalone --nproc-per-node 4
        $<TARGET_FILE:guide_distributed>
    PRINTS "data parallel: the same parameters true
unequal batches: the same parameters true
sharded optimizer: the same parameters true
parallel linear: the same output true
tensor parallel: 25 of 100 scores
21 parameters are split
scaled gradients: step true
linear cross entropy: the same loss true
own positions true, ring_attend is attend true
shared sequence: 4 of 16 tokens
expert parallel: the same router true
mesh: 2 replicas, 2 parts of the weights
all together: 8 of 16 tokens, 50 of 100 scores")
  set_tests_properties(examples.guide.distributed PROPERTIES
    WORKING_DIRECTORY "${guide_folder}" ENVIRONMENT OMP_NUM_THREADS=1 PROCESSORS 2
    SKIP_REGULAR_EXPRESSION "No module named")
endif()
heed_test_example(NAME guide.python_files
  RUN "${python}" "${examples}/guide/checkpoint.py"
  WRITES "${guide_files}/model.safetensors" "${guide_files}/checkpoint.pt"
  PRINTS "^$")
heed_test_example(NAME guide.python_models
  RUN "${python}" "${examples}/guide/porting.py"
  WRITES "${guide_files}/gpt_output.safetensors"
  PRINTS "^$")
# Folders with the names that the header's example takes.
set(pretrained "${PROJECT_BINARY_DIR}/tests/parity/fixtures/pretrained")
file(CREATE_LINK "${pretrained}/llama-plain" "${guide_files}/Llama-3.2-1B" SYMBOLIC)
file(CREATE_LINK "${pretrained}/bert-plain" "${guide_files}/all-MiniLM-L6-v2" SYMBOLIC)
file(CREATE_LINK "${pretrained}/heads/bert-plain-sequence" "${guide_files}/ms-marco-MiniLM-L6-v2" SYMBOLIC)
file(CREATE_LINK "${pretrained}/heads/qwen3-plain-states" "${guide_files}/Qwen3-Embedding-0.6B" SYMBOLIC)
file(CREATE_LINK "${pretrained}/towers/clip-plain" "${guide_files}/clip-vit-base-patch32" SYMBOLIC)
file(CREATE_LINK "${pretrained}/heads/bert-masked_lm-token" "${guide_files}/bert-base-NER" SYMBOLIC)
file(CREATE_LINK "${pretrained}/heads/bert-plain-masked" "${guide_files}/bert-base-uncased" SYMBOLIC)
heed_test_example(NAME guide.python
  RUN $<TARGET_FILE:guide> "${pretrained}/llama-plain"
  PRINTS "encoder: true
decoder: true
step by step: true
gpt: true
scores \\[1, 3, 199\\], vectors BFloat16
rounded \\[1, 9, 199\\]
packed, the same: true
relevance \\[1, 1\\], embeddings \\[2, 64\\]
labels \\[2, 3\\], guesses \\[2, 3\\]
scores of images and texts \\[4, 2\\]
([0-9]+ )*
learns: true
the same: true")
set_tests_properties(examples.guide PROPERTIES WORKING_DIRECTORY "${guide_folder}")
set_tests_properties(examples.guide.python_files examples.guide.python_models examples.guide.python
  PROPERTIES
  WORKING_DIRECTORY "${guide_files}")
add_dependencies(machine_tests guide)
set_tests_properties(examples.guide examples.guide.python_files examples.guide.python_models examples.guide.python
  PROPERTIES LABELS "examples;machine")
set_tests_properties(examples.guide.python_files examples.guide.python_models PROPERTIES
  FIXTURES_SETUP guide_files SKIP_REGULAR_EXPRESSION "cannot import torch")
set_tests_properties(examples.guide.python PROPERTIES
  FIXTURES_REQUIRED "guide_files;heed_parity" SKIP_REGULAR_EXPRESSION "must name an existing file;is missing")
if(TARGET heed_ops)
  include("${PROJECT_SOURCE_DIR}/cmake/ops_python.cmake")
  heed_add_ops_test(examples.guide.python_operators "${examples}/guide/operators.py")
endif()
if(python)
  file(GLOB guides CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/*.md" "${PROJECT_SOURCE_DIR}/docs/*.md"
    "${PROJECT_SOURCE_DIR}/include/heed/*.h" "${PROJECT_SOURCE_DIR}/include/heed/distributed/*.h")
  get_target_property(compiled guide SOURCES)
  add_test(NAME examples.documentation
    COMMAND "${python}" "${PROJECT_SOURCE_DIR}/tests/docs/check_docs.py" ${guides}
      --compiled quickstart.cpp run_exported.cpp guide/distributed.cpp guide/checkpoint.py
      guide/operators.py guide/porting.py exported/export_language_model.py
      recipes/images.h recipes/models.h recipes/originals.py recipes/positions.h recipes/training.h
      recipes/weights.h ../tests/examples/recipes.py ../tests/examples/recipes_test.cpp
      ../scripts/python/heed_transformers.py ${compiled}
    WORKING_DIRECTORY "${examples}")
  set_tests_properties(examples.documentation PROPERTIES LABELS examples)
endif()
