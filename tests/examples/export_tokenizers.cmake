# SPDX-License-Identifier: BSD-3-Clause
# Writes what ${EXPORT}, run by ${PYTHON}, tokenizes into ${OUT}, or ${OUT}/skipped with the reason why it cannot.
file(REMOVE_RECURSE "${OUT}")
file(MAKE_DIRECTORY "${OUT}")
if(NOT PYTHON)
  file(WRITE "${OUT}/skipped" "no Python was found; set HEED_PYTHON to one that has tokenizers")
  return()
endif()
execute_process(COMMAND "${PYTHON}" "${EXPORT}" --out "${OUT}"
  RESULT_VARIABLE failed ERROR_VARIABLE message)
if(failed)
  if(NOT message MATCHES "^[a-z_]+\\.py: (cannot import [^\n]*)")
    message(FATAL_ERROR "${EXPORT} failed: ${failed} ${message}")
  endif()
  file(WRITE "${OUT}/skipped" "${CMAKE_MATCH_1}")
endif()
