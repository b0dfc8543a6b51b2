#include <iostream>

#include "../support/run_main.h"
#include "guide.h"

/// guide           runs what the guides show
/// guide LLAMA     loads that file, and what checkpoint.py and porting.py have written
///
/// Files are read from the working directory, and written into it.
int main(int argc, char** argv) {
  return heed::examples::run_main("guide", [&] {
    std::cout << std::boolalpha;
    if (argc > 1) {
      guide::load_files();
      guide::porting();
      guide::load_llama(argv[1]);
      return 0;
    }
    guide::getting_started();
    guide::conventions();
    guide::from_libtorch();
    guide::from_python();
    guide::weights();
    guide::training();
    guide::performance();
    guide::new_attention();
    return 0;
  });
}
