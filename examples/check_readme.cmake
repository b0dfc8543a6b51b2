# cmake -DREADME=<file> -DPROGRAM=<file> -P check_readme.cmake
# Fails unless the README shows the program as it is compiled.
file(READ "${README}" readme)
file(READ "${PROGRAM}" program)
string(FIND "${readme}" "```cpp\n${program}```\n" place)
if(place EQUAL -1)
  message(FATAL_ERROR "${README} does not show ${PROGRAM} as it is")
endif()
