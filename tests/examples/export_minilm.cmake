# SPDX-License-Identifier: BSD-3-Clause
# Writes ${OUT}/minilm.pt with ${PYTHON}, or ${OUT}/skipped with the reason why it cannot.
file(REMOVE_RECURSE "${OUT}")
file(MAKE_DIRECTORY "${OUT}")
if(NOT PYTHON)
  file(WRITE "${OUT}/skipped" "no Python was found; set HEED_PYTHON to one that has transformers")
  return()
endif()
execute_process(COMMAND "${PYTHON}" "${EXPORT}" --text "${TEXT}" --out "${OUT}/minilm.pt"
  RESULT_VARIABLE failed ERROR_VARIABLE message)
if(failed)
  if(NOT message MATCHES "^export_minilm.py: (cannot import [^\n]*)")
    message(FATAL_ERROR "export_minilm.py failed: ${failed} ${message}")
  endif()
  file(WRITE "${OUT}/skipped" "${CMAKE_MATCH_1}")
endif()
