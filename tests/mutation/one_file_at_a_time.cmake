# SPDX-License-Identifier: BSD-3-Clause
# Included after project() by scripts/mutate.sh: a changed file is compiled by itself, and soon. Kernels
# keep their -O3.
function(heed_one_file_at_a_time)
  foreach(library IN ITEMS heed_objects heed_distributed heed_ops)
    if(TARGET ${library})
      set_target_properties(${library} PROPERTIES UNITY_BUILD OFF)
      target_compile_options(${library} PRIVATE -O1)
    endif()
  endforeach()
endfunction()
cmake_language(DEFER CALL heed_one_file_at_a_time)
