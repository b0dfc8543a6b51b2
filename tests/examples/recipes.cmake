# SPDX-License-Identifier: BSD-3-Clause
# The recipes beside their Python, which is skipped where transformers is missing.
set(recipes "${CMAKE_CURRENT_BINARY_DIR}/recipes")
file(MAKE_DIRECTORY "${recipes}")
heed_test_example(NAME recipes.python
  RUN "${python}" "${CMAKE_CURRENT_SOURCE_DIR}/recipes.py" write "${recipes}"
  WRITES "${recipes}/other_order.safetensors"
  PRINTS ".*")
set_tests_properties(examples.recipes.python PROPERTIES
  FIXTURES_SETUP recipes SKIP_REGULAR_EXPRESSION "cannot import torch;cannot import transformers")

add_executable(recipes_test recipes_test.cpp)
target_compile_definitions(recipes_test PRIVATE
  HEED_PYTHON="${python}"
  HEED_RECIPES="${recipes}"
  HEED_RECIPES_PAGE="${PROJECT_SOURCE_DIR}/docs/recipes.md"
  HEED_RECIPES_SCRIPT="${CMAKE_CURRENT_SOURCE_DIR}/recipes.py")
target_include_directories(recipes_test PRIVATE "${examples}")
target_link_libraries(recipes_test PRIVATE heed::heed heed_test_support GTest::gmock)
heed_precompile(recipes_test)
heed_add_cases(recipes_test LABELS examples FIXTURES_REQUIRED recipes)
