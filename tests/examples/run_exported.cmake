heed_test_example(NAME run_exported.help
  RUN $<TARGET_FILE:run_exported> --help
  PRINTS "--repeats INT[^\n]* number of timed runs of each program")
heed_test_example(NAME run_exported.missing_folder
  RUN $<TARGET_FILE:run_exported> missing
  EXIT 1
  PRINTS "^run_exported: cannot read missing/expected.pt: No such file or directory \\(examples/exported/export_language_model.py --out DIR writes it\\)\n$")

# Compiling the packages takes most of the time, so all tests share them.
include("${PROJECT_SOURCE_DIR}/cmake/ops_python.cmake")
set(exported "${CMAKE_CURRENT_BINARY_DIR}/exported")
heed_add_ops_test(examples.export_language_model "${examples}/exported/export_language_model.py"
  --out "${exported}" --length 96 --layers 2 --width 64 --heads 4 --window 16)
set_tests_properties(examples.export_language_model PROPERTIES
  FIXTURES_SETUP exported_language_model LABELS examples
  SKIP_REGULAR_EXPRESSION "^skipped: ;needs a C\\+\\+ compiler")
set(a_time "[0-9.]+e-0[5-9] +[0-9.]+ ms +[0-9.]+\n")
heed_test_example(NAME run_exported
  RUN $<TARGET_FILE:run_exported> "${exported}" --repeats 3
  PRINTS "^1 x 96 tokens, [0-9]+ threads?, median of 3 runs in turns
.*TorchScript, heed::attend +${a_time}AOTInductor, heed::attend +${a_time}AOTInductor, after use_heed_attention.py +${a_time}AOTInductor, scaled_dot_product_attention +${a_time}
All agree with Python: ")

# The same with other logits, and with a package that is none.
set(change "
import os, sys, torch
source, folder = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
for name in os.listdir(source):
    if os.path.lexists(f'{folder}/{name}'):
        os.remove(f'{folder}/{name}')
    os.symlink(f'{source}/{name}', f'{folder}/{name}')
expected = torch.load(f'{source}/expected.pt')
os.remove(f'{folder}/expected.pt')
torch.save({**expected, 'logits': expected['logits'] + 0.001}, f'{folder}/expected.pt')")
add_test(NAME examples.export_other_logits
  COMMAND "${python}" -c "${change}" "${exported}" "${exported}_otherwise")
heed_test_example(NAME run_exported.difference
  RUN $<TARGET_FILE:run_exported> "${exported}_otherwise" --repeats 1
  EXIT 1
  PRINTS "\nThey do not agree with Python")
set_tests_properties(examples.export_other_logits PROPERTIES
  FIXTURES_REQUIRED exported_language_model FIXTURES_SETUP exported_otherwise LABELS examples
  SKIP_REGULAR_EXPRESSION "No module named 'torch';No such file or directory")
set_tests_properties(examples.run_exported.difference PROPERTIES
  FIXTURES_REQUIRED exported_otherwise SKIP_REGULAR_EXPRESSION "cannot read .*expected.pt")
set_tests_properties(examples.run_exported PROPERTIES
  FIXTURES_REQUIRED exported_language_model PROCESSORS 2
  SKIP_REGULAR_EXPRESSION "cannot read .*expected.pt")
