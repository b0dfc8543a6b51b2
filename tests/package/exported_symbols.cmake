# The shared library exports what exported_symbols.txt lists, which programs that were built with it may
# use: a line that changes or goes breaks them. Of the libraries inside it exports nothing.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

file(GLOB library "${INSTALLED}/lib*/libheed.so" "${INSTALLED}/lib*/*/libheed.so")
step("Reading symbols" "${NM}" --dynamic --defined-only --demangle "${library}")
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
list(FILTER symbols EXCLUDE REGEX "^[0-9a-f]+ . (vtable|typeinfo|typeinfo name) for ")
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
set(found "${WORK_DIR}/exported_symbols.txt")
file(WRITE "${found}" "${text}\n")
step("Comparing the list with ${found}"
  diff -u "${CMAKE_CURRENT_LIST_DIR}/exported_symbols.txt" "${found}")
