# SPDX-License-Identifier: BSD-3-Clause
# A project that computes fast, without NaN and infinity, builds heed's sources with both.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

find_in("${TORCH_ROOT}")
file(REMOVE_RECURSE "${WORK_DIR}")
# Flags as a project gives them: by the cache, by CMake's commands, for one configuration.
file(WRITE "${WORK_DIR}/options.cmake"
  "add_compile_options(-ffast-math -ffinite-math-only -freciprocal-math)\n")
step("Configuring the consumer" ${CMAKE_COMMAND}
  -S "${CMAKE_CURRENT_LIST_DIR}/consumer" -B "${WORK_DIR}/consumer" ${same_toolchain}
  "-DHEED_SOURCE_DIR=${HEED_SOURCE_DIR}" -DHEED_BUILD_DISTRIBUTED=ON -DHEED_BUILD_OPS=ON
  -DCMAKE_UNITY_BUILD=OFF -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
  "-DCMAKE_CXX_FLAGS=${FLAGS} -Ofast" "-DCMAKE_CXX_FLAGS_RELEASE=-O3 -ffinite-math-only -DNDEBUG"
  "-DCMAKE_PROJECT_consumer_INCLUDE=${WORK_DIR}/options.cmake")

# What the compiler says that it does with the options of each source; many have the same.
file(READ "${WORK_DIR}/consumer/compile_commands.json" commands)
string(JSON count LENGTH "${commands}")
math(EXPR last "${count} - 1")
file(WRITE "${WORK_DIR}/empty.cpp" "")
set(flags_seen "")
set(heed_sources 0)
foreach(n RANGE ${last})
  string(JSON source GET "${commands}" ${n} file)
  string(FIND "${source}" "${HEED_SOURCE_DIR}/src/" position)
  if(NOT position EQUAL 0)
    continue()
  endif()
  math(EXPR heed_sources "${heed_sources} + 1")
  string(JSON command GET "${commands}" ${n} command)
  string(REGEX MATCHALL " -(O|f|m)[^ ]*" flags "${command}")
  list(JOIN flags "" joined)
  list(FIND flags_seen "${joined}" position)
  if(NOT position EQUAL -1)
    continue()
  endif()
  list(APPEND flags_seen "${joined}")
  list(TRANSFORM flags STRIP)
  step("Asking about ${source}" "${COMPILER}" ${flags} -dM -E "${WORK_DIR}/empty.cpp")
  if(output MATCHES "__FAST_MATH__|__FINITE_MATH_ONLY__ 1|__RECIPROCAL_MATH__|__NO_SIGNED_ZEROS__")
    message(FATAL_ERROR "${source} is compiled with ${CMAKE_MATCH_0}: ${flags}")
  endif()
endforeach()
if(heed_sources LESS 100)
  message(FATAL_ERROR "Only ${heed_sources} of heed's sources were found.")
endif()
