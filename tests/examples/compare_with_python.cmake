# SPDX-License-Identifier: BSD-3-Clause
heed_test_example(NAME compare_with_python.missing_directory
  RUN $<TARGET_FILE:compare_with_python> missing
  EXIT 1
  PRINTS "^compare_with_python: cannot read missing/Attention.fixture.pt \\(")

# heed_test_export(<fixture> <name> <argument>...): a test that writes <fixture>/, which is the set-up
# of the CTest fixture <fixture>.
function(heed_test_export fixture name)
  heed_test_example(NAME ${name}
    RUN "${python}" "${PROJECT_SOURCE_DIR}/scripts/export_model.py" --originals heads
        --out "${CMAKE_CURRENT_BINARY_DIR}/${fixture}" ${ARGN}
    PRINTS "GroupQueryAttention.pt")
  set_tests_properties(examples.${name} PROPERTIES
    FIXTURES_SETUP ${fixture} SKIP_REGULAR_EXPRESSION "cannot import torch")
endfunction()

heed_test_export(same_weights export_same_weights --fixture)
heed_test_example(NAME compare_with_python
  RUN $<TARGET_FILE:compare_with_python> "${CMAKE_CURRENT_BINARY_DIR}/same_weights"
  PRINTS "\nAll agree")
# Results of other weights than the archives'.
heed_test_export(other_weights export_results --fixture)
heed_test_export(other_weights export_other_weights --seed 1)
set_tests_properties(examples.export_other_weights PROPERTIES DEPENDS examples.export_results)
heed_test_example(NAME compare_with_python.difference
  RUN $<TARGET_FILE:compare_with_python> "${CMAKE_CURRENT_BINARY_DIR}/other_weights"
  EXIT 1
  PRINTS "\nThey do not agree")
set_tests_properties(examples.compare_with_python PROPERTIES FIXTURES_REQUIRED same_weights)
set_tests_properties(examples.compare_with_python.difference PROPERTIES
  FIXTURES_REQUIRED other_weights)
set_tests_properties(examples.compare_with_python examples.compare_with_python.difference PROPERTIES
  SKIP_REGULAR_EXPRESSION "cannot read .*fixture.pt")
