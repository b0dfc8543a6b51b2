# SPDX-License-Identifier: BSD-3-Clause
# Included after project(): heed of a few sources, whose libraries link nonetheless.
function(heed_few_sources)
  set_property(TARGET heed_objects PROPERTY SOURCES
    "${PROJECT_SOURCE_DIR}/src/cpu/block/layout.cpp" "${PROJECT_SOURCE_DIR}/src/weights/formats/bytes.cpp")
  set_property(TARGET heed_ops PROPERTY SOURCES "${PROJECT_SOURCE_DIR}/src/ops/autocast.cpp")
  foreach(instruction_set IN LISTS heed_instruction_sets)
    set_property(TARGET heed_kernels_${instruction_set} PROPERTY SOURCES
      "${PROJECT_SOURCE_DIR}/src/cpu/isa/instruction_set.cpp")
  endforeach()
endfunction()
cmake_language(DEFER CALL heed_few_sources)
