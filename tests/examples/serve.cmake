# SPDX-License-Identifier: BSD-3-Clause
# The model is that of train_gpt's tests.
set(prompts "${CMAKE_CURRENT_BINARY_DIR}/prompts.txt")
file(WRITE "${prompts}" "#pragma\n\nnamespace heed {\nat::Tensor \n")
set(no_prompts "${CMAKE_CURRENT_BINARY_DIR}/no_prompts.txt")
file(WRITE "${no_prompts}" "\n\n")
heed_test_example(NAME serve.help
  RUN $<TARGET_FILE:serve> --help
  PRINTS "\nChat templates are not applied\\.\n.*--at-once INT:from 1=16 +answers that are made at the same time")
heed_test_example(NAME serve.without_prompts
  RUN $<TARGET_FILE:serve>
  EXIT 106
  PRINTS "^--prompts is required\n")
heed_test_example(NAME serve.missing_prompts
  RUN $<TARGET_FILE:serve> --prompts missing.txt
  EXIT 1
  PRINTS "^serve: cannot read missing.txt: No such file or directory\n$")
heed_test_example(NAME serve.empty_prompts
  RUN $<TARGET_FILE:serve> --prompts "${no_prompts}"
  EXIT 1
  PRINTS "^serve: [^\n]*/no_prompts.txt has no prompts\n$")
heed_test_example(NAME serve.missing_model
  RUN $<TARGET_FILE:serve> --prompts "${prompts}" --model missing
  EXIT 1
  PRINTS "^serve: cannot read missing: it has neither model.json nor config.json\n$")
heed_test_refused(serve "--at-once: ${whole} 1 to 4096, not 0" --prompts "${prompts}" --at-once 0)
heed_test_refused(serve "--min-p: must be from 0 to 1, not 2" --prompts "${prompts}" --min-p 2)

set(served --model "${gpt}" --prompts "${prompts}" --greedy)
heed_test_example(NAME serve
  RUN $<TARGET_FILE:serve> ${served} --tokens 100
  PRINTS "^==> 1 <==\n#pragma.*\n\n==> 2 <==\nnamespace heed {.*\n\n==> 3 <==\nat::Tensor .*\n3 of 3 answers, 300 tokens in [0-9.]+ s: [0-9]+ tokens/s, 0 preemptions\n$")
heed_test_example(NAME serve.too_few_pages
  RUN $<TARGET_FILE:serve> ${served} --tokens 100 --pages 3
  EXIT 1
  PRINTS "^serve: prompt 1: it needs 4 pages of 16 tokens, and there are 3\nserve: prompt 2: it needs 4 pages.*\n0 of 3 answers, 0 tokens in [^\n]*\n$")
heed_test_example(NAME serve.page_size
  RUN $<TARGET_FILE:serve> ${served} --page-size 20
  EXIT 1
  PRINTS "^serve: PagedKVCache: page_size \\(20\\) must be a multiple of 16\n$")
heed_test_example(NAME serve.out_of_memory
  RUN $<TARGET_FILE:serve> ${served} --pages 10000000000
  EXIT 1
  PRINTS "^serve: out of memory; DefaultCPUAllocator: can't allocate memory")
set_tests_properties(examples.serve.out_of_memory PROPERTIES
  ENVIRONMENT_MODIFICATION "ASAN_OPTIONS=string_append::allocator_may_return_null=1")
add_test(NAME examples.serve.alike
  COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/check_serve.sh" $<TARGET_FILE:serve> $<TARGET_FILE:generate>
    "${gpt}" "${CMAKE_CURRENT_BINARY_DIR}/serve")
set_tests_properties(examples.serve.alike PROPERTIES LABELS examples TIMEOUT 300)
set_tests_properties(examples.serve examples.serve.too_few_pages examples.serve.page_size
  examples.serve.out_of_memory examples.serve.alike
  PROPERTIES FIXTURES_REQUIRED gpt)
