# SPDX-License-Identifier: BSD-3-Clause
heed_test_example(NAME train_translate.help
  RUN $<TARGET_FILE:train_translate> --help
  PRINTS "--dtype TEXT:{float32,bfloat16}(=| .)float32")
heed_test_example(NAME train_translate.unwritable_output
  RUN $<TARGET_FILE:train_translate> --heat-map missing/weights.png
  EXIT 1
  PRINTS "^train_translate: cannot write missing/weights.png: No such file or directory\n$")
heed_test_example(NAME train_translate.missing_weights
  RUN $<TARGET_FILE:train_translate> --load missing.safetensors
  EXIT 1
  PRINTS "^train_translate: load_weights: .*missing.safetensors")
string(ASCII 228 a_umlaut)
heed_test_example(NAME train_translate.not_ascii
  RUN $<TARGET_FILE:train_translate> --date "3 M${a_umlaut}rz 1998"
  EXIT 1
  PRINTS "^train_translate: character 4 of '3 M.+rz 1998' is not printable ASCII\n$")
string(REPEAT "1" 500 long_date)
heed_test_example(NAME train_translate.long_date
  RUN $<TARGET_FILE:train_translate> --date "${long_date}"
  EXIT 1
  PRINTS "^train_translate: --date \\(500 characters\\) must have at most 64\n$")
heed_test_example(NAME train_translate.diverges
  RUN $<TARGET_FILE:train_translate> --learning-rate 1e30 --steps 1 --batch-size 4
      --save "${CMAKE_CURRENT_BINARY_DIR}/diverged.safetensors"
  EXIT 1
  PRINTS "train_translate: the loss is no longer finite: try a smaller --learning-rate\n$")
heed_test_example(NAME train_translate.short
  RUN $<TARGET_FILE:train_translate> --styles 3 --steps 500
      --heat-map "${CMAKE_CURRENT_BINARY_DIR}/dates.png"
      --save "${CMAKE_CURRENT_BINARY_DIR}/dates.safetensors"
  WRITES "${CMAKE_CURRENT_BINARY_DIR}/dates.png" "${CMAKE_CURRENT_BINARY_DIR}/dates.safetensors"
  PRINTS "exact match: (9[0-9]\\.[0-9]|100\\.0) % of the held-out dates")
# A minute by itself, several on a busy machine.
set_tests_properties(examples.train_translate.short PROPERTIES
  PROCESSORS 2 FIXTURES_SETUP translator TIMEOUT 900)
# What was learnt is in the file.
heed_test_example(NAME train_translate.load
  RUN $<TARGET_FILE:train_translate> --load "${CMAKE_CURRENT_BINARY_DIR}/dates.safetensors"
      --styles 3 --steps 0 --date "MARCH 3, 1998"
  PRINTS "MARCH 3, 1998 -> 1998-03-03\n.*exact match: (9[0-9]\\.[0-9]|100\\.0) %")
set_tests_properties(examples.train_translate.load PROPERTIES FIXTURES_REQUIRED translator)
