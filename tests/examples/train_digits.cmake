# SPDX-License-Identifier: BSD-3-Clause
heed_test_example(NAME train_digits.help
  RUN $<TARGET_FILE:train_digits> --help
  PRINTS "--data FILE REQUIRED")
heed_test_example(NAME train_digits.missing_file
  RUN $<TARGET_FILE:train_digits> --data missing.csv
  EXIT 1
  PRINTS "^train_digits: cannot read missing.csv: No such file or directory \\([a-z/]*export_digits.py writes it\\)\n$")
file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/damaged.csv" "0,1,2\n")
heed_test_example(NAME train_digits.damaged_file
  RUN $<TARGET_FILE:train_digits> --data "${CMAKE_CURRENT_BINARY_DIR}/damaged.csv"
  EXIT 1
  PRINTS "^train_digits: .*damaged.csv, line 1: expected 64 pixels from 0 to 16 and a digit from 0 to 9, separated by commas\n$")
heed_test_example(NAME train_digits.unwritable_output
  RUN $<TARGET_FILE:train_digits> --data missing.csv --save missing/model.pt
  EXIT 1
  PRINTS "^train_digits: cannot write missing/model.pt: No such file or directory\n$")

set(digits "${CMAKE_CURRENT_BINARY_DIR}/digits.csv")
heed_test_example(NAME export_digits
  RUN "${python}" "${examples}/digits/export_digits.py" --out "${digits}"
  WRITES "${digits}"
  PRINTS "digits.csv: 1797 images")
set(training_tests "")
foreach(attention IN ITEMS attention attention_v1 multi_head group_query)
  set(outputs "${CMAKE_CURRENT_BINARY_DIR}/${attention}")
  heed_test_example(NAME train_digits.${attention}
    RUN $<TARGET_FILE:train_digits> --data "${digits}" --attention ${attention}
        --heat-map "${outputs}.png" --save "${outputs}.pt"
    WRITES "${outputs}.png" "${outputs}.pt"
    PRINTS "held-out accuracy: (9[6-9]\\.[0-9]|100\\.0) % trained")
  list(APPEND training_tests examples.train_digits.${attention})
endforeach()
# Nine runs, with five seeds on two builds that round differently, gave 96.7 to 98.6 %; untrained, 8 to 15 %.
heed_test_example(NAME train_digits.vision_transformer
  RUN $<TARGET_FILE:train_digits> --data "${digits}" --attention vision_transformer --shift
      --epochs 100 --heat-map "${CMAKE_CURRENT_BINARY_DIR}/vision_transformer.png"
  WRITES "${CMAKE_CURRENT_BINARY_DIR}/vision_transformer.png"
  PRINTS "held-out accuracy: (9[6-9]\\.[0-9]|100\\.0) % trained")
list(APPEND training_tests examples.train_digits.vision_transformer)
heed_test_example(NAME train_digits.same_seed_same_numbers TWICE
  RUN $<TARGET_FILE:train_digits> --data "${digits}" --epochs 2 --seed 7
  PRINTS "epoch  2/2")
list(APPEND training_tests examples.train_digits.same_seed_same_numbers)
# A minute by itself, several on a busy machine.
set_tests_properties(examples.train_digits.vision_transformer PROPERTIES TIMEOUT 900)
# One step: its loss is that of the weights before it.
heed_test_example(NAME train_digits.diverges
  RUN $<TARGET_FILE:train_digits> --data "${digits}" --learning-rate 1e10 --epochs 1 --batch-size 2000
      --heat-map "${CMAKE_CURRENT_BINARY_DIR}/diverged.png"
  EXIT 1
  PRINTS "train_digits: the loss is no longer finite: try a smaller --learning-rate\n$")
list(APPEND training_tests examples.train_digits.diverges)
set_tests_properties(examples.export_digits PROPERTIES
  FIXTURES_SETUP digits SKIP_REGULAR_EXPRESSION "cannot import scikit-learn")
set_tests_properties(${training_tests} PROPERTIES
  FIXTURES_REQUIRED digits PROCESSORS 2 SKIP_REGULAR_EXPRESSION "cannot read .*digits.csv")
