# SPDX-License-Identifier: BSD-3-Clause
# A language model that is small enough to train here, on heed's headers.
heed_test_example(NAME train_gpt.help
  RUN $<TARGET_FILE:train_gpt> --help
  PRINTS "--resume +continue the run in --out")
heed_test_example(NAME train_gpt.missing_text
  RUN $<TARGET_FILE:train_gpt> --text missing.txt --out missing
  EXIT 1
  PRINTS "^train_gpt: cannot read .*missing.txt: No such file or directory\n$")
heed_test_example(NAME train_gpt.unwritable_output
  RUN $<TARGET_FILE:train_gpt> --out "${CMAKE_CURRENT_LIST_FILE}/gpt"
  EXIT 1
  PRINTS "^train_gpt: cannot write .*train_gpt.cmake/gpt: Not a directory\n$")
heed_test_example(NAME train_gpt.nothing_to_resume
  RUN $<TARGET_FILE:train_gpt> --out missing --resume --text missing.txt
  EXIT 1
  PRINTS "missing holds no run yet: a new one begins\n")
set(old_run "${CMAKE_CURRENT_BINARY_DIR}/old_run")
file(WRITE "${old_run}/checkpoint.pt" "PK")
heed_test_example(NAME train_gpt.old_checkpoint
  RUN $<TARGET_FILE:train_gpt> --out "${old_run}" --resume
  EXIT 1
  PRINTS "^train_gpt: .*/old_run/checkpoint.pt is of heed 0.2, and could run code when it is read: end this run with heed 0.2, or begin a new one with another --out\n$")
heed_test_example(NAME train_gpt.keeps_an_old_run
  RUN $<TARGET_FILE:train_gpt> --out "${old_run}"
  EXIT 1
  PRINTS "old_run holds a run already: --resume goes on with it, --out takes another\n$")
heed_test_example(NAME generate.help
  RUN $<TARGET_FILE:generate> --help
  PRINTS "\nChat templates are not applied\\.\n.*--stop TEXT.*--raw .*--repetition-penalty FLOAT:above 0 +above 1: ")
heed_test_example(NAME generate.missing_model
  RUN $<TARGET_FILE:generate> --model missing
  EXIT 1
  PRINTS "^generate: cannot read missing: it has neither model.json nor config.json\n$")
heed_test_example(NAME generate.negative_temperature
  RUN $<TARGET_FILE:generate> --temperature -1
  EXIT 105
  PRINTS "--temperature: must be above 0, not -1\n")

# heed_test_refused(<program> <text> <argument>...): it is said before anything is read or computed.
set(refusals 0)
function(heed_test_refused program text)
  math(EXPR refusals "${refusals} + 1")
  set(refusals ${refusals} PARENT_SCOPE)
  heed_test_example(NAME ${program}.refused_${refusals}
    RUN $<TARGET_FILE:${program}> ${ARGN}
    EXIT 105
    PRINTS "${text}\n")
endfunction()
set(whole "must be a whole number from")
foreach(number IN ITEMS 0 -5 1e3 1.5 nan 99999999999999999999 123456789012345678901234567890)
  heed_test_refused(train_gpt "--layers: ${whole} 1 to 1000000000000000, not ${number}" --layers ${number})
endforeach()
foreach(number IN ITEMS -1 123456789012345678901234567890 1.5)
  heed_test_refused(generate "--seed: ${whole} 0 to 18446744073709551615, not ${number}" --seed ${number})
endforeach()
foreach(number IN ITEMS 0 -1 nan inf 1e999 1e39 word)
  heed_test_refused(train_gpt "--learning-rate: must be above 0 and at most 1e30, not ${number}" --learning-rate ${number})
endforeach()
foreach(number IN ITEMS 0 -1 nan inf 1e999 word)
  heed_test_refused(generate "--temperature: must be above 0, not ${number}" --temperature ${number})
endforeach()
heed_test_refused(generate "--beams: ${whole} 1 to 1000000000000000, not 0" --beams 0)
heed_test_refused(generate "--length-penalty: must be finite, not nan" --length-penalty nan)
foreach(number IN ITEMS nan 2 -0.1)
  heed_test_refused(generate "--top-p: must be from 0 to 1, not ${number}" --top-p ${number})
  heed_test_refused(train_gpt "--dropout: must be from 0 to 1, not ${number}" --dropout ${number})
endforeach()
foreach(number IN ITEMS 0 -1 nan inf word)
  heed_test_refused(generate "--repetition-penalty: must be above 0, not ${number}" --repetition-penalty ${number})
