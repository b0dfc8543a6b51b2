# Included after project() by scripts/mutate.sh: a changed file is compiled by itself, and soon. Kernels
# keep their -O3.
cmake_language(DEFER CALL set_target_properties heed_objects PROPERTIES UNITY_BUILD OFF)
cmake_language(DEFER CALL target_compile_options heed_objects PRIVATE -O1)
