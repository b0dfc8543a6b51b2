# SPDX-License-Identifier: BSD-3-Clause
heed_test_example(NAME run_exported.help
  RUN $<TARGET_FILE:run_exported> --help
  PRINTS "--repeats INT[^\n]* number of timed runs of each program")
heed_test_example(NAME run_exported.missing_folder
  RUN $<TARGET_FILE:run_exported> missing
  EXIT 1
  PRINTS "^run_exported: cannot read missing/expected.pt: No such file or directory \\(examples/exported/export_language_model.py --out DIR writes it\\)\n$")

# Compiling the packages takes most of the time, so all tests share them.
include("${PROJECT_SOURCE_DIR}/cmake/ops_python.cmake")
set(exported "${CMAKE_CURRENT_BINARY_DIR}/exported")
heed_add_ops_test(examples.export_language_model "${examples}/exported/export_language_model.py"
  --out "${exported}" --length 96 --layers 2 --width 64 --heads 4 --window 16)
set_tests_properties(examples.export_language_model PROPERTIES
  FIXTURES_SETUP exported_language_model LABELS examples
  SKIP_REGULAR_EXPRESSION "^skipped: ;needs a C\\+\\+ compiler")
set(a_time "[0-9.]+e-0[5-9] +[0-9.]+ ms +[0-9.]+\n")
heed_test_example(NAME run_exported
  RUN $<TARGET_FILE:run_exported> "${exported}" --repeats 3
  PRINTS "^1 x 96 tokens, [0-9]+ threads?, median of 3 runs in turns
.*TorchScript, heed::attend +${a_time}AOTInductor, heed::attend +${a_time}AOTInductor, after use_heed_attention.py +${a_time}AOTInductor, scaled_dot_product_attention +${a_time}
All agree with Python: ")

set_tests_properties(examples.run_exported PROPERTIES
  FIXTURES_REQUIRED exported_language_model PROCESSORS 2
  SKIP_REGULAR_EXPRESSION "cannot read .*expected.pt")

# The same with other logits, and with a part of a package.
add_test(NAME examples.change_exported
  COMMAND "${python}" "${CMAKE_CURRENT_SOURCE_DIR}/change_exported.py" "${exported}")
set_tests_properties(examples.change_exported PROPERTIES
  FIXTURES_REQUIRED exported_language_model FIXTURES_SETUP changed_exported LABELS examples
  SKIP_REGULAR_EXPRESSION "cannot import torch;cannot read .*expected.pt")
heed_test_example(NAME run_exported.difference
  RUN $<TARGET_FILE:run_exported> "${exported}_other_logits" --repeats 1
  EXIT 1
  PRINTS "\nThey do not agree with Python")
heed_test_example(NAME run_exported.damaged_package
  RUN $<TARGET_FILE:run_exported> "${exported}_damaged"
  EXIT 1
  PRINTS "^run_exported: cannot load [^\n]*exported_damaged/heed.pt2: ")
set_tests_properties(examples.run_exported.difference examples.run_exported.damaged_package
  PROPERTIES
  FIXTURES_REQUIRED changed_exported SKIP_REGULAR_EXPRESSION "cannot read .*expected.pt")