endforeach()
foreach(option IN ITEMS --presence-penalty --frequency-penalty)
  foreach(number IN ITEMS nan -inf word)
    heed_test_refused(generate "${option}: must be finite, not ${number}" ${option}=${number})
  endforeach()
endforeach()
foreach(option IN ITEMS --no-repeat-ngram-size --min-new-tokens)
  foreach(number IN ITEMS -1 1.5 nan)
    heed_test_refused(generate "${option}: ${whole} 0 to 1000000000000000, not ${number}" ${option} ${number})
  endforeach()
endforeach()
heed_test_refused(train_gpt "--weight-decay: must be at least 0, not -inf" --weight-decay=-inf)
foreach(case IN ITEMS "train_digits --save" "train_gpt --out" "train_gpt --text" "minilm --model" "generate --stop")
  separate_arguments(case)
  list(GET case 0 program)
  list(GET case 1 option)
  heed_test_example(NAME ${program}.empty${option}
    RUN sh -c "'$<TARGET_FILE:${program}>' ${option} ''"
    EXIT 105
    PRINTS "${option}: must not be empty\n")
endforeach()
heed_test_example(NAME train_gpt.too_large
  RUN $<TARGET_FILE:train_gpt> --out missing --layers 1000000000
  EXIT 1
  PRINTS "^train_gpt: 1000000000 layers of width 192 need [0-9.e+]+ GiB of memory; this machine has [0-9.e+]+ GiB\n$")
heed_test_example(NAME train_digits.folder
  RUN $<TARGET_FILE:train_digits> --data "${CMAKE_CURRENT_BINARY_DIR}"
  EXIT 1
  PRINTS "^train_digits: cannot read [^\n]*: Is a directory \\([^\n]*\\)\n$")

set(gpt "${CMAKE_CURRENT_BINARY_DIR}/gpt")
set(small_layers --text "${PROJECT_SOURCE_DIR}/include" --layers 2 --heads 4 --groups 2
  --context 64 --batch-size 8 --dropout 0.1 --seed 7 --evaluate-every 50)
set(small_gpt ${small_layers} --width 64)
# An untrained model needs 8 bits, one that knows how often each letter is about 5.
heed_test_example(NAME train_gpt.learns
  RUN $<TARGET_FILE:train_gpt> --out "${gpt}" ${small_gpt} --steps 300
  WRITES "${gpt}/checkpoint.safetensors" "${gpt}/model.json" "${gpt}/model.safetensors"
         "${gpt}/loss.csv" "${gpt}/loss.png"
  PRINTS "held out: ([12]\\.[0-9]+|3\\.[0-6][0-9]*) bits per character .*; a 5-gram model: ")
heed_test_example(NAME train_gpt.keeps_a_run
  RUN $<TARGET_FILE:train_gpt> --out "${gpt}"
  EXIT 1
  PRINTS "gpt holds a run already: --resume goes on with it, --out takes another\n$")
heed_test_example(NAME train_gpt.other_options
  RUN $<TARGET_FILE:train_gpt> --out "${gpt}" --resume --width 128
  EXIT 1
  PRINTS "^train_gpt: --width \\(128\\) must be 64, as when the run in .*gpt began\n$")
heed_test_example(NAME generate
  RUN $<TARGET_FILE:generate> --model "${gpt}" --prompt "#pragma" --greedy --count 100
  PRINTS "^#pragma.*\n100 tokens in [0-9.]+ s: [0-9]+ tokens/s\n$")

# All its layers have multiples of 32 inputs, the smallest group of int4 weights.
set(wide_gpt "${CMAKE_CURRENT_BINARY_DIR}/wide_gpt")
heed_test_example(NAME train_gpt.wide
  RUN $<TARGET_FILE:train_gpt> --out "${wide_gpt}" ${small_layers} --width 96 --steps 300
  WRITES "${wide_gpt}/checkpoint.safetensors" "${wide_gpt}/model.json" "${wide_gpt}/model.safetensors"
         "${wide_gpt}/loss.csv" "${wide_gpt}/loss.png"
  PRINTS "held out: ")
