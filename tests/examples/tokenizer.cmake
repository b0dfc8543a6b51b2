# SPDX-License-Identifier: BSD-3-Clause
# Beside Python's tokenizers, where HEED_PYTHON has them; elsewhere these cases skip.
set(tokenizers "${CMAKE_CURRENT_BINARY_DIR}/tokenizers")
add_test(NAME examples.export_tokenizers
  COMMAND "${CMAKE_COMMAND}" "-DPYTHON=${python}" "-DOUT=${tokenizers}"
    "-DEXPORT=${CMAKE_CURRENT_SOURCE_DIR}/export_tokenizers.py"
    -P "${CMAKE_CURRENT_SOURCE_DIR}/export_tokenizers.cmake")
set_tests_properties(examples.export_tokenizers PROPERTIES
  FIXTURES_SETUP heed_tokenizers LABELS examples TIMEOUT 300)
# Beside transformers, of models that its Python trains with sentencepiece.
set(sentence_pieces "${CMAKE_CURRENT_BINARY_DIR}/sentence_pieces")
add_test(NAME examples.export_sentence_pieces
  COMMAND "${CMAKE_COMMAND}" "-DPYTHON=${python}" "-DOUT=${sentence_pieces}"
    "-DEXPORT=${CMAKE_CURRENT_SOURCE_DIR}/export_sentence_pieces.py"
    -P "${CMAKE_CURRENT_SOURCE_DIR}/export_tokenizers.cmake")
set_tests_properties(examples.export_sentence_pieces PROPERTIES
  FIXTURES_SETUP heed_tokenizers LABELS examples TIMEOUT 300)

# It needs no LibTorch.
add_executable(tokenizer_test
  python_cases.cpp sentence_piece_test.cpp stop_strings_test.cpp tokenizer_bounds_test.cpp
  tokenizer_errors_test.cpp tokenizer_file.cpp tokenizer_test.cpp)
target_compile_definitions(tokenizer_test PRIVATE
  HEED_TOKENIZERS="${tokenizers}" HEED_SENTENCE_PIECES="${sentence_pieces}")
target_link_libraries(tokenizer_test PRIVATE heed_examples_text GTest::gtest_main)
gtest_discover_tests(tokenizer_test
  DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
  PROPERTIES TIMEOUT 300 LABELS examples FIXTURES_REQUIRED heed_tokenizers)
