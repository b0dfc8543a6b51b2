# SPDX-License-Identifier: BSD-3-Clause
# Small models that Python's transformers makes and reads.
heed_test_example(NAME finetune.help
  RUN $<TARGET_FILE:finetune> --help
  PRINTS "--checkpointing +compute each block twice, which takes less memory; the result is the")
heed_test_refused(finetune "--steps: ${whole} 1 to 1000000000000000, not 0" --steps 0)
heed_test_refused(finetune "--lora: ${whole} 1 to 1000000000000000, not 0" --lora 0)
heed_test_example(NAME finetune.empty_model
  RUN $<TARGET_FILE:finetune> --model=
  EXIT 114
  PRINTS "--model: 1 required DIR missing\n")
if(python)
  add_test(NAME examples.published
    COMMAND "${python}" "${CMAKE_CURRENT_SOURCE_DIR}/check_published.py"
      --generate $<TARGET_FILE:generate> --serve $<TARGET_FILE:serve> --finetune $<TARGET_FILE:finetune>
      --text "${PROJECT_SOURCE_DIR}/CHANGELOG.md" --out "${CMAKE_CURRENT_BINARY_DIR}/published")
  add_test(NAME examples.encoder_decoders
    COMMAND "${python}" "${CMAKE_CURRENT_SOURCE_DIR}/check_encoder_decoders.py"
      --generate $<TARGET_FILE:generate> --serve $<TARGET_FILE:serve>
      --text "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
      --out "${CMAKE_CURRENT_BINARY_DIR}/encoder_decoders")
  set_tests_properties(examples.published examples.encoder_decoders PROPERTIES
    LABELS examples TIMEOUT 600 PROCESSORS 2 SKIP_RETURN_CODE 77)
endif()
