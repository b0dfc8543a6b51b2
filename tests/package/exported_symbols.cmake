# SPDX-License-Identifier: BSD-3-Clause
# The shared libraries export what exported_symbols.txt and exported_symbols_distributed.txt list, which programs that
# were built with them may use: a line that changes or goes breaks them. Of the libraries inside them they export
# nothing.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

# check_exports(<library> <list>)
function(check_exports name list)
  file(GLOB library "${INSTALLED}/lib*/${name}.so" "${INSTALLED}/lib*/*/${name}.so")
  step("Reading symbols of ${name}" "${NM}" --dynamic --defined-only --demangle "${library}")
  string(REGEX MATCHALL "[^\n]+" symbols "${output}")
  set(leaks "${symbols}")
  list(FILTER leaks INCLUDE REGEX "fmt::|nlohmann::")
  if(leaks)
    list(JOIN leaks "\n" leaks)
    message(FATAL_ERROR "${library} exports what it should keep to itself:\n${leaks}")
  endif()

  # Weak symbols are what several libraries may hold: templates, inline functions, with g++ vtables and
  # what belongs to them. Of those only templates are promised: the bases of modules, and functions that
  # return or take a kind of model.
  set(bases "${symbols}")
  list(FILTER bases INCLUDE REGEX
    "^[0-9a-f]+ W (heed::[A-Za-z]+ImplBase<[^<>]*>::[a-z]|[A-Za-z:]+ heed::[a-z_]+<heed::[A-Za-z]+>\\()")
  list(FILTER symbols EXCLUDE REGEX "^[0-9a-f]+ ([VWu] |. (__bss_start|_edata|_end)$)")
  list(APPEND symbols ${bases})
  list(FILTER symbols EXCLUDE REGEX "^[0-9a-f]+ . ((vtable|typeinfo|typeinfo name) for|(non-)?virtual thunk to) ")
  list(TRANSFORM symbols REPLACE "^[0-9a-f]+ . " "")
  # The same under either ABI of std::string.
  list(TRANSFORM symbols REPLACE
    "std::(__cxx11::)?basic_string<char, std::char_traits<char>, std::allocator<char> >" "std::string")
  list(TRANSFORM symbols REPLACE "\\[abi:cxx11\\]" "")
  list(TRANSFORM symbols REPLACE " >" ">")
  list(TRANSFORM symbols REPLACE ", std::allocator<[^<>]*>>" ">")
  list(REMOVE_DUPLICATES symbols)
  list(SORT symbols)
  list(JOIN symbols "\n" text)
  set(found "${WORK_DIR}/${list}")
  file(WRITE "${found}" "${text}\n")
  step("Comparing the list with ${found}" diff -u "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${list}" "${found}")
endfunction()

check_exports(libheed exported_symbols.txt)
if(DISTRIBUTED)
  check_exports(libheed_distributed exported_symbols_distributed.txt)
endif()
