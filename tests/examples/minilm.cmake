# SPDX-License-Identifier: BSD-3-Clause
heed_test_example(NAME minilm.help
  RUN $<TARGET_FILE:minilm> --help
  PRINTS "--max-length INT:from 2=256 +longest sentence in tokens; longer ones are cut")
heed_test_example(NAME minilm.missing_model
  RUN $<TARGET_FILE:minilm> --model missing
  EXIT 1
  PRINTS "^minilm: cannot read missing/vocab.txt: No such file or directory\n$")

# With the model's own weights, where Python has them.
set(sentences "${examples}/data/sentences.txt")
string(ASCII 233 not_utf8)
file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/latin1.txt" "a cafe\n\na caf${not_utf8}\n")
file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/blank.txt" "\n \n")
set(most_similar
  "most similar pairs:\n0.772 +24  What is the capital of France\\?\n +25  Paris is the capital")
heed_test_example(NAME minilm.similar
  RUN $<TARGET_FILE:minilm> "${sentences}"
  PRINTS "${most_similar}.*75 sentences, 923 tokens: [0-9.]+ s, [0-9]+ sentences/s")
heed_test_example(NAME minilm.small_batches
  RUN $<TARGET_FILE:minilm> --batch-size 10 "${sentences}"
  PRINTS "${most_similar}.*75 sentences, 923 tokens: ")
heed_test_example(NAME minilm.missing_text
  RUN $<TARGET_FILE:minilm> missing.txt
  EXIT 1
  PRINTS "^minilm: cannot read missing.txt: No such file or directory\n$")
heed_test_example(NAME minilm.not_utf8
  RUN $<TARGET_FILE:minilm> "${CMAKE_CURRENT_BINARY_DIR}/latin1.txt"
  EXIT 1
  PRINTS "^minilm: .*latin1.txt, line 3: the text is not UTF-8\n$")
heed_test_example(NAME minilm.no_sentence
  RUN $<TARGET_FILE:minilm> "${CMAKE_CURRENT_BINARY_DIR}/blank.txt"
  EXIT 1
  PRINTS "^minilm: .*blank.txt holds no sentence\n$")
heed_test_example(NAME minilm.too_long
  RUN $<TARGET_FILE:minilm> --max-length 513 "${sentences}"
  EXIT 1
  PRINTS "^minilm: --max-length \\(513\\) must be at most 512, as the model's\n$")
foreach(test IN ITEMS similar small_batches missing_text not_utf8 no_sentence too_long)
  set_tests_properties(examples.minilm.${test} PROPERTIES
    SKIP_REGULAR_EXPRESSION "give the model's folder with --model")
endforeach()

# all-MiniLM-L6-v2 beside Python's transformers, where HEED_PYTHON has both; elsewhere the cases skip.
set(fixtures "${CMAKE_CURRENT_BINARY_DIR}/fixtures")
add_test(NAME examples.export_minilm
  COMMAND "${CMAKE_COMMAND}" "-DPYTHON=${python}" "-DOUT=${fixtures}"
    "-DEXPORT=${CMAKE_CURRENT_SOURCE_DIR}/export_minilm.py"
    "-DTEXT=${sentences}"
    -P "${CMAKE_CURRENT_SOURCE_DIR}/export_minilm.cmake")
set_tests_properties(examples.export_minilm PROPERTIES
  FIXTURES_SETUP heed_minilm LABELS examples PROCESSORS 2 TIMEOUT 300)

add_executable(minilm_test minilm_test.cpp ../parity/fixture.cpp)
target_compile_definitions(minilm_test PRIVATE HEED_PARITY_FIXTURES="${fixtures}")
target_link_libraries(minilm_test
  PRIVATE heed_examples_sentences heed_test_support GTest::gmock)
heed_precompile(minilm_test)
gtest_discover_tests(minilm_test
  DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
  PROPERTIES TIMEOUT 300 LABELS examples FIXTURES_REQUIRED heed_minilm PROCESSORS 2)
