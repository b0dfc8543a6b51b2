# Installs heed, moves the installed folder, and uses it from there through find_package.
include("${CMAKE_CURRENT_LIST_DIR}/steps.cmake")

set(installed "${WORK_DIR}/installed")
set(moved "${WORK_DIR}/moved")
file(REMOVE_RECURSE "${installed}" "${moved}")
step("Installing heed" ${CMAKE_COMMAND} --install "${BUILT}" --config "${CONFIG}"
  --prefix "${installed}")
file(RENAME "${installed}" "${moved}")

file(GLOB library "${moved}/lib*/${LIBRARY}" "${moved}/lib*/*/${LIBRARY}")
if(NOT library)
  message(FATAL_ERROR "${LIBRARY} was not installed.")
endif()
file(GLOB_RECURSE exported "${moved}/*.cmake")
if(NOT exported)
  message(FATAL_ERROR "No CMake package was installed.")
endif()
foreach(file IN LISTS exported)
  file(STRINGS "${file}" faults REGEX "fmt|nlohmann|(^|[\"=; ])/[A-Za-z0-9_]")
  if(faults)
    message(FATAL_ERROR "${file} names fmt, nlohmann_json or an absolute path:\n${faults}")
  endif()
endforeach()

find_in("${moved}" "${TORCH_ROOT}")
build_and_run_consumer()
