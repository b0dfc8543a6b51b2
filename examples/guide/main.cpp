// SPDX-License-Identifier: BSD-3-Clause
#include <iostream>

#include "../support/run_main.h"
#include "guide.h"

/// guide           runs the code that the guides and the headers show
/// guide FOLDER    loads that model, and the files that checkpoint.py and porting.py wrote
///
/// It reads and writes files in the working directory.
int main(int argc, char** argv) {
  heed::reuse_memory();
  return heed::examples::run_main("guide", [&] {
    std::cout << std::boolalpha;
    if (argc > 1) {
      guide::run(guide::load_files, guide::porting);
      guide::pretrained(argv[1]);
      return 0;
    }
    guide::run(guide::readme, guide::getting_started, guide::conventions, guide::from_libtorch,
               guide::from_python, guide::weights, guide::training, guide::performance,
               guide::serving, guide::gpu, guide::new_attention, guide::headers_of_attention,
               guide::headers_of_layers, guide::headers_of_models, guide::headers_of_training);
    return 0;
  });
}