set_tests_properties(examples.train_gpt.wide PROPERTIES FIXTURES_SETUP wide_gpt)
set(trained "HEED_TRAINED_GPT=${wide_gpt};HEED_TRAINED_TEXT=${PROJECT_SOURCE_DIR}/include")
add_test(NAME examples.perplexity COMMAND language_test --gtest_filter=Perplexity.*)
# Where it is the machine's, this set multiplies bytes; others round no activations.
add_test(NAME examples.perplexity_of_bytes COMMAND language_test --gtest_filter=Perplexity.StaysWithPackedWeights)
set_tests_properties(examples.perplexity examples.perplexity_of_bytes PROPERTIES
  LABELS examples TIMEOUT 120 FIXTURES_REQUIRED wide_gpt ENVIRONMENT "${trained}")
set_tests_properties(examples.perplexity_of_bytes PROPERTIES
  ENVIRONMENT "${trained};HEED_CPU_CAPABILITY=avx512_bf16")

# Stopped and resumed, a run writes the same bytes.
set(resumed_gpt "${CMAKE_CURRENT_BINARY_DIR}/resumed_gpt")
heed_test_example(NAME train_gpt.stopped
  RUN $<TARGET_FILE:train_gpt> --out "${resumed_gpt}" ${small_gpt} --steps 300 --stop-after 120
  WRITES "${resumed_gpt}/checkpoint.safetensors"
  PRINTS "stopped after step 120 of 300; go on with: train_gpt --out .*/resumed_gpt --resume\n$")
heed_test_example(NAME train_gpt.resumed
  RUN $<TARGET_FILE:train_gpt> --out "${resumed_gpt}" --resume
  WRITES "${resumed_gpt}/model.safetensors"
  PRINTS "held out: ")
foreach(file IN ITEMS model.safetensors loss.csv)
  heed_test_example(NAME train_gpt.resumed.${file}
    RUN "${CMAKE_COMMAND}" -E compare_files "${gpt}/${file}" "${resumed_gpt}/${file}"
    PRINTS "^$")
  set_tests_properties(examples.train_gpt.resumed.${file} PROPERTIES
    FIXTURES_REQUIRED "gpt;resumed_gpt")
endforeach()
set_tests_properties(examples.train_gpt.learns PROPERTIES FIXTURES_SETUP gpt PROCESSORS 2)
set_tests_properties(
  examples.train_gpt.keeps_a_run examples.train_gpt.other_options examples.generate
  PROPERTIES FIXTURES_REQUIRED gpt)
set_tests_properties(examples.train_gpt.stopped PROPERTIES
  FIXTURES_SETUP stopped_gpt PROCESSORS 2)
set_tests_properties(examples.train_gpt.resumed PROPERTIES
  FIXTURES_REQUIRED stopped_gpt FIXTURES_SETUP resumed_gpt PROCESSORS 2)

heed_test_example(NAME train_gpt.out_of_memory
  RUN $<TARGET_FILE:train_gpt> --out "${CMAKE_CURRENT_BINARY_DIR}/no_gpt" --batch-size 100000000000000
  EXIT 1
  PRINTS "train_gpt: out of memory; DefaultCPUAllocator: can't allocate memory: you tried to allocate 800000000000000 bytes\\.")
set_tests_properties(examples.train_gpt.out_of_memory PROPERTIES
  ENVIRONMENT_MODIFICATION "ASAN_OPTIONS=string_append::allocator_may_return_null=1")
# scripts/faults.sh kills it more often.
add_test(NAME examples.train_gpt.faults
  COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/check_faults.sh" $<TARGET_FILE:train_gpt>
    "${CMAKE_CURRENT_BINARY_DIR}/faults" 5)
set_tests_properties(examples.train_gpt.faults PROPERTIES LABELS examples TIMEOUT 300)
if(TARGET heed_distributed AND python)
  heed_test_example(NAME train_gpt.team
    RUN "${CMAKE_CURRENT_SOURCE_DIR}/check_team.sh" $<TARGET_FILE:train_gpt> "${python}"
        "${CMAKE_CURRENT_BINARY_DIR}/team"
    PRINTS "all teams train alike")
  set_tests_properties(examples.train_gpt.team PROPERTIES
    TIMEOUT 300 PROCESSORS 2 LABELS "examples;distributed"
    SKIP_REGULAR_EXPRESSION "No module named")
endif()
if(TARGET heed_distributed)
  add_test(NAME examples.train_gpt.distributed_faults
    COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/check_distributed_faults.sh" $<TARGET_FILE:train_gpt>
      "${CMAKE_CURRENT_BINARY_DIR}/distributed_faults" 3 ${python})
  set_tests_properties(examples.train_gpt.distributed_faults PROPERTIES
    LABELS "examples;distributed" TIMEOUT 600 PROCESSORS 2)
endif()
